//! One request's pages on their way from the tier.

use super::desk::PageBuffer;
use parking_lot::Mutex;
use plimsoll_cache::Digest;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What the worker has brought and the step loop not yet taken.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    arrived: Mutex<Arrived>,
    /// Nobody waits any more.
    left: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// In order, the first page first.
    pub(super) pages: VecDeque<PageBuffer>,
    /// Nothing more will come.
    pub(super) over: bool,
}

impl Slot {
    pub(super) fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    pub(super) fn bring(&self, page: PageBuffer) {
        self.arrived.lock().pages.push_back(page);
    }
}

/// The step loop's end, kept by the sequence that waits. Dropping it is leaving: nothing that comes later is written
/// anywhere.
#[derive(Debug)]
pub(crate) struct Load {
    /// Pages that are asked for. The sequence has room for them.
    pub(crate) pages: usize,
    /// Of them, those that have come.
    pub(crate) taken: usize,
    /// The sequence was never admitted before: what comes counts as its hit.
    pub(crate) is_first: bool,
    begun: Option<(Arc<Slot>, Instant, Instant)>,
}

impl Load {
    /// One that is wanted and not yet begun.
    pub(crate) fn wanted(pages: usize, is_first: bool) -> Box<Self> {
        Box::new(Load { pages, taken: 0, is_first, begun: None })
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.begun.is_some()
    }

    pub(super) fn begin(&mut self, slot: Arc<Slot>, now: Instant, deadline: Instant) {
        self.begun = Some((slot, now, deadline));
    }

    /// What has come since the last time, and whether that is all that will.
    pub(crate) fn take(&mut self) -> (VecDeque<PageBuffer>, bool) {
        let Some((slot, ..)) = &self.begun else { return (VecDeque::new(), false) };
        let mut arrived = slot.arrived.lock();
        let pages = std::mem::take(&mut arrived.pages);
        self.taken += pages.len();
        (pages, arrived.over || self.taken >= self.pages)
    }

    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.begun.as_ref().is_some_and(|(_, _, deadline)| now >= *deadline)
    }

    /// When it began.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.begun.as_ref().map(|(_, since, _)| *since)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some((slot, ..)) = &self.begun {
            slot.left.store(true, Ordering::Release);
            slot.arrived.lock().pages.clear();
        }
    }
}

/// The worker's end. However it ends, the step loop learns of it.
#[derive(Debug)]
pub(crate) struct LoadJob {
    pub(super) chains: Vec<Digest>,
    /// Pages that were brought.
    pub(super) next: usize,
    /// The tier was asked how much it has.
    pub(super) is_known: bool,
    pub(super) slot: Arc<Slot>,
    pub(super) deadline: Instant,
}

impl LoadJob {
    /// Nobody wants the rest any more.
    pub(super) fn is_vain(&self, now: Instant) -> bool {
        self.slot.is_left() || now >= self.deadline
    }
}

impl Drop for LoadJob {
    fn drop(&mut self) {
        self.slot.arrived.lock().over = true;
    }
}
