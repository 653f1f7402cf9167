//! Anybody, with equal chances.

use plimsoll_core::Nanos;
use plimsoll_load::{Ask, Choice, Placement, Reason, View};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

#[derive(Debug)]
pub struct Random {
    draws: ChaCha8Rng,
}

impl Random {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random { draws: ChaCha8Rng::seed_from_u64(seed) }
    }
}

impl Placement for Random {
    fn place(&mut self, _now: Nanos, view: &View<'_>, _ask: &Ask<'_>) -> Option<Choice> {
        let index = self.draws.random_range(0..view.candidates.len());
        Some(Choice { index, reason: Reason::OtherRule })
    }

    fn minds_tiers(&self) -> bool {
        false
    }
}
