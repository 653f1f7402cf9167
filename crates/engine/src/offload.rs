//! What falls out of the KV pages goes to a larger, slower tier, and comes back when a prompt wants it.
//!
//! A conversation returns after its pages were evicted: computing a prefix of 100,000 tokens again costs seconds, reading
//! it back costs what copying costs. So an evicted page is offered to a [`KvTier`] under its chain digest, and a request
//! whose prefix the pages lack asks there before it computes.
//!
//! Nothing here may hold up a step, and nothing here may be believed. The step loop copies a page into a buffer, or
//! takes one out, and all else is the [`worker`]'s: checksums, calls of the tier, waiting. Buffers are bounded: a page
//! that finds none is lost, and counted. A request waits for its load no longer than its deadline and computes what has not
//! come. Every page that comes is checked; one that is not what was put is dropped, counted and computed.
//!
//! [`tier`] is the interface, [`memory`] the tier in this process's memory, [`desk`] what lies between the two threads,
//! [`offloader`] the step loop's end, [`load`] one request's load.

pub(crate) mod desk;
pub(crate) mod load;
pub mod memory;
pub(crate) mod offloader;
pub mod tier;
pub(crate) mod worker;

#[cfg(test)]
pub(crate) mod tests;

pub use memory::{MemoryTier, PER_PAGE_BYTES};
pub use offloader::OffloadStats;
pub use tier::{KvTier, PageKey, PageSlot, TierUsage};

use std::sync::Arc;
use std::time::Duration;

/// Where evicted KV goes.
#[derive(Clone, Debug)]
pub struct OffloadConfig {
    /// Memory for evicted pages, per rank. 0: they are forgotten, unless there is a [`Self::tier`].
    pub bytes: usize,
    /// In place of memory; the ranks share it.
    pub tier: Option<Arc<dyn KvTier>>,
    /// How long a request waits for pages before it computes them.
    pub deadline: Duration,
    /// Bytes on their way to the tier, and as many on their way from it, per rank; at least a few pages.
    pub buffer_bytes: usize,
}

impl Default for OffloadConfig {
    fn default() -> Self {
        OffloadConfig { bytes: 0, tier: None, deadline: Duration::from_secs(1), buffer_bytes: 32 << 20 }
    }
}

impl OffloadConfig {
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.bytes > 0 || self.tier.is_some()
    }

    /// Memory that is too small for one page of this size.
    pub(crate) fn is_too_small(&self, page_bytes: usize) -> bool {
        self.tier.is_none() && self.bytes > 0 && self.bytes < page_bytes + PER_PAGE_BYTES
    }

    /// The tier of one rank.
    pub(crate) fn open(&self) -> Option<Arc<dyn KvTier>> {
        let memory = || -> Arc<dyn KvTier> { Arc::new(MemoryTier::new(self.bytes)) };
        self.tier.clone().or_else(|| (self.bytes > 0).then(memory))
    }
}
