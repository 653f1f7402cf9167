//! One target after the other, per model.
//!
//! The cursor is the last target, not an index: the next is the smallest target above it, so that instances that
//! come, go or are excluded shift nobody else's turn.

use super::{Choice, Placement, Reason, State, View};
use crate::ask::Ask;
use plimsoll_core::{Nanos, Target};
use std::collections::BTreeMap;

/// Cursors kept; past it the map starts anew, which costs a turn and no more.
const MAX_MODELS: usize = 1_024;

#[derive(Debug, Default)]
pub struct RoundRobin {
    last: BTreeMap<String, Target>,
}

/// A target as one number of the same order.
const fn order(target: Target) -> u64 {
    (target.instance.0 as u64) << 16 | target.rank.0 as u64
}

impl RoundRobin {
    /// As it stands after this choice for this model.
    pub(super) fn resume(model: &str, last: Option<Target>) -> Self {
        RoundRobin { last: last.map(|last| (model.to_owned(), last)).into_iter().collect() }
    }
}

impl Placement for RoundRobin {
    fn place(&mut self, _now: Nanos, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        let last = self.last.get(view.model).copied();
        // The smallest above the last, else the smallest: distance from the one after the last, going round.
        let first = last.map_or(0, |last| order(last) + 1);
        let distance = |target: Target| order(target).wrapping_sub(first);
        let mut next = (view.candidates.first()?.target, 0);
        for (index, candidate) in view.candidates.iter().enumerate() {
            if distance(candidate.target) < distance(next.0) {
                next = (candidate.target, index);
            }
        }
        let (target, index) = next;
        if ask.attempt > 0 {
            // A second try takes whoever is next and costs nobody a turn; else a failing target's turn would come
            // again right after it.
        } else if let Some(cursor) = self.last.get_mut(view.model) {
            *cursor = target;
        } else {
            if self.last.len() >= MAX_MODELS {
                self.last.clear();
            }
            self.last.insert(view.model.to_owned(), target);
        }
        let reason = if view.candidates.len() == 1 { Reason::Only } else { Reason::RoundRobin };
        Some(Choice { index, reason })
    }

    fn state(&self, model: &str) -> Option<State> {
        Some(State::Last(self.last.get(model).copied()))
    }
}
