//! The worker on a thread of its own: nothing waits for it that it could keep waiting.

use super::desk::Way;
use super::load::Load;
use super::offloader::Offloader;
use super::*;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const PAGE: usize = 32;

/// Memory whose reads wait for a gate, and which panics when told to.
#[derive(Debug)]
struct Gated {
    memory: MemoryTier,
    gate: Arc<Mutex<()>>,
    panics: bool,
}

impl KvTier for Gated {
    fn tells_all(&self) -> bool {
        true
    }
    fn put(&self, key: &PageKey, page: &[u8], crc: u32, gone: &mut Vec<PageKey>) -> bool {
        assert!(!self.panics, "as the test wants it");
        self.memory.put(key, page, crc, gone)
    }
    fn exists_prefix(&self, keys: &[PageKey]) -> usize {
        self.memory.exists_prefix(keys)
    }
    fn get(&self, keys: &[PageKey], into: &mut [PageSlot<'_>]) -> usize {
        drop(self.gate.lock());
        self.memory.get(keys, into)
    }
    fn remove(&self, key: &PageKey) {
        self.memory.remove(key);
    }
    fn clear(&self) {
        self.memory.clear();
    }
    fn usage(&self) -> TierUsage {
        self.memory.usage()
    }
}

struct Rig {
    offload: Offloader,
    gate: Arc<Mutex<()>>,
    wakes: Arc<AtomicUsize>,
}

impl Rig {
    fn new(pages: usize, panics: bool) -> Rig {
        let gate = Arc::<Mutex<()>>::default();
        let memory = MemoryTier::new(pages * (PAGE + PER_PAGE_BYTES));
        let tier = Arc::new(Gated { memory, gate: Arc::clone(&gate), panics });
        let config = OffloadConfig { buffer_bytes: 8 * PAGE, ..OffloadConfig::default() };
        let (offload, worker) = Offloader::new(tier, [1; 32], PAGE, 4, &config);
        let wakes = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&wakes);
        offload.set_wake(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        worker.start().unwrap();
        Rig { offload, gate, wakes }
    }

    /// Offers a page, and says whether there was a buffer for it.
    fn put(&mut self, name: u8) -> bool {
        let Some(mut page) = self.offload.desk().lend(Way::Down) else { return false };
        page.bytes.fill(name);
        self.offload.desk().put([name; 32], page);
        true
    }

    fn load(&mut self, names: std::ops::Range<u8>) -> Box<Load> {
        let chains: Vec<_> = names.map(|name| [name; 32]).collect();
        let mut load = Load::wanted(chains.len(), true);
        assert!(self.offload.begin(&mut load, &chains, Instant::now()));
        load
    }

    fn wait(&mut self, what: &str, wanted: impl Fn(&mut Self) -> bool) {
        let until = Instant::now() + Duration::from_secs(30);
        while !wanted(self) {
            assert!(Instant::now() < until, "never: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn what_was_put_is_loaded_in_order_through_fewer_buffers_than_pages() {
    let mut rig = Rig::new(64, false);
    for name in 0..30 {
        rig.wait("a buffer", |rig| rig.put(name));
    }
    let mut load = rig.load(0..30);
    let mut seen = Vec::new();
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let (pages, over) = load.take();
        assert!(pages.len() <= 8, "the buffers bound what is on its way");
        seen.extend(pages.iter().map(|page| page.bytes()[0]));
        if over {
            break;
        }
        assert!(Instant::now() < until);
    }
    assert_eq!(seen, (0..30).collect::<Vec<u8>>());
    drop(load);
    assert!(rig.wakes.load(Ordering::SeqCst) > 0);
    rig.wait("all buffers back", |rig| rig.offload.lent() == [0, 0]);
    rig.offload.hear(None);
    assert_eq!((rig.offload.stats.held_pages, rig.offload.stats.put_pages), (30, 30));
}

/// A load that nobody waits for any more gives its buffers back; those behind it are served.
#[test]
fn a_stuck_read_holds_up_neither_puts_nor_who_leaves() {
    let mut rig = Rig::new(64, false);
    for name in 0..4 {
        rig.wait("a buffer", |rig| rig.put(name));
    }
    rig.wait("all put", |rig| rig.offload.lent() == [0, 0]);
    let gate = Arc::clone(&rig.gate);
    let shut = gate.lock();
    let stuck = rig.load(0..4);
    rig.wait("it reads", |rig| rig.offload.lent()[1] == 4);
    // As many as there are buffers, then no more; no call waits.
    assert_eq!((10..30).filter(|name| rig.put(*name)).count(), 8);
    let more: Vec<_> = (0..4).map(|_| rig.load(0..4)).collect();
    let mut one_too_many = Load::wanted(1, true);
    assert!(!rig.offload.begin(&mut one_too_many, &[[0; 32]], Instant::now()));
    drop(stuck);
    drop(more);
    drop(shut);
    rig.wait("all buffers back", |rig| rig.offload.lent() == [0, 0]);
    let mut last = rig.load(0..4);
    let until = Instant::now() + Duration::from_secs(30);
    while !last.take().1 {
        assert!(Instant::now() < until);
    }
    assert_eq!(last.taken, 4);
}

#[test]
fn a_tier_that_panics_is_given_up() {
    let mut rig = Rig::new(64, true);
    rig.put(1);
    rig.wait("the worker is gone", |rig| rig.offload.hear(None) && !rig.put(2));
    let mut load = Load::wanted(1, true);
    assert!(!rig.offload.begin(&mut load, &[[1; 32]], Instant::now()));
    assert_eq!(rig.offload.lent(), [0, 0]);
}
