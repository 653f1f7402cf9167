//! A tier in this process's memory: what a host's memory is to a GPU.
//!
//! Bounded in bytes; the least recently used page goes first. Pages are put leaf first and touched leaf first when they
//! are read, so a page is always older here than the pages before it in its prompt: "the oldest" is a leaf, and no page is kept
//! whose start is gone.

use super::tier::{KvTier, PageKey, PageSlot, TierUsage};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

#[cfg(test)]
mod tests;

/// What a page costs besides its bytes: key, places in both maps, allocation.
pub const PER_PAGE_BYTES: usize = 256;

#[derive(Debug)]
pub struct MemoryTier {
    capacity_bytes: usize,
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    pages: HashMap<PageKey, Kept>,
    /// By turn of last use.
    order: BTreeMap<u64, PageKey>,
    turn: u64,
    bytes: usize,
}

struct Kept {
    bytes: Box<[u8]>,
    crc: u32,
    turn: u64,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kept({} bytes)", self.bytes.len())
    }
}

impl MemoryTier {
    /// Holds at most this many bytes, [`PER_PAGE_BYTES`] counted for each page.
    #[must_use]
    pub fn new(capacity_bytes: usize) -> Self {
        MemoryTier { capacity_bytes, shelf: Mutex::default() }
    }
}

impl Shelf {
    fn touch(&mut self, key: &PageKey) -> bool {
        let Some(kept) = self.pages.get_mut(key) else { return false };
        self.turn += 1;
        self.order.remove(&kept.turn);
        self.order.insert(self.turn, *key);
        kept.turn = self.turn;
        true
    }

    fn remove(&mut self, key: &PageKey) -> Option<Kept> {
        let kept = self.pages.remove(key)?;
        self.order.remove(&kept.turn);
        self.bytes -= kept.bytes.len() + PER_PAGE_BYTES;
        Some(kept)
    }
}

impl KvTier for MemoryTier {
    fn tells_all(&self) -> bool {
        true
    }

    fn put(&self, key: &PageKey, page: &[u8], crc: u32, gone: &mut Vec<PageKey>) -> bool {
        let cost = page.len() + PER_PAGE_BYTES;
        let mut shelf = self.shelf.lock();
        if shelf.touch(key) {
            return true;
        }
        if cost > self.capacity_bytes {
            return false;
        }
        let mut room: Option<Box<[u8]>> = None;
        while shelf.bytes + cost > self.capacity_bytes {
            let Some(oldest) = shelf.order.first_key_value().map(|(_, key)| *key) else { break };
            room = shelf.remove(&oldest).map(|kept| kept.bytes);
            gone.push(oldest);
        }
        let bytes = match room.filter(|room| room.len() == page.len()) {
            Some(mut room) => {
                room.copy_from_slice(page);
                room
            }
            None => page.into(),
        };
        shelf.turn += 1;
        let turn = shelf.turn;
        shelf.order.insert(turn, *key);
        shelf.pages.insert(*key, Kept { bytes, crc, turn });
        shelf.bytes += cost;
        true
    }

    fn touch(&self, key: &PageKey) {
        self.shelf.lock().touch(key);
    }

    fn exists_prefix(&self, keys: &[PageKey]) -> usize {
        let shelf = self.shelf.lock();
        keys.iter().take_while(|key| shelf.pages.contains_key(*key)).count()
    }

    fn get(&self, keys: &[PageKey], into: &mut [PageSlot<'_>]) -> usize {
        let mut shelf = self.shelf.lock();
        let mut read = 0;
        for (key, slot) in keys.iter().zip(into) {
            let Some(kept) = shelf.pages.get(key).filter(|kept| kept.bytes.len() == slot.bytes.len()) else { break };
            slot.bytes.copy_from_slice(&kept.bytes);
            slot.crc = kept.crc;
            read += 1;
        }
        for key in keys[..read].iter().rev() {
            shelf.touch(key);
        }
        read
    }

    fn remove(&self, key: &PageKey) {
        self.shelf.lock().remove(key);
    }

    fn clear(&self) {
        let mut shelf = self.shelf.lock();
        *shelf = Shelf { turn: shelf.turn, ..Shelf::default() };
    }

    fn usage(&self) -> TierUsage {
        let shelf = self.shelf.lock();
        TierUsage { pages: shelf.pages.len(), bytes: shelf.bytes, capacity_bytes: Some(self.capacity_bytes) }
    }
}
