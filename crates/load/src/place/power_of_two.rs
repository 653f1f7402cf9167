//! The better of two distinct draws (Mitzenmacher 2001): nearly as even as looking at all, and immune to a shared
//! wrong belief about one instance, because no instance is drawn by more than its share of requests.
//!
//! Compared by the score that the ledger gives, never by polled load alone, which herds between polls (`gateways.md` §1.1).

use super::{Choice, Placement, Reason, State, View};
use crate::ask::Ask;
use plimsoll_core::{LegRole, Nanos};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[derive(Debug)]
pub struct PowerOfTwo {
    draws: ChaCha8Rng,
}

impl PowerOfTwo {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        PowerOfTwo { draws: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// As it stands after so many drawn words.
    pub(super) fn resume(seed: u64, drawn: u64) -> Self {
        let mut rule = PowerOfTwo::new(seed);
        rule.draws.set_word_pos(u128::from(drawn));
        rule
    }
}

impl Placement for PowerOfTwo {
    fn place(&mut self, _now: Nanos, view: &View<'_>, _ask: &Ask<'_>) -> Option<Choice> {
        let n = view.candidates.len();
        if n < 2 {
            return (n == 1).then_some(Choice { index: 0, reason: Reason::Only });
        }
        let first = self.draws.random_range(0..n);
        let second = self.draws.random_range(0..n - 1);
        let second = if second >= first { second + 1 } else { second };
        // Equal scores: the first draw, which is uniform itself.
        let better = view.candidates[second].score_s < view.candidates[first].score_s;
        Some(Choice { index: if better { second } else { first }, reason: Reason::BetterOfTwo })
    }

    fn state(&self, _model: &str, _role: LegRole) -> Option<State> {
        u64::try_from(self.draws.get_word_pos()).ok().map(State::Drawn)
    }
}
