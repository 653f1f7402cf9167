//! In what order requests are served, and who may push whom aside.
//!
//! | policy | order of the queue | running, when pages run out |
//! |---|---|---|
//! | `slo` | deadline; without one, arrival plus patience | the last admitted waits again |
//! | `fcfs` | arrival | the last admitted waits again |
//! | `priority` | priority, then arrival; no value comes last | the least important waits again |
//!
//! `slo` is the default because it is `fcfs` as long as nobody names a deadline: equal patience keeps the order of arrival.
//! It cannot starve anybody either: once a request without a deadline has waited for the patience, whoever arrives comes
//! behind it. `priority` is SGLang's, and like SGLang's it has no aging: a constant stream of important requests keeps
//! the others waiting for ever.
//!
//! Whoever was preempted goes before those who have not begun; its reader has waited already, and its pages may still be
//! cached.

use super::queue::Turn;
use crate::sequence::Sequence;
use plimsoll_core::Nanos;
use std::time::Duration;

/// `--schedule-policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulePolicy {
    #[default]
    Slo,
    Fcfs,
    Priority,
}

impl SchedulePolicy {
    pub const ALL: [SchedulePolicy; 3] = [SchedulePolicy::Slo, SchedulePolicy::Fcfs, SchedulePolicy::Priority];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            SchedulePolicy::Slo => "slo",
            SchedulePolicy::Fcfs => "fcfs",
            SchedulePolicy::Priority => "priority",
        }
    }

    /// The policy of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        SchedulePolicy::ALL.into_iter().find(|policy| policy.as_str() == name)
    }
}

/// Everything about the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub policy: SchedulePolicy,
    /// Under `slo`, a request without a deadline takes its turn as if it had this one. It is never late.
    pub patience: Duration,
    /// Under `priority`, smaller numbers come first (vLLM's sense) instead of larger ones.
    pub low_priority_first: bool,
    /// Under `priority`, one that waits pushes a running one aside if it is more important by more than this.
    pub preemption_threshold: u32,
}

impl Default for Order {
    fn default() -> Self {
        Order {
            policy: SchedulePolicy::default(),
            patience: Duration::from_secs(30),
            low_priority_first: false,
            // SGLang's.
            preemption_threshold: 10,
        }
    }
}

impl Order {
    pub(crate) fn turn(&self, sequence: &Sequence) -> Turn {
        let paid = sequence.retractions > 0;
        let rank = match self.policy {
            SchedulePolicy::Fcfs => u64::from(!paid),
            SchedulePolicy::Slo if paid => 0,
            SchedulePolicy::Slo => self.due(sequence).0.max(1),
            SchedulePolicy::Priority => !ascending(self.importance(sequence)),
        };
        Turn { rank, serial: sequence.serial }
    }

    /// When it is due; for one without a deadline, when it runs out of patience.
    pub(crate) fn due(&self, sequence: &Sequence) -> Nanos {
        let patience = Nanos(u64::try_from(self.patience.as_nanos()).unwrap_or(u64::MAX));
        sequence.deadline().unwrap_or(sequence.arrived_at + patience)
    }

    /// Larger is more important, whatever the sense of the numbers.
    fn importance(&self, sequence: &Sequence) -> i64 {
        match sequence.urgency.priority {
            None => i64::MIN,
            Some(priority) if self.low_priority_first => priority.checked_neg().unwrap_or(i64::MAX),
            Some(priority) => priority,
        }
    }

    /// It may take the place and the pages of one that runs.
    pub(crate) fn may_displace(&self, waiting: &Sequence, running: &Sequence) -> bool {
        let (above, below) = (self.importance(waiting), self.importance(running));
        self.policy == SchedulePolicy::Priority && above.saturating_sub(below) > i64::from(self.preemption_threshold)
    }

    /// One that waits gives up its place in a full queue to a more important one.
    pub(crate) fn may_supplant(&self, arriving: &Sequence, waiting: &Sequence) -> bool {
        self.policy == SchedulePolicy::Priority && self.importance(arriving) > self.importance(waiting)
    }
}

/// The same order as unsigned numbers.
fn ascending(value: i64) -> u64 {
    value.cast_unsigned() ^ (1 << 63)
}
