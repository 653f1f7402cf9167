//! Timing mode: every step takes what a named GPU would take, so that a laptop can stand in for a fleet.
//!
//! Tokens and scheduling are real; only time is the cost model's ([`plimsoll_timing`]). What the step computed in the
//! meantime is part of that time, and only the rest is slept. The schedule is kept, not the single step: a sleep that
//! ends late, or a step that computes longer than it should, shortens the steps after it, so that in the long run the
//! engine is as fast as the model says. A machine that cannot keep up is not waited for for ever, and it is told:
//! `late` steps and `lost` time are counted and warned of, because then the times are this machine's and not a GPU's.

use crate::clock::Clock;
use plimsoll_timing::{Profile, StepShape};
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// How an engine's steps are timed.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    pub profile: Profile,
    /// All times are divided by it; above 0.
    pub speedup: f64,
}

impl Timing {
    /// What a step of one rank takes.
    pub(crate) fn step_time(&self, shape: &StepShape) -> Duration {
        Duration::from_secs_f64(self.profile.step_time(shape).as_secs_f64() / self.speedup)
    }
}

/// A schedule that is further behind than this is given up: the difference is lost, not caught up in a burst.
const MOST_BEHIND: Duration = Duration::from_millis(100);

/// How often a machine that is too slow is warned of, and from which share of late steps on.
const WARN_EVERY: Duration = Duration::from_secs(10);
const WARN_FROM: f64 = 0.1;

/// Keeps steps to their schedule.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// When the last step should have ended; `None` after a pause.
    due: Option<Instant>,
    pub(crate) late_steps: u64,
    pub(crate) lost: Duration,
    window: Option<Window>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    steps: u64,
    late: u64,
    lost: Duration,
}

impl Pacer {
    /// The schedule starts anew with the next step.
    pub(crate) fn resume(&mut self) {
        self.due = None;
    }

    /// Returns when a step that began at `started` and takes `step` should end, or at once when that has passed.
    pub(crate) fn wait(&mut self, clock: &dyn Clock, started: Instant, step: Duration) {
        let mut due = self.due.unwrap_or(started) + step;
        let now = clock.now();
        let late = now > due;
        let mut lost = Duration::ZERO;
        if late {
            lost = (now - due).saturating_sub(MOST_BEHIND);
            due += lost;
        } else {
            clock.sleep_until(due);
        }
        self.due = Some(due);
        self.late_steps += u64::from(late);
        self.lost += lost;
        self.warn(now, late, lost);
    }

    fn warn(&mut self, now: Instant, late: bool, lost: Duration) {
        let window = self.window.get_or_insert(Window { since: now, steps: 0, late: 0, lost: Duration::ZERO });
        window.steps += 1;
        window.late += u64::from(late);
        window.lost += lost;
        if now.saturating_duration_since(window.since) < WARN_EVERY {
            return;
        }
        if window.late as f64 >= WARN_FROM * window.steps as f64 {
            tracing::warn!(
                late_steps = window.late,
                steps = window.steps,
                lost_ms = window.lost.as_millis() as u64,
                "this machine is too slow for the timing profile: times are its own; lower --timing-speedup or the load"
            );
        }
        self.window = None;
    }
}
