//! Engines that come free at different times, as one that serves.
//!
//! With the work in front of all engines lumped together, three engines that are busy for two seconds make a short request impossible that the
//! fourth, idle, would begin at once. So the work that can be done until a time is counted engine by engine: what each does from the
//! time it comes free. No request is served faster than by the engine that comes free first.

use super::Serving;
use plimsoll_core::Nanos;

/// When each engine comes free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engines {
    /// Rising.
    free_at: Vec<Nanos>,
    /// Sums of the first ones.
    sums: Vec<u128>,
}

impl Engines {
    /// `None` for no engine.
    #[must_use]
    pub fn new(mut free_at: Vec<Nanos>) -> Option<Self> {
        if free_at.is_empty() {
            return None;
        }
        free_at.sort_unstable();
        let sums = free_at.iter().scan(0u128, |sum, at| {
            *sum += u128::from(at.0);
            Some(*sum)
        });
        Some(Engines { sums: sums.collect(), free_at })
    }

    /// Work that the first `count` have done when the next one comes free.
    fn work_before(&self, count: usize) -> u128 {
        self.free_at.get(count).map_or(u128::MAX, |next| count as u128 * u128::from(next.0) - self.sums[count - 1])
    }
}

impl Serving for Engines {
    fn finish(&self, work: u128, own: Nanos) -> Nanos {
        // The fewest engines that do it before one more comes free.
        let (mut few, mut many) = (1, self.free_at.len());
        while few < many {
            let middle = few.midpoint(many);
            if work <= self.work_before(middle) {
                many = middle;
            } else {
                few = middle + 1;
            }
        }
        let sum = work + self.sums[few - 1];
        // Division of the wide kind takes ten times as long, and nearly nothing is so large.
        let at = u64::try_from(sum).map_or_else(
            |_| u64::try_from(sum.div_ceil(few as u128)).unwrap_or(u64::MAX),
            |sum| sum.div_ceil(few as u64),
        );
        Nanos(at).max(self.free_at[0] + own)
    }
}
