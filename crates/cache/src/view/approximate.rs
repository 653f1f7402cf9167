//! Targets that tell nothing of their caches: what they hold is taken from what was sent there.
//!
//! An engine without KV events still caches as an LRU cache does, so a shadow of its size, fed with the routing decisions, says what it
//! probably holds; what leaves the shadow leaves the index. It is a guess: other clients of the engine are not seen, nor are answers, and the
//! engine may keep less than it says. So it is marked, held against `cached_tokens` of every answer like any other
//! belief, and loses its credit when it is wrong; each time for longer, since no event will ever correct it.

use super::publisher::Publisher;
use super::{Family, FleetView};
use crate::chain::NameFormat;
use crate::funnel::RunStack;
use plimsoll_core::{EngineKind, Nanos, Target};

/// Blocks of fewer tokens are joined: the name of a block costs as much as the block of any size.
const FEWEST_BLOCK_TOKENS: u32 = 16;

/// The assumed cache of a target.
#[derive(Debug)]
pub(super) struct Approximate {
    shadow: RunStack,
    pub(super) capacity_tokens: u64,
}

impl FleetView {
    /// A target that tells nothing, and can hold so many tokens. `page_tokens`: the grain of its hits, where it is known.
    /// Nothing changes for one that is known with the same capacity.
    pub fn add_approximate(
        &mut self,
        target: Target,
        kind: EngineKind,
        page_tokens: Option<u32>,
        capacity_tokens: u64,
    ) {
        let page = page_tokens.unwrap_or(FEWEST_BLOCK_TOKENS).max(1);
        let block_tokens = page.saturating_mul(FEWEST_BLOCK_TOKENS.div_ceil(page));
        let family = Family { format: NameFormat::Own, block_tokens };
        let known = self.publishers.get(&target).map(|known| {
            let capacity = known.approximate.as_ref().map(|approximate| approximate.capacity_tokens);
            (capacity, known.family)
        });
        if known == Some((Some(capacity_tokens), Some(family))) {
            return;
        }
        self.remove(target);
        self.add(target, kind, None);
        if let Some(publisher) = self.publishers.get_mut(&target) {
            publisher.family = Some(family);
            let blocks = (capacity_tokens / u64::from(block_tokens)).min(self.config.max_blocks as u64);
            publisher.approximate = Some(Approximate { shadow: RunStack::new(blocks).telling(), capacity_tokens });
        }
    }

    /// The assumed cache of a target holds more or less than was thought: what does not fit any more leaves, the rest stays.
    pub fn resize(&mut self, target: Target, capacity_tokens: u64) {
        let Some(mut publisher) = self.publishers.remove(&target) else { return };
        if let (Some(approximate), Some(family)) = (&mut publisher.approximate, publisher.family) {
            let blocks = capacity_tokens / u64::from(family.block_tokens.max(1));
            approximate.capacity_tokens = capacity_tokens;
            approximate.shadow.limit(blocks.min(self.config.max_blocks as u64), usize::MAX);
            self.forget_dropped(&mut publisher, family);
        }
        self.publishers.insert(target, publisher);
    }

    /// What the shadow gave up leaves the index.
    fn forget_dropped(&mut self, publisher: &mut Publisher, family: Family) {
        let (Some(approximate), Some(index)) = (&mut publisher.approximate, self.families.get_mut(&family)) else {
            return;
        };
        for name in approximate.shadow.take_dropped() {
            let removed = index.remove(publisher.device, name);
            publisher.unknown_removals += u64::from(!removed);
        }
    }

    /// The target has lost its cache, or may have: it was restarted. Those that tell say so themselves.
    pub fn lost(&mut self, target: Target) {
        let Some(mut publisher) = self.publishers.remove(&target) else { return };
        self.start_over(&mut publisher);
        self.publishers.insert(target, publisher);
    }

    pub(super) fn start_over(&mut self, publisher: &mut Publisher) {
        let Some(approximate) = &mut publisher.approximate else { return };
        approximate.shadow = RunStack::new(approximate.shadow.max_blocks()).telling();
        self.clear(publisher);
    }

    /// The target will hold this chain, and what it gives up for it leaves the index.
    pub(super) fn assume(&mut self, now: Nanos, target: Target, family: Family, chain: &[u64]) {
        let Some(mut publisher) = self.publishers.remove(&target) else { return };
        if let Some(approximate) = &mut publisher.approximate {
            let held = approximate.shadow.touch(chain, now).iter().map(|piece| piece.blocks).sum::<u64>() as usize;
            let index = self.families.entry(family).or_default();
            let parent = held.checked_sub(1).map(|above| chain[above]);
            publisher.unplaced += index.store(publisher.device, parent, &chain[held..]).unplaced;
            self.forget_dropped(&mut publisher, family);
            if self.blocks() > self.config.max_blocks {
                self.overflows += 1;
                self.start_over(&mut publisher);
                publisher.distrust(now, &self.config);
            }
        }
        self.publishers.insert(target, publisher);
    }
}

#[cfg(test)]
mod tests;
