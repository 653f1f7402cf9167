//! Least score over all candidates, near ties drawn. With a weight of zero for others the score is the wait.
//!
//! Peers let the first index win ties, so that all sessions of an idle fleet land on one worker (`gateways.md` §3.3,
//! affinity row). A draw among those within the window costs at most that window and spreads several gateways that
//! see the same fleet.

use super::{Choice, Placement, Reason, State, TIE_FLOOR_S, View};
use crate::ask::Ask;
use plimsoll_core::{LegRole, Nanos};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[derive(Debug)]
pub struct LeastScore {
    draws: ChaCha8Rng,
    /// Given when there was no tie.
    reason: Reason,
}

/// Scores up to this one are ties of the best.
pub(crate) fn bound(best_s: f64, tie_fraction: f64) -> f64 {
    best_s + best_s * tie_fraction.max(0.0) + TIE_FLOOR_S
}

impl LeastScore {
    #[must_use]
    pub fn new(seed: u64, reason: Reason) -> Self {
        LeastScore { draws: ChaCha8Rng::seed_from_u64(seed), reason }
    }

    /// As it stands after so many drawn words.
    pub(super) fn resume(seed: u64, reason: Reason, drawn: u64) -> Self {
        let mut rule = LeastScore::new(seed, reason);
        rule.draws.set_word_pos(u128::from(drawn));
        rule
    }
}

impl Placement for LeastScore {
    fn place(&mut self, _now: Nanos, view: &View<'_>, _ask: &Ask<'_>) -> Option<Choice> {
        if view.candidates.len() == 1 {
            return Some(Choice { index: 0, reason: Reason::Only });
        }
        let best =
            view.candidates.iter().fold(f64::INFINITY, |least, c| if c.score_s < least { c.score_s } else { least });
        let bound = bound(best, view.tie_fraction);
        let tied = || view.candidates.iter().enumerate().filter(|(_, c)| c.score_s <= bound);
        let (nth, reason) = match tied().count() {
            0 | 1 => (0, self.reason),
            n => (self.draws.random_range(0..n), Reason::TieDraw),
        };
        tied().nth(nth).map(|(index, _)| Choice { index, reason })
    }

    fn state(&self, _model: &str, _role: LegRole) -> Option<State> {
        u64::try_from(self.draws.get_word_pos()).ok().map(State::Drawn)
    }
}
