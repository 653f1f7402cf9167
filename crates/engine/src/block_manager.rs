//! Who owns which KV page: allocation, prefix reuse, eviction.
//!
//! A full page whose KV is computed is *committed* under the digest of its chain ([`plimsoll_cache::block_hash`]). A later
//! prompt that starts with the same chain takes the page instead of computing it. A page nobody holds stays cached
//! until room is needed; then the least recently used *leaf* goes first, because a page without its ancestors can never
//! be matched again. Two sequences that compute the same page at once end up sharing the first one's (their bits are
//! equal), which keeps the rule that whoever holds a page holds its ancestors.
//!
//! Where KV events are wanted, every change of what can be found goes to [`Self::log`](BlockManager::log) as it happens.
//! Where evicted pages are offloaded, they are collected with their bytes still in place, and the log is told of them by
//! whoever takes them.

use crate::kv_events::{Label, Log, Medium};
use idle::IdleList;
use keyed::Keyed;
use plimsoll_cache::Digest;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

mod idle;
mod keyed;
#[cfg(test)]
mod tests;

#[derive(Debug)]
pub struct BlockManager {
    pages: Vec<Page>,
    free: Vec<u32>,
    by_digest: HashMap<Digest, u32, Keyed>,
    /// Cached pages without holder, evicted from the oldest on.
    idle: IdleList,
    evicted_pages: u64,
    committed_pages: u64,
    /// Held by nobody and lent to nobody: see [`Self::press`].
    away: Vec<u32>,
    /// `None`: nobody listens to KV events.
    log: Option<Log>,
    /// Pages that were evicted and not yet taken out. `None`: nobody wants them.
    evicted: Option<Vec<Evicted>>,
}

/// A page that can no longer be found. Its bytes are in place until somebody writes to any page.
#[derive(Debug)]
pub struct Evicted {
    pub page: u32,
    pub digest: Digest,
    /// As it was committed; `None` when nobody listens.
    pub label: Option<Box<Label>>,
}

#[derive(Debug, Default, Clone)]
struct Page {
    holders: u32,
    cached: Option<Cached>,
}

#[derive(Debug, Clone)]
struct Cached {
    digest: Digest,
    parent: Option<u32>,
    /// What the log calls it; `None` when nobody listens.
    label: Option<Box<Label>>,
}

impl BlockManager {
    #[must_use]
    pub fn new(pages: usize) -> Self {
        BlockManager {
            pages: vec![Page::default(); pages],
            free: (0..pages as u32).rev().collect(),
            // Room for all from the start: it is address space until it is used, and to grow would hold up a step.
            by_digest: HashMap::with_capacity_and_hasher(pages, Keyed::default()),
            idle: IdleList::new(pages),
            evicted_pages: 0,
            committed_pages: 0,
            away: Vec::new(),
            log: None,
            evicted: None,
        }
    }

    /// Keeps a log of what becomes findable and what is gone, from now on. Call it before the first page is committed.
    pub fn keep_log(&mut self) {
        debug_assert!(self.by_digest.is_empty(), "pages were committed unseen");
        self.log = Some(Log::default());
    }

    /// Collects evicted pages from now on, for [`Self::take_evicted`]. The log is not told of them here.
    pub fn keep_evicted(&mut self) {
        self.evicted = Some(Vec::new());
    }

    /// Pages that were evicted since the last time, leaves first. Call it before any page is written: these may be in use
    /// again.
    #[must_use]
    pub fn take_evicted(&mut self) -> Vec<Evicted> {
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The log, if one is kept.
    pub fn log(&mut self) -> Option<&mut Log> {
        self.log.as_mut()
    }

    #[must_use]
    pub fn total(&self) -> usize {
        self.pages.len()
    }

    /// Pages that can be had now: free ones and cached ones nobody holds.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Pages held by sequences.
    #[must_use]
    pub fn held(&self) -> usize {
        self.total() - self.available()
    }

    #[must_use]
    pub fn idle_cached(&self) -> usize {
        self.idle.len()
    }

    #[must_use]
    pub fn evicted_pages(&self) -> u64 {
        self.evicted_pages
    }

    /// Pages that became findable since the start. A chain's cached start grows by at most one page for each.
    #[must_use]
    pub fn committed_pages(&self) -> u64 {
        self.committed_pages
    }

    /// A page with this digest can be taken.
    #[must_use]
    pub fn is_cached(&self, digest: &Digest) -> bool {
        self.by_digest.contains_key(digest)
    }

    /// Reads a bit of what [`Self::commit`] writes to, so that it lies in a cache. The number means nothing.
    #[inline]
    pub(crate) fn touch(&self, page: u32) -> usize {
        // At both ends: it lies across two lines.
        let Page { holders, cached } = &self.pages[page as usize];
        *holders as usize + usize::from(cached.is_some())
    }

    /// Keeps this many pages away from everybody: a fault that makes memory short. What sequences hold is not taken from
    /// them, so call it again when they have released some. True when anything changed.
    pub fn press(&mut self, pages: usize) -> bool {
        let before = self.away.len();
        while self.away.len() < pages {
            let Some(page) = self.allocate() else { break };
            self.away.push(page);
        }
        let back = self.away.split_off(pages.min(self.away.len()));
        self.release(&back);
        self.away.len() != before
    }

    /// Pages of the longest cached start of a chain, not yet taken.
    #[must_use]
    pub fn lookup(&self, chain: &[Digest]) -> Vec<u32> {
        chain.iter().map_while(|digest| self.by_digest.get(digest).copied()).collect()
    }

    /// How many of these pages nobody holds: taking them lowers [`Self::available`] by this.
    #[must_use]
    pub fn idle_among(&self, pages: &[u32]) -> usize {
        pages.iter().filter(|page| self.pages[**page as usize].holders == 0).count()
    }

    /// Becomes a holder of cached pages that [`Self::lookup`] found.
    pub fn take(&mut self, pages: &[u32]) {
        for page in pages {
            self.hold(*page);
        }
    }

    /// A fresh page with one holder, evicting if needed. `None` when every page is held.
    pub fn allocate(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.evict_one()?;
        }
        let page = self.free.pop()?;
        self.pages[page as usize].holders = 1;
        Some(page)
    }

