//! Places below an engine's own memory that keep prefixes: the host's, and a pool for the whole fleet.
//!
//! What an engine computes is written through, as SGLang's HiCache and Mooncake's store do; each place is a prefix cache of its own with
//! the same order of eviction. A prompt that finds blocks there loads them instead of computing them where that is faster, over a link
//! that one engine's loads share.

use crate::prefix_cache::PrefixCache;
use plimsoll_core::{BlockName, Nanos};
use std::cell::RefCell;
use std::rc::Rc;

/// Size and speed of a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierConfig {
    pub capacity_tokens: u64,
    /// Of one engine's link to it.
    pub bytes_per_s: f64,
    /// Before the first byte.
    pub latency: Nanos,
}

/// One place.
#[derive(Debug)]
pub struct Tier {
    cache: PrefixCache,
    capacity_blocks: u64,
    pub(crate) config: TierConfig,
}

/// Shared by those who use it.
pub type SharedTier = Rc<RefCell<Tier>>;

impl Tier {
    #[must_use]
    pub fn new(config: TierConfig, block_tokens: u64) -> Self {
        Tier { cache: PrefixCache::default(), capacity_blocks: config.capacity_tokens / block_tokens.max(1), config }
    }

    #[must_use]
    pub fn shared(config: TierConfig, block_tokens: u64) -> SharedTier {
        Rc::new(RefCell::new(Tier::new(config, block_tokens)))
    }

    /// Leading blocks of a chain that are here.
    #[must_use]
    pub fn probe(&self, chain: &[BlockName]) -> u64 {
        self.cache.probe(chain).blocks
    }

    /// A chain was used or computed: all of it is here now, what was not used for longest is not. Returns how many of its
    /// blocks were here; names that had to go are appended to `gone`.
    pub fn keep(&mut self, chain: &[BlockName], gone: Option<&mut Vec<BlockName>>) -> u64 {
        let chain = &chain[..chain.len().min(self.capacity_blocks as usize)];
        let known = self.cache.probe(chain).blocks;
        let end = self.cache.pin(chain, known);
        let committed = self.cache.commit(end, chain, known as usize);
        self.cache.release(committed.end);
        self.cache.evict(self.cache.blocks().saturating_sub(self.capacity_blocks), gone);
        known
    }

    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.cache.blocks()
    }
}

/// One engine's link to a place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// When what was asked for before is through.
    free_fs: u128,
}

impl Link {
    /// When these bytes are there, asked for at `now_fs`.
    pub(crate) fn done(&self, now_fs: u128, bytes: f64, config: &TierConfig) -> u128 {
        let span_fs = (bytes / config.bytes_per_s.max(1.0) * 1e15) as u128 + u128::from(config.latency.0) * 1_000_000;
        self.free_fs.max(now_fs) + span_fs
    }

    pub(crate) fn take(&mut self, until_fs: u128) {
        self.free_fs = until_fs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::name;

    fn chain(family: u64, blocks: u64) -> Vec<BlockName> {
        let mut previous = family;
        let next = |id| {
            previous = name(previous, id);
            previous
        };
        (0..blocks).map(next).collect()
    }

    #[test]
    fn what_was_not_used_for_longest_goes() {
        let config = TierConfig { capacity_tokens: 100, bytes_per_s: 1e9, latency: Nanos::ZERO };
        let mut tier = Tier::new(config, 10);
        assert_eq!(tier.keep(&chain(1, 6), None), 0);
        assert_eq!(tier.keep(&chain(2, 4), None), 0);
        assert_eq!(tier.keep(&chain(1, 6), None), 6);
        let mut gone = Vec::new();
        assert_eq!(tier.keep(&chain(3, 3), Some(&mut gone)), 0);
        assert_eq!(gone, [chain(2, 4)[3], chain(2, 4)[2], chain(2, 4)[1]]);
        assert_eq!((tier.probe(&chain(1, 6)), tier.probe(&chain(2, 4)), tier.blocks()), (6, 1, 10));
        // Longer than the whole place: its head is kept.
        tier.keep(&chain(4, 40), None);
        assert_eq!((tier.probe(&chain(4, 40)), tier.blocks()), (10, 10));
    }

    #[test]
    fn loads_of_one_engine_wait_for_each_other() {
        let config = TierConfig { capacity_tokens: 0, bytes_per_s: 1e9, latency: Nanos::from_millis(1) };
        let mut link = Link::default();
        let ms = 1_000_000_000_000;
        let first = link.done(5 * ms, 2e6, &config);
        assert_eq!(first, 8 * ms);
        link.take(first);
        assert_eq!(link.done(6 * ms, 1e6, &config), 10 * ms);
        assert_eq!(link.done(20 * ms, 1e6, &config), 22 * ms);
    }
}
