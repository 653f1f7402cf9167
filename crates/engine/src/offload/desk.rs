//! What lies between the step loop and the worker of one rank: jobs one way, pages and news the other, all bounded.
//!
//! One queue for both directions, first in first out: what was evicted can be loaded from the next moment on.

use super::load::{LoadJob, Slot};
use super::tier::TierUsage;
use parking_lot::{Condvar, Mutex};
use plimsoll_cache::Digest;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The fewest and the most pages on their way in one direction.
const BUFFERS: std::ops::RangeInclusive<usize> = 8..=4096;

pub(super) enum Job {
    Put { chain: Digest, page: PageBuffer },
    Touch(Digest),
    Load(LoadJob),
    Clear,
}

/// Which way a buffer goes; each has as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Down,
    Up,
}

/// What the worker has done since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) put_pages: u64,
    pub(super) refused_pages: u64,
    pub(super) evicted_pages: u64,
    pub(super) corrupt_pages: u64,
    pub(super) usage: TierUsage,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    loads: usize,
    idle: Vec<Vec<u8>>,
    lent: [usize; 2],
    gone: Vec<Digest>,
    /// Rises with each clear: news from before it says nothing.
    epoch: u64,
    done: Done,
    stop: bool,
    /// The worker has ended.
    dead: bool,
}

type Wake = Box<dyn Fn() + Send + Sync>;

pub(super) struct Desk {
    page_bytes: usize,
    buffers: usize,
    max_loads: usize,
    state: Mutex<State>,
    /// For the worker: a job, or a buffer came back.
    bell: Condvar,
    /// Something is to be taken by the step loop.
    news: AtomicBool,
    /// Makes the step loop look.
    wake: OnceLock<Wake>,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("page_bytes", &self.page_bytes).field("buffers", &self.buffers).finish()
    }
}

/// Memory for one page, lent by a desk. Goes back when it is dropped, wherever that happens.
pub(crate) struct PageBuffer {
    pub(super) bytes: Vec<u8>,
    way: Way,
    desk: Arc<Desk>,
}

impl PageBuffer {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for PageBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageBuffer({:?})", self.way)
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        let mut state = self.desk.state.lock();
        state.lent[self.way as usize] -= 1;
        state.idle.push(std::mem::take(&mut self.bytes));
        drop(state);
        if self.way == Way::Up {
            self.desk.bell.notify_one();
        }
    }
}

impl Desk {
    pub(super) fn new(page_bytes: usize, buffer_bytes: usize, max_loads: usize) -> Arc<Self> {
        let buffers = (buffer_bytes / page_bytes.max(1)).clamp(*BUFFERS.start(), *BUFFERS.end());
        Arc::new(Desk {
            page_bytes,
            buffers,
            max_loads,
            state: Mutex::default(),
            bell: Condvar::new(),
            news: AtomicBool::new(false),
            wake: OnceLock::new(),
        })
    }

    /// A buffer, if one is free.
    pub(super) fn lend(self: &Arc<Self>, way: Way) -> Option<PageBuffer> {
        let mut state = self.state.lock();
        if state.lent[way as usize] >= self.buffers || state.dead {
            return None;
        }
        state.lent[way as usize] += 1;
        let idle = state.idle.pop();
        drop(state);
        let bytes = idle.unwrap_or_else(|| vec![0; self.page_bytes]);
        Some(PageBuffer { bytes, way, desk: Arc::clone(self) })
    }

    // The step loop's side.

    /// Queues a page; its buffer is what bounds the queue.
    pub(super) fn put(&self, chain: Digest, page: PageBuffer) {
        self.push(Job::Put { chain, page });
    }

    /// Says that a page was used, unless too much is to be done already.
    pub(super) fn touch(&self, chain: Digest) {
        if self.state.lock().jobs.len() < 4 * self.buffers {
            self.push(Job::Touch(chain));
        }
    }

    /// Asks for pages. `None` when too many do.
    pub(super) fn load(&self, chains: Vec<Digest>, deadline: Instant) -> Option<Arc<Slot>> {
        let slot = Arc::new(Slot::default());
        let mut state = self.state.lock();
        if state.dead || state.loads >= self.max_loads {
            return None;
        }
        state.loads += 1;
        let job = LoadJob { chains, next: 0, is_known: false, slot: Arc::clone(&slot), deadline };
        state.jobs.push_back(Job::Load(job));
        drop(state);
        self.bell.notify_one();
        Some(slot)
    }

    /// Forgets what is on its way down, and tells the worker to forget the rest.
    pub(super) fn clear(&self) {
        let mut state = self.state.lock();
        let (puts, others): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut state.jobs).into_iter().partition(|job| matches!(job, Job::Put { .. } | Job::Touch(_)));
        state.jobs = others;
        state.jobs.push_back(Job::Clear);
        state.gone.clear();
        state.epoch += 1;
        drop(state);
        // Buffers go back under the same lock.
        drop(puts);
        self.bell.notify_one();
    }

    fn push(&self, job: Job) {
        let mut state = self.state.lock();
        if state.dead {
            drop(state);
            return drop(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.bell.notify_one();
    }

    /// What left the tier since the last time, and what was done since the start; `None` when nothing is new.
    pub(super) fn news(&self) -> Option<(Vec<Digest>, Done)> {
        if !self.news.swap(false, Ordering::AcqRel) {
            return None;
        }
        let mut state = self.state.lock();
        Some((std::mem::take(&mut state.gone), state.done))
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// Ends the worker after what it does now.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.bell.notify_all();
    }

    pub(super) fn set_wake(&self, wake: Wake) {
        // There is one step loop.
        let _ = self.wake.set(wake);
    }

    // The worker's side.

    /// The next job, and the epoch it belongs to.
    pub(super) fn next(&self) -> Option<(Job, u64)> {
        let mut state = self.state.lock();
        let job = state.jobs.pop_front()?;
        if matches!(job, Job::Load(_)) {
            state.loads -= 1;
        }
        Some((job, state.epoch))
    }

    /// Tells what was done, and what left the tier in this epoch.
    pub(super) fn tell(&self, epoch: u64, gone: impl Iterator<Item = Digest>, change: impl FnOnce(&mut Done)) {
        let mut state = self.state.lock();
        if epoch == state.epoch {
            state.gone.extend(gone);
        }
        change(&mut state.done);
        self.news.store(true, Ordering::Release);
    }

    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    pub(super) fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// Sleeps until there is a job; with a deadline, until a buffer on the way up is free. False when the worker is to end.
    pub(super) fn wait(&self, blocked_until: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        match blocked_until {
            Some(until) => {
                while state.lent[Way::Up as usize] >= self.buffers && !state.stop {
                    if self.bell.wait_until(&mut state, until).timed_out() {
                        break;
                    }
                }
            }
            None => {
                while state.jobs.is_empty() && !state.stop {
                    self.bell.wait(&mut state);
                }
            }
        }
        !state.stop
    }

    /// The worker is gone: nothing is to be expected of it.
    pub(super) fn die(&self) {
        let mut state = self.state.lock();
        state.dead = true;
        self.news.store(true, Ordering::Release);
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(jobs);
        self.wake();
    }

    /// Buffers in use, down and up: none when everything is at rest.
    #[cfg(test)]
    pub(super) fn lent(&self) -> [usize; 2] {
        self.state.lock().lent
    }
}
