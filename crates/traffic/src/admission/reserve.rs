//! How many engines long prefills of the lower classes must leave alone: what the high class asks for, and as much more as its promises
//! have shown to be needed.
//!
//! From demand alone that cannot be known: an engine without long prefills that is two thirds busy keeps nearly every promise of two seconds and
//! one in two of 200 ms, and engines differ in how they mix prefills. So a promise that was not kept takes one more engine away from long prefills, and
//! a time without one gives it back.

use plimsoll_core::Nanos;

/// Of the part of the engines that the high class asks for: it does not come evenly.
const UNEVEN: f64 = 1.5;
/// Below this part of an engine none is kept: a few short requests are no reason to let one stand idle.
const WORTH_ONE: f64 = 0.1;
/// A broken promise shows what was decided a while ago; the next engine is taken when this one has had time to tell.
const RAISE_EVERY: Nanos = Nanos::from_secs(2);
/// Given back after this time without a broken promise.
const CALM: Nanos = Nanos::from_secs(15);

/// The part beyond demand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserve {
    extra: usize,
    /// When it was raised last, and when a promise was broken or an engine given back last.
    raised: Option<Nanos>,
    restless: Nanos,
}

impl Reserve {
    /// A promise to the high class was not kept. No more than `most` engines are kept beyond demand.
    pub(crate) fn missed(&mut self, now: Nanos, most: usize) {
        self.restless = self.restless.max(now);
        if self.raised.is_none_or(|at| now.since(at) >= RAISE_EVERY) && self.extra < most {
            self.extra += 1;
            self.raised = Some(now);
        }
    }

    pub(crate) fn update(&mut self, now: Nanos) {
        while self.extra > 0 && now.since(self.restless) >= CALM {
            self.extra -= 1;
            self.restless = self.restless + CALM;
        }
    }

    /// Most long prefills at once on so many engines, of which the high class asks for `demand` (a number of engines). Always one.
    pub(crate) fn most_long(&self, engines: usize, demand: f64) -> usize {
        let asked = demand * UNEVEN;
        let kept = if asked < WORTH_ONE { 0 } else { asked.max(1.0) as usize };
        engines.saturating_sub(kept.saturating_add(self.extra)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_promises_take_engines_one_by_one_and_calm_gives_them_back() {
        let second = Nanos::from_secs;
        let mut reserve = Reserve::default();
        assert_eq!(reserve.most_long(8, 0.5), 7);
        assert_eq!(reserve.most_long(8, 1.2), 7);
        assert_eq!(reserve.most_long(2, 0.01), 2, "a few short requests need no engine to themselves");
        for at in [100, 100, 101] {
            reserve.missed(second(at), 6);
        }
        assert_eq!(reserve.most_long(8, 0.5), 6, "a burst of misses has one cause");
        reserve.missed(second(102), 6);
        assert_eq!(reserve.most_long(8, 0.5), 5);
        (0..100).for_each(|at| reserve.missed(second(104 + 2 * at), 6));
        assert_eq!(reserve.most_long(8, 0.5), 1, "never none");
        assert_eq!(reserve.most_long(1, 3.0), 1);
        reserve.update(second(302 + 14));
        assert_eq!(reserve.most_long(8, 0.5), 1);
        reserve.update(second(302 + 31));
        assert_eq!(reserve.most_long(8, 0.5), 3);
        reserve.update(second(1_000));
        assert_eq!(reserve.most_long(8, 0.5), 7);
    }
}
