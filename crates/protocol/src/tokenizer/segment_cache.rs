//! Token ids of text that has been tokenised before.
//!
//! A session sends its whole history with every turn. What lies between two added tokens, mostly one message, is found
//! here by a hash of its bytes, so that a turn costs that hash and the tokens of what is new.
//!
//! Keys are 128 bits of SHA-256 over a secret of this process, the tokenizer's own bytes, the owner and the text: nobody can make two
//! texts meet. The owner is the tenant. How fast an answer comes tells whether a text is known, so tenants share no entries, at the
//! price of a system prompt being kept once for each.
//!
//! Memory is bounded: least recently used entries go first. Locks are held for a look into a map, never while tokens are made or copied.

use super::cuts::PART_BYTES;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(test)]
mod tests;

/// What an entry takes besides its ids: slot, map entry with its spare room, counts of the shared list.
const ENTRY_BYTES: usize = 192;
const SHARDS: usize = 16;
/// End of a list.
const NONE: u32 = u32::MAX;

/// Names one text of one owner under one tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentKey(u128);

/// Makes keys for one owner and tokenizer: the secret part is hashed once.
#[derive(Clone)]
pub struct Keyer(Sha256);

impl Keyer {
    /// `kind` tells apart what one text can become in different places.
    #[must_use]
    pub fn key(&self, kind: u8, text: &[u8]) -> SegmentKey {
        let mut hash = self.0.clone();
        hash.update([kind]);
        hash.update(text);
        let digest = hash.finalize();
        SegmentKey(digest.iter().take(16).fold(0, |key, byte| key << 8 | u128::from(*byte)))
    }
}

impl std::fmt::Debug for Keyer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keyer")
    }
}

/// Ids by text. Shared by all models and threads.
pub struct SegmentCache {
    secret: [u8; 32],
    part_bytes: usize,
    shards: Vec<Mutex<Shard>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// How a cache stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCacheSize {
    /// Memory, counted with what entries take besides their ids.
    pub bytes: u64,
    pub entries: u64,
}

impl std::fmt::Debug for SegmentCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentCache").field("size", &self.size()).finish_non_exhaustive()
    }
}

impl SegmentCache {
    /// Takes at most `capacity_bytes`; with 0 nothing is kept. `secret` is random and told to nobody.
    #[must_use]
    pub fn new(capacity_bytes: u64, secret: [u8; 32]) -> Self {
        let each = usize::try_from(capacity_bytes).unwrap_or(usize::MAX) / SHARDS;
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::new(each))).collect();
        SegmentCache { secret, part_bytes: PART_BYTES, shards, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    /// The same with long texts in parts of another length.
    #[must_use]
    pub fn in_parts_of(self, part_bytes: usize) -> Self {
        SegmentCache { part_bytes, ..self }
    }

    /// Long texts are kept in parts of at least so many bytes, where they may be cut.
    #[must_use]
    pub fn part_bytes(&self) -> usize {
        self.part_bytes
    }

    /// Keys of `owner` under the tokenizer with this fingerprint.
    #[must_use]
    pub fn keyer(&self, tokenizer: &[u8; 32], owner: &str) -> Keyer {
        let owner = Sha256::digest(owner.as_bytes());
        let mut hash = Sha256::new();
        hash.update(self.secret);
        hash.update(tokenizer);
        hash.update(owner);
        // To the end of a block: what follows starts from this state.
        hash.update([0; 32]);
        Keyer(hash)
    }

    #[must_use]
    pub fn get(&self, key: SegmentKey) -> Option<Arc<[u32]>> {
        let found = self.shard(key).get(key);
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Relaxed);
        found
    }

    /// Keeps ids; what is larger than a sixteenth of the whole is not worth what it would push out.
    pub fn put(&self, key: SegmentKey, ids: &[u32]) {
        if bytes_of(ids) <= self.shard(key).capacity_bytes {
            let ids: Arc<[u32]> = ids.into();
            self.shard(key).put(key, ids);
        }
    }

    /// Changes the bound; what is too much goes at once.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        let each = usize::try_from(capacity_bytes).unwrap_or(usize::MAX) / SHARDS;
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.capacity_bytes = each;
            shard.shrink();
        }
    }

    #[must_use]
    pub fn size(&self) -> SegmentCacheSize {
        self.shards.iter().map(lock).fold(SegmentCacheSize::default(), |sum, shard| SegmentCacheSize {
            bytes: sum.bytes + shard.bytes as u64,
            entries: sum.entries + shard.map.len() as u64,
        })
    }

    /// Texts that were found, and that were not.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.hits.load(Relaxed), self.misses.load(Relaxed))
    }

    fn shard(&self, key: SegmentKey) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(key.0 >> 64) as usize % SHARDS])
    }
}

/// Nothing inside a lock can panic halfway.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes_of(ids: &[u32]) -> usize {
    size_of_val(ids) + ENTRY_BYTES
}

/// One part of the keys: a map into slots, which are a list from the newest to the oldest.
struct Shard {
    capacity_bytes: usize,
    bytes: usize,
    map: HashMap<SegmentKey, u32, BuildHasherDefault<FirstBytes>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
}

struct Slot {
    key: SegmentKey,
    ids: Arc<[u32]>,
    newer: u32,
    older: u32,
}

impl Shard {
    fn new(capacity_bytes: usize) -> Self {
        Shard {
            capacity_bytes,
            bytes: 0,
            map: HashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    fn get(&mut self, key: SegmentKey) -> Option<Arc<[u32]>> {
        let at = *self.map.get(&key)?;
        if self.newest != at {
            self.unlink(at);
            self.link(at);
        }
        Some(Arc::clone(&self.slots[at as usize].ids))
    }

    fn put(&mut self, key: SegmentKey, ids: Arc<[u32]>) {
        if self.map.contains_key(&key) {
            // Somebody else was faster, with the same ids.
            return;
        }
        self.bytes += bytes_of(&ids);
        let slot = Slot { key, ids, newer: NONE, older: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.map.insert(key, at);
        self.link(at);
        self.shrink();
    }

    /// Takes the oldest out until the rest fits.
    fn shrink(&mut self) {
        while self.bytes > self.capacity_bytes && self.oldest != NONE {
            let at = self.oldest;
            self.unlink(at);
            let slot = &mut self.slots[at as usize];
            self.bytes -= bytes_of(&slot.ids);
            slot.ids = Arc::new([]);
            let key = slot.key;
            self.map.remove(&key);
            self.free.push(at);
        }
    }

    fn unlink(&mut self, at: u32) {
        let Slot { newer, older, .. } = self.slots[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }

    fn link(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        let slot = &mut self.slots[at as usize];
        (slot.newer, slot.older) = (NONE, before);
        match before {
            NONE => self.oldest = at,
            before => self.slots[before as usize].newer = at,
        }
    }
}

/// Keys are hashes already.
#[derive(Default)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte));
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }
}
