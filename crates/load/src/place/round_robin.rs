//! One target after the other, per model.
//!
//! The cursor is the last target, not an index: the next is the smallest target above it, so that instances that
//! come, go or are excluded shift nobody else's turn.

use super::{Choice, Placement, Reason, View};
use crate::ask::Ask;
use plimsoll_core::{Nanos, Target};
use std::collections::BTreeMap;

/// Cursors kept; past it the map starts anew, which costs a turn and no more.
const MAX_MODELS: usize = 1_024;

#[derive(Debug, Default)]
pub struct RoundRobin {
    last: BTreeMap<String, Target>,
}

impl Placement for RoundRobin {
    fn place(&mut self, _now: Nanos, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        let last = self.last.get(view.model).copied();
        let smallest = |above: Option<Target>| {
            view.candidates
                .iter()
                .enumerate()
                .filter(|(_, c)| above.is_none_or(|a| c.target > a))
                .min_by_key(|(_, c)| c.target)
                .map(|(index, c)| (index, c.target))
        };
        let (index, target) = smallest(last).or_else(|| smallest(None))?;
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
}
