//! A place for KV pages below the engine's own.

use plimsoll_cache::Digest;
use std::fmt;

/// Under what a page is kept. Equal keys mean equal bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKey {
    /// Digest of weights, kernels and page shape: what else decides the bytes.
    pub model: Digest,
    /// Of all tokens up to the page's end, seeded with salt, extra key and adapter: SGLang's key of its storage.
    pub chain: Digest,
}

/// Room for one page that is read.
#[derive(Debug)]
pub struct PageSlot<'a> {
    /// As long as a page.
    pub bytes: &'a mut [u8],
    /// As it was put with the page; the tier sets it.
    pub crc: u32,
}

/// What a tier holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierUsage {
    pub pages: usize,
    pub bytes: usize,
    /// `None`: not known.
    pub capacity_bytes: Option<usize>,
}

/// Keeps pages as long as it can. Called by a worker thread of the engine only, so a call may block; it must not panic, and
/// what goes wrong inside is a page that is not there. Pages that hang together are put leaf first.
pub trait KvTier: fmt::Debug + Send + Sync {
    /// All that leaves it unasked is told through `gone` of [`Self::put`], and nobody else puts anything in. The engine
    /// then knows without asking what is there and announces it as KV events. Otherwise it asks every time.
    fn tells_all(&self) -> bool;

    /// Keeps a page, or touches one that it has. `gone` takes the keys of what had to make room. False when it is not kept.
    fn put(&self, key: &PageKey, page: &[u8], crc: u32, gone: &mut Vec<PageKey>) -> bool;

    /// The page was used: it is to be kept longer.
    fn touch(&self, _key: &PageKey) {}

    /// How many of these pages it has, from the first on without a hole.
    fn exists_prefix(&self, keys: &[PageKey]) -> usize;

    /// Reads pages from the first on into `into`, which is as long as `keys`, up to the first that is not there. Returns how
    /// many were read.
    fn get(&self, keys: &[PageKey], into: &mut [PageSlot<'_>]) -> usize;

    /// Forgets a page: it is not what was put.
    fn remove(&self, key: &PageKey);

    /// Forgets everything that this engine put. A tier that others share may keep it.
    fn clear(&self);

    fn usage(&self) -> TierUsage;
}

/// CRC-32C over key and page, so that bytes in the wrong place are found as well as wrong bytes.
#[must_use]
pub fn checksum(key: &PageKey, page: &[u8]) -> u32 {
    let key = crc32c::crc32c_append(crc32c::crc32c(&key.model), &key.chain);
    crc32c::crc32c_append(key, page)
}
