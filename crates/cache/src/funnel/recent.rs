//! What happened lately, beside what happened ever: two generations of exact sums.
//!
//! A rate over everything since the start answers slowly; an exponential average has no unit to add up. Two generations of one
//! length are whole numbers, and together always cover between one and two of those lengths.

use plimsoll_core::Nanos;
use std::ops::AddAssign;

/// Sums ever, and over the last one to two periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent<T> {
    ever: T,
    now: T,
    before: T,
    since: Nanos,
}

impl<T: Copy + Default + for<'a> AddAssign<&'a T>> Recent<T> {
    pub fn add(&mut self, now: Nanos, period: Nanos, more: &T) {
        self.roll(now, period);
        self.ever += more;
        self.now += more;
    }

    /// Time passes without anything to add.
    pub fn roll(&mut self, now: Nanos, period: Nanos) {
        let age = now.since(self.since);
        if age.0 < period.0.max(1) {
            return;
        }
        let whole = age.0 / period.0.max(1);
        self.before = if whole == 1 { self.now } else { T::default() };
        self.now = T::default();
        self.since = Nanos(self.since.0 + whole * period.0.max(1));
    }

    #[must_use]
    pub fn ever(&self) -> &T {
        &self.ever
    }

    #[must_use]
    pub fn recent(&self) -> T {
        let mut both = self.now;
        both += &self.before;
        both
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn recent_covers_one_to_two_periods(steps in proptest::collection::vec((0u64..25, 1u64..9), 1..60)) {
            let (mut sums, mut all, mut now) = (Recent::<u64>::default(), Vec::new(), 0);
            for (later, amount) in steps {
                now += later;
                sums.add(Nanos(now), Nanos(10), &amount);
                all.push((now, amount));
                // Periods begin at whole tens.
                let from = (now / 10 * 10).saturating_sub(10);
                let expected: u64 = all.iter().filter(|(at, _)| *at >= from).map(|(_, amount)| amount).sum();
                prop_assert_eq!(sums.recent(), expected);
                prop_assert_eq!(*sums.ever(), all.iter().map(|(_, amount)| amount).sum::<u64>());
            }
        }
    }
}
