//! When the step loop is going to hand over next, so that the task can be there by itself.
//!
//! To wake a sleeping thread costs the one that wakes it: 18 us on a virtual machine, where the other processor has been
//! given back to the host, and a step must not take longer for it. Steps of the same requests take nearly the same time.
//! So whoever waits sets an alarm for a little after the next bag is expected, says so, and is not woken for a bag that
//! comes shortly before. A bag that comes earlier wakes it as ever; where steps are short or not alike there is no alarm.

use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Steps shorter than this are not worth an alarm: it could not be exact enough.
const SHORTEST: Duration = Duration::from_millis(2);
/// How long a bag may lie at most, and which part of a step.
pub(super) const LONGEST_WAIT: Duration = Duration::from_millis(1);
const PART_OF_A_STEP: u32 = 8;
/// How often an alarm that rang too early is set again before the task sleeps until it is woken.
const AGAIN: u32 = 2;

/// Times between bags.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rhythm {
    last: Option<Instant>,
    mean: Duration,
    /// Of the times from their mean, without sign.
    deviation: Duration,
}

impl Rhythm {
    /// A bag is handed over. The mean goes an eighth of the way and the deviation a quarter, as in TCP's round trips.
    pub(super) fn beat(&mut self, now: Instant) {
        let Some(last) = self.last.replace(now) else { return };
        let time = now.saturating_duration_since(last);
        if self.mean.is_zero() {
            (self.mean, self.deviation) = (time, time / 2);
            return;
        }
        let off = time.abs_diff(self.mean);
        self.deviation = self.deviation * 3 / 4 + off / 4;
        self.mean = self.mean * 7 / 8 + time / 8;
    }

    /// How long a bag may lie until somebody looks.
    pub(super) fn patience(&self) -> Duration {
        (self.mean / PART_OF_A_STEP).min(LONGEST_WAIT)
    }

    /// When to look for the next bag, the first time (`tried` is 0) or again; `None`: it cannot be told well enough.
    pub(super) fn next_look(&self, now: Instant, tried: u32) -> Option<Instant> {
        let patience = self.patience();
        if self.mean < SHORTEST || self.deviation * 2 > patience || tried > AGAIN {
            return None;
        }
        // What is expected may be late as often as early.
        let look = self.last? + self.mean + patience / 2;
        let look = look + patience / 2 * tried;
        (look > now).then_some(look)
    }
}
