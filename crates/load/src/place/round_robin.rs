//! One target after the other, per model and role: prefill and decode engines go round each by themselves, since their choices
//! come in turns and a cursor of both would send each of them to its first engine for ever.
//!
//! The cursor is the last target, not an index: the next is the smallest target above it, so that instances that
//! come, go or are excluded shift nobody else's turn.

use super::{Choice, Placement, Reason, State, View};
use crate::ask::Ask;
use plimsoll_core::{LegRole, Nanos, Target};
use std::collections::BTreeMap;

/// Cursors kept; past it the map starts anew, which costs a turn and no more.
const MAX_MODELS: usize = 1_024;

#[derive(Debug, Default)]
pub struct RoundRobin {
    last: BTreeMap<String, Cursors>,
}

/// Who was chosen last, by [`LegRole`].
type Cursors = [Option<Target>; 3];

const fn at(role: LegRole) -> usize {
    match role {
        LegRole::Unified => 0,
        LegRole::Prefill => 1,
        LegRole::Decode => 2,
    }
}

/// A target as one number of the same order.
const fn order(target: Target) -> u64 {
    (target.instance.0 as u64) << 16 | target.rank.0 as u64
}

impl RoundRobin {
    /// As it stands after this choice for this model, whichever the role.
    pub(super) fn resume(model: &str, last: Option<Target>) -> Self {
        RoundRobin { last: BTreeMap::from([(model.to_owned(), [last; 3])]) }
    }
}

impl Placement for RoundRobin {
    fn place(&mut self, _now: Nanos, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        let last = self.last.get(view.model).and_then(|cursors| cursors[at(ask.role)]);
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
        } else if let Some(cursors) = self.last.get_mut(view.model) {
            cursors[at(ask.role)] = Some(target);
        } else {
            if self.last.len() >= MAX_MODELS {
                self.last.clear();
            }
            let mut cursors = Cursors::default();
            cursors[at(ask.role)] = Some(target);
            self.last.insert(view.model.to_owned(), cursors);
        }
        let reason = if view.candidates.len() == 1 { Reason::Only } else { Reason::RoundRobin };
        Some(Choice { index, reason })
    }

    fn state(&self, model: &str, role: LegRole) -> Option<State> {
        Some(State::Last(self.last.get(model).and_then(|cursors| cursors[at(role)])))
    }
}
