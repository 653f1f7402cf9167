//! The step loop's end: copies evicted pages out, asks for pages, takes them in, knows what is there.
//!
//! Where the tier tells all, it is known here which pages it has, or will have when the worker has caught up: nothing is
//! copied twice, nothing is asked for in vain, and the events that a router reads are in order: a page is announced in the
//! tier before it is withdrawn from the engine's own pages, and while its parent is still announced.

use super::desk::{Desk, Done, Way};
use super::load::Load;
use super::tier::KvTier;
use super::worker::Worker;
use crate::block_manager::Evicted;
use crate::kv_events::{Log, Medium};
use crate::model::KvStore;
use crate::stats::Histogram;
use plimsoll_cache::{Digest, EventHash};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is counted of one rank's offloading, since the start where it is not "now".
#[derive(Clone, Copy, Debug, Default)]
pub struct OffloadStats {
    /// In the tier now.
    pub held_pages: usize,
    pub held_bytes: usize,
    /// `None`: not known.
    pub capacity_bytes: Option<usize>,
    /// Evicted pages that the tier took.
    pub put_pages: u64,
    /// Evicted pages that were lost because the worker was behind.
    pub lost_pages: u64,
    /// Evicted pages that the tier refused.
    pub refused_pages: u64,
    /// Pages that the tier dropped for newer ones.
    pub evicted_pages: u64,
    /// Pages that came back and were used.
    pub loaded_pages: u64,
    /// Pages that came back with a wrong checksum.
    pub corrupt_pages: u64,
    /// Loads that were not complete at their deadline.
    pub late_loads: u64,
    /// Loads that were not begun because too many were.
    pub refused_loads: u64,
    /// First asked to last taken, of loads that brought anything.
    pub load_time: Histogram,
}

#[derive(Debug)]
pub(crate) struct Offloader {
    desk: Arc<Desk>,
    /// What the tier has, and how events call it. `None` for a tier that does not tell.
    resident: Option<HashMap<Digest, Option<EventHash>>>,
    deadline: Duration,
    pub(crate) stats: OffloadStats,
}

impl Offloader {
    /// With the worker, which does nothing until somebody gives it its turns.
    pub(crate) fn new(
        tier: Arc<dyn KvTier>,
        model: Digest,
        page_bytes: usize,
        max_loads: usize,
        config: &super::OffloadConfig,
    ) -> (Self, Worker) {
        let desk = Desk::new(page_bytes, config.buffer_bytes, max_loads);
        let usage = tier.usage();
        let stats = OffloadStats { capacity_bytes: usage.capacity_bytes, ..OffloadStats::default() };
        let resident = tier.tells_all().then(HashMap::new);
        let worker = Worker::new(Arc::clone(&desk), tier, model);
        (Offloader { desk, resident, deadline: config.deadline, stats }, worker)
    }

    pub(crate) fn set_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.desk.set_wake(Box::new(wake));
    }

    /// The tier is known to have this page.
    pub(crate) fn has(&self, chain: &Digest) -> bool {
        self.resident.as_ref().is_some_and(|resident| resident.contains_key(chain))
    }

    /// How many of these pages, from the first on, are worth asking for.
    pub(crate) fn promises(&self, chains: &[Digest]) -> usize {
        match &self.resident {
            Some(resident) => chains.iter().take_while(|chain| resident.contains_key(*chain)).count(),
            None if self.desk.is_dead() => 0,
            None => chains.len(),
        }
    }

    /// Copies pages out that were evicted and not yet overwritten.
    pub(crate) fn save(&mut self, evicted: Vec<Evicted>, kv: &KvStore, mut log: Option<&mut Log>) {
        for Evicted { page, digest, label } in evicted {
            if self.has(&digest) {
                self.desk.touch(digest);
            } else if let Some(mut buffer) = self.desk.lend(Way::Down)
                && kv.copy_page(page, &mut buffer.bytes).is_ok()
            {
                self.desk.put(digest, buffer);
                if let Some(resident) = &mut self.resident {
                    resident.insert(digest, label.as_ref().map(|label| label.name));
                    if let (Some(log), Some(label)) = (&mut log, &label) {
                        log.stored(Medium::Cpu, label);
                    }
                }
            } else {
                self.stats.lost_pages += 1;
            }
            if let (Some(log), Some(label)) = (&mut log, &label) {
                log.removed(Medium::Gpu, label.name);
            }
        }
    }

    /// Asks for the pages of a chain that a load wants. It is over at once when too many are asked for.
    pub(crate) fn begin(&mut self, load: &mut Load, chains: &[Digest], now: Instant) -> bool {
        let deadline = now + self.deadline;
        match self.desk.load(chains.to_vec(), deadline) {
            Some(slot) => {
                load.begin(slot, now, deadline);
                true
            }
            None => {
                self.stats.refused_loads += 1;
                false
            }
        }
    }

    /// A load has ended.
    pub(crate) fn count(&mut self, load: &Load, complete: bool, now: Instant) {
        self.stats.late_loads += u64::from(!complete);
        self.stats.loaded_pages += load.taken as u64;
        if let Some(since) = load.since().filter(|_| load.taken > 0) {
            self.stats.load_time.observe(now.saturating_duration_since(since).as_secs_f64());
        }
    }

    /// Hears what the worker has done. True when that was anything.
    pub(crate) fn hear(&mut self, mut log: Option<&mut Log>) -> bool {
        let Some((gone, done)) = self.desk.news() else { return false };
        let Done { put_pages, refused_pages, evicted_pages, corrupt_pages, usage } = done;
        self.stats.held_pages = usage.pages;
        self.stats.held_bytes = usage.bytes;
        self.stats.capacity_bytes = usage.capacity_bytes;
        self.stats.put_pages = put_pages;
        self.stats.refused_pages = refused_pages;
        self.stats.evicted_pages = evicted_pages;
        self.stats.corrupt_pages = corrupt_pages;
        let Some(resident) = &mut self.resident else { return true };
        for chain in gone {
            if let (Some(Some(name)), Some(log)) = (resident.remove(&chain), &mut log) {
                log.removed(Medium::Cpu, name);
            }
        }
        if self.desk.is_dead() {
            for (_, name) in resident.drain() {
                if let (Some(name), Some(log)) = (name, &mut log) {
                    log.removed(Medium::Cpu, name);
                }
            }
        }
        true
    }

    /// Forgets everything, here and in the tier. Events are the caller's.
    pub(crate) fn clear(&mut self) {
        self.desk.clear();
        if let Some(resident) = &mut self.resident {
            resident.clear();
        }
    }

    #[cfg(test)]
    pub(super) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    #[cfg(test)]
    pub(crate) fn lent(&self) -> [usize; 2] {
        self.desk.lent()
    }

    #[cfg(test)]
    pub(crate) fn resident(&self) -> Vec<Digest> {
        self.resident.iter().flat_map(HashMap::keys).copied().collect()
    }
}

impl Drop for Offloader {
    fn drop(&mut self) {
        self.desk.stop();
    }
}
