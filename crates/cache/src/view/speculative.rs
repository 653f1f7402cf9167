//! Blocks that a routing decision will bring about, until an event says so or the time is over.
//!
//! Between a choice and the first event lie a prefill and an event batch: a second or two in which the next turn of the same session, or nine
//! others with the same document, would find nothing. Every decision writes down the part of its chain that the target does not
//! hold, with one time of expiry: ancestors never expire before what stands on them, so that depth can be found by halving.

use plimsoll_core::{Nanos, Target};
use std::collections::{BTreeMap, VecDeque};

/// Most blocks written down at once; older decisions give way.
const MOST_BLOCKS: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Speculative {
    /// When a block of a target stops to count.
    until: BTreeMap<(Target, u64), Nanos>,
    /// Decisions in order of time.
    order: VecDeque<(Nanos, Target, Vec<u64>)>,
    /// Decisions alive per target.
    alive: BTreeMap<Target, u32>,
}

impl Speculative {
    pub(super) fn add(&mut self, until: Nanos, target: Target, blocks: &[u64]) {
        if blocks.is_empty() {
            return;
        }
        for block in blocks {
            self.until.insert((target, *block), until);
        }
        self.order.push_back((until, target, blocks.to_vec()));
        *self.alive.entry(target).or_default() += 1;
        while self.until.len() > MOST_BLOCKS {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let Some((until, target, blocks)) = self.order.pop_front() else { return };
        for block in blocks {
            // A later decision may have renewed it.
            if self.until.get(&(target, block)) == Some(&until) {
                self.until.remove(&(target, block));
            }
        }
        if let Some(alive) = self.alive.get_mut(&target) {
            *alive -= 1;
            if *alive == 0 {
                self.alive.remove(&target);
            }
        }
    }

    pub(super) fn expire(&mut self, now: Nanos) {
        while self.order.front().is_some_and(|(until, ..)| *until <= now) {
            self.drop_first();
        }
    }

    /// A block is there no more, or will not come.
    pub(super) fn gone(&mut self, target: Target, block: u64) {
        if self.alive.contains_key(&target) {
            self.until.remove(&(target, block));
        }
    }

    pub(super) fn forget(&mut self, target: Target) {
        self.until.retain(|(held, _), _| *held != target);
        self.order.retain(|(_, held, _)| *held != target);
        self.alive.remove(&target);
    }

    /// Targets that may have something.
    pub(super) fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.alive.keys().copied()
    }

    /// Depth of a chain on a target that is known to have its first `from` blocks.
    pub(super) fn depth(&self, now: Nanos, target: Target, chain: &[u64], from: usize) -> usize {
        let rest = chain.get(from..).unwrap_or_default();
        let counts = |block: &u64| self.until.get(&(target, *block)).is_some_and(|until| *until > now);
        from + rest.partition_point(counts)
    }
}
