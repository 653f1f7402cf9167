//! When the step loop is going to hand over next, so that the task can be there by itself.
//!
//! To wake a sleeping thread costs the one that wakes it: 18 us on a virtual machine, where the other processor has been
//! given back to the host, and a step must not take longer for it. Steps of the same requests take nearly the same time.
//! So whoever waits looks by itself, by a timer, when the next bag may have come: first at the early end of what steps take,
//! then again until the late end. It says when, and is not woken for a bag that comes shortly before. A bag that comes
//! earlier wakes it as ever; where steps are short, or so different that looking would cost more than waking, it only sleeps.

use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Steps shorter than this are not worth a timer: it could not be exact enough.
const SHORTEST: Duration = Duration::from_millis(2);
/// How long a bag may lie at most, and which part of a step.
pub(super) const LONGEST_WAIT: Duration = Duration::from_millis(1);
const PART_OF_A_STEP: u32 = 4;
/// Looks at the most between the early end and the late end.
const LOOKS: u32 = 6;
/// How exact timers are.
const SLACK: Duration = Duration::from_micros(100);

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
        // Nearly all steps take the mean, give or take three times the deviation.
        let spread = self.deviation * 6;
        if self.mean < SHORTEST || spread > patience * LOOKS {
            return None;
        }
        let early = self.last? + self.mean - spread / 2;
        let look = early + (spread + SLACK).min(patience) + patience * tried;
        (look > now && look < early + spread + patience).then_some(look)
    }
}