    /// Makes a computed full page findable. `parent` is the page before it in the same sequence. Returns the page to
    /// use from now on: another one when the chain was committed by somebody else first. `label` is asked for when the page
    /// is new and a log is kept.
    #[must_use]
    pub fn commit(&mut self, page: u32, digest: Digest, parent: Option<u32>, label: impl FnOnce() -> Label) -> u32 {
        let place = match self.by_digest.entry(digest) {
            Entry::Occupied(known) => {
                let known = *known.get();
                if known != page {
                    self.hold(known);
                    self.release_one(page);
                }
                return known;
            }
            Entry::Vacant(place) => place,
        };
        place.insert(page);
        debug_assert!(parent.is_none_or(|p| self.pages[p as usize].cached.is_some()));
        let label = self.log.as_mut().map(|log| {
            let label = Box::new(label());
            log.stored(Medium::Gpu, &label);
            label
        });
        self.pages[page as usize].cached = Some(Cached { digest, parent, label });
        self.committed_pages += 1;
        page
    }

    /// Gives up a sequence's pages (in the sequence's order). Committed ones stay cached.
    pub fn release(&mut self, pages: &[u32]) {
        for page in pages.iter().rev() {
            self.release_one(*page);
        }
    }

    /// Forgets every cached page that nobody holds. Returns how many.
    pub fn flush(&mut self) -> usize {
        let before = self.idle.len();
        while self.evict_one().is_some() {}
        let nothing_left = self.by_digest.is_empty();
        let forgotten = self.take_evicted();
        if let Some(log) = self.log.as_mut().filter(|_| !nothing_left) {
            forgotten.iter().filter_map(|page| page.label.as_ref()).for_each(|it| log.removed(Medium::Gpu, it.name));
        }
        if let Some(log) = self.log.as_mut().filter(|_| nothing_left) {
            log.cleared();
        }
        before - self.idle.len()
    }

    fn hold(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        entry.holders += 1;
        if entry.holders == 1 {
            self.idle.remove(page);
        }
    }

    fn release_one(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        debug_assert!(entry.holders > 0, "page {page} released twice");
        entry.holders -= 1;
        if entry.holders > 0 {
            return;
        }
        if entry.cached.is_some() {
            self.idle.push(page);
        } else {
            self.free.push(page);
        }
    }

    fn evict_one(&mut self) -> Option<()> {
        let page = self.idle.oldest()?;
        self.idle.remove(page);
        let Cached { digest, label, .. } = self.pages[page as usize].cached.take()?;
        self.by_digest.remove(&digest);
        if let Some(evicted) = &mut self.evicted {
            evicted.push(Evicted { page, digest, label });
        } else if let (Some(log), Some(label)) = (&mut self.log, &label) {
            log.removed(Medium::Gpu, label.name);
        }
        self.evicted_pages += 1;
        self.free.push(page);
        Some(())
    }

    /// The invariants of this structure, given how many holders each page should have.
    ///
    /// # Errors
    /// Says which one is broken.
    pub fn check(&self, holders: &[u32]) -> Result<(), String> {
        let mut expected = holders.to_vec();
        for page in &self.away {
            expected[*page as usize] += 1;
        }
        for (index, page) in self.pages.iter().enumerate() {
            if page.holders != expected[index] {
                return Err(format!("page {index} has {} holders, expected {}", page.holders, expected[index]));
            }
            let Some(cached) = &page.cached else { continue };
            if self.by_digest.get(&cached.digest) != Some(&(index as u32)) {
                return Err(format!("page {index} is cached but cannot be found"));
            }
            if let Some(parent) = cached.parent {
                let above = &self.pages[parent as usize];
                if above.cached.is_none() || (page.holders > 0 && above.holders == 0) {
                    return Err(format!("page {index} has lost its parent {parent}"));
                }
            }
        }
        self.check_idle()
    }

    /// Exactly the cached pages without holder are listed, each before its ancestors.
    fn check_idle(&self) -> Result<(), String> {
        let mut listed = vec![false; self.pages.len()];
        for index in self.idle.iter() {
            let page = &self.pages[index as usize];
            let parent = page.cached.as_ref().and_then(|cached| cached.parent);
            if page.cached.is_none() || page.holders > 0 || parent.is_some_and(|parent| listed[parent as usize]) {
                return Err(format!("page {index} is wrongly listed as evictable, or too late"));
            }
            listed[index as usize] = true;
        }
        let idle = self.pages.iter().filter(|page| page.cached.is_some() && page.holders == 0).count();
        let held = self.pages.iter().filter(|page| page.holders > 0).count();
        if idle != self.idle.iter().count() || idle != self.idle.len() {
            return Err(format!("{idle} pages are idle, {} are listed", self.idle.len()));
        }
        if self.free.len() + idle + held != self.pages.len() {
            return Err(format!("{} free, {idle} idle, {held} held of {}", self.free.len(), self.pages.len()));
        }
        Ok(())
    }
}
