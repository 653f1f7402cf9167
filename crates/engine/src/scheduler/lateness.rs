//! Under the policy `slo`: who cannot be in time any more is told so at once (`design/traffic.md`, SLO).
//!
//! The rule is [`plimsoll_traffic::slo`]; its work is prefill, its one engine this one, and its figures come from the
//! engine's own steps ([`super::pace`]). What is running is paid for and never refused, neither is one that was preempted;
//! a request without a deadline takes its time in the order and is never refused. While the engine does not know how fast
//! it is, only a deadline that has passed refuses anybody.
//!
//! The rule looks at the whole queue, so it is asked only when its answer can have changed: when somebody came in before
//! the last deadline in the queue, or when less was computed since than the tightest deadline can bear.

use super::Scheduler;
use super::policy::SchedulePolicy;
use crate::refusal::{Late, Refusal};
use crate::sequence::Sequence;
use plimsoll_core::Nanos;
use plimsoll_traffic::slo::{Job, Pool, Standing, feasible_set};
use std::num::NonZeroU32;

/// How long the last verdict holds.
#[derive(Debug, Default)]
pub(super) struct Watch {
    verdict: Option<Held>,
    /// Prefill tokens computed since.
    computed: usize,
}

#[derive(Debug)]
struct Held {
    /// Until then if nothing is computed.
    until: Nanos,
    /// And so much longer for each prefill token that is; `None`: the pace was not known.
    per_token_ns: Option<f64>,
    /// Whoever comes in behind this turn's rank takes nobody's time.
    last_promised: u64,
}

impl Watch {
    pub(super) fn count(&mut self, prefill_tokens: usize) {
        self.computed += prefill_tokens;
    }

    /// Somebody with this rank takes a place in the order.
    pub(super) fn enters(&mut self, rank: u64, promised: bool) {
        if promised || self.verdict.as_ref().is_some_and(|held| rank <= held.last_promised) {
            self.verdict = None;
        }
    }

    fn holds(&self, now: Nanos, pace_known: bool) -> bool {
        self.verdict.as_ref().is_some_and(|held| {
            let credit = Nanos((held.per_token_ns.unwrap_or(0.0) * self.computed as f64) as u64);
            held.per_token_ns.is_some() == pace_known && now <= held.until + credit
        })
    }
}

impl Scheduler {
    /// Moves those that cannot be in time any more from the queue to [`Self::turned_away`].
    pub(super) fn turn_away_the_late(&mut self, now: Nanos) {
        if self.order.policy != SchedulePolicy::Slo || self.waiting.promised() == 0 {
            return;
        }
        let per_step = self.prefill_room(now).max(1);
        let step_ns = self.pace.prefill_step_ns(now, per_step);
        if self.watch.holds(now, step_ns.is_some()) {
            return;
        }
        let per_token_ns = step_ns.map(|ns| ns / per_step as f64);
        let least = self.pace.prefill_step_ns(now, 1).unwrap_or(0.0);
        let pool = Pool { free_at: now, capacity: NonZeroU32::MIN, least: Nanos(least as u64) };
        let job = |sequence: &Sequence, tokens: usize, standing: Standing| Job {
            key: sequence.serial,
            deadline: Nanos(self.order.turn(sequence).rank),
            service: Nanos((per_token_ns.unwrap_or(0.0) * tokens as f64) as u64),
            standing,
        };
        let running = self.running.iter().filter(|sequence| sequence.remaining() > 1).map(|sequence| {
            let standing = if sequence.is_promised() { Standing::Begun } else { Standing::Unbound };
            job(sequence, sequence.remaining(), standing)
        });
        let waiting = self.waiting.iter().map(|sequence| {
            let standing = if sequence.is_promised() { Standing::Promised } else { Standing::Unbound };
            job(sequence, sequence.expected_prefill(), standing)
        });
        let jobs: Vec<Job<u64>> = running.chain(waiting).collect();
        self.looked_at += jobs.len() as u64;
        let last_promised = jobs.iter().filter(|job| job.standing != Standing::Unbound).map(|job| job.deadline.0).max();
        let verdict = feasible_set(&jobs, &pool);
        let until = verdict.slack.map_or(Nanos::MAX, |slack| now + slack);
        let held = Held { until, per_token_ns, last_promised: last_promised.unwrap_or(0) };
        self.watch = Watch { verdict: Some(held), computed: 0 };
        let no_place_of = (!self.has_place()).then_some(self.limits.max_running);
        for late in verdict.refused {
            let Some(sequence) = self.waiting.remove(late.key) else { continue };
            let wanted = sequence.deadline().unwrap_or(now).since(sequence.arrived_at);
            let predicted = late.finish.since(sequence.arrived_at);
            // What is left to compute would fit: the time went by before.
            let no_place_of = no_place_of.filter(|_| late.finish.since(now) <= wanted);
            let late = Late { goal: "ttft", predicted, wanted, alone: late.alone, no_place_of };
            let refusal = Refusal::SloUnattainable(late);
            self.turned_away.push((sequence, refusal));
        }
    }

    /// Why the time between its tokens will be too long, if so.
    pub(super) fn too_slow_for(&self, sequence: &Sequence, now: Nanos) -> Option<Refusal> {
        let tpot = sequence.urgency.tpot.filter(|_| self.order.policy == SchedulePolicy::Slo)?;
        let wanted = Nanos(u64::try_from(tpot.as_nanos()).unwrap_or(u64::MAX));
        let predicted = self.pace.decode_step(now, self.running.len() + 1)?;
        let alone = self.pace.decode_step(now, 1).is_some_and(|alone| alone > wanted);
        (predicted > wanted).then_some(Refusal::SloUnattainable(Late {
            goal: "tpot",
            predicted,
            wanted,
            alone,
            no_place_of: None,
        }))
    }

    /// Prefill tokens that the next step may compute: what decoding leaves of the budget, and no more than lets everybody
    /// who decodes have the next token in the time it asked for. Never nothing.
    pub(super) fn prefill_room(&self, now: Nanos) -> usize {
        let decoding = self.running.iter().filter(|sequence| sequence.remaining() == 1);
        let left = self.limits.token_budget.saturating_sub(decoding.clone().count());
        if self.order.policy != SchedulePolicy::Slo {
            return left;
        }
        let tightest = decoding.filter_map(|sequence| sequence.urgency.tpot).min();
        let within = tightest.and_then(|tpot| {
            let time = Nanos(u64::try_from(tpot.as_nanos()).unwrap_or(u64::MAX));
            self.pace.prefill_within(now, time)
        });
        within.map_or(left, |within| left.min(within.max(self.limits.page_tokens)))
    }
}
