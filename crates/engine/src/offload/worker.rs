//! The thread that talks to the tier: one per rank, so that a tier that is slow, or stuck, holds up nothing but itself.
//!
//! [`Worker::turn`] does one thing and never waits; the thread around it does the waiting. So tests can let it fall behind as
//! they like.

use super::desk::{Desk, Done, Job, PageBuffer, Way};
use super::load::LoadJob;
use super::tier::{KvTier, PageKey, PageSlot, checksum};
use crate::faults::FaultSwitch;
use plimsoll_cache::Digest;
use std::sync::Arc;
use std::time::Instant;

/// Pages that are read in one call.
const READ_TOGETHER: usize = 16;

#[derive(Debug)]
pub(crate) struct Worker {
    desk: Arc<Desk>,
    tier: Arc<dyn KvTier>,
    model: Digest,
    faults: FaultSwitch,
    /// A load of which a part was brought.
    current: Option<(LoadJob, u64)>,
    /// Scratch.
    gone: Vec<PageKey>,
}

/// What one turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Done,
    /// Nothing to do.
    Idle,
    /// The step loop has to take pages first; until then there is no sense in it.
    Blocked {
        until: Instant,
    },
}

/// Tells the desk that the worker is gone, when it panics too.
struct Mourner(Arc<Desk>);

impl Drop for Mourner {
    fn drop(&mut self) {
        self.0.die();
    }
}

impl Worker {
    pub(super) fn new(desk: Arc<Desk>, tier: Arc<dyn KvTier>, model: Digest) -> Self {
        Worker { desk, tier, model, faults: FaultSwitch::default(), current: None, gone: Vec::new() }
    }

    /// Blocks that it reads may be made corrupt.
    pub(crate) fn set_faults(&mut self, faults: FaultSwitch) {
        self.faults = faults;
    }

    /// Works until the desk says stop. The thread is not joined: a tier may be stuck in a call, and nobody waits for it.
    ///
    /// # Errors
    /// When the thread cannot start.
    pub(crate) fn start(mut self) -> std::io::Result<()> {
        let mourner = Mourner(Arc::clone(&self.desk));
        let work = move || {
            let _mourner = mourner;
            loop {
                let blocked_until = match self.turn(Instant::now()) {
                    Turn::Done => continue,
                    Turn::Idle => None,
                    Turn::Blocked { until } => Some(until),
                };
                if self.desk.has_news() {
                    self.desk.wake();
                }
                if !self.desk.wait(blocked_until) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("engine-offload".to_owned()).spawn(work).map(drop)
    }

    /// One page put, or a few brought.
    pub(crate) fn turn(&mut self, now: Instant) -> Turn {
        if let Some((job, epoch)) = self.current.take() {
            return self.load(job, epoch, now);
        }
        match self.desk.next() {
            None => return Turn::Idle,
            Some((Job::Put { chain, page }, epoch)) => self.put(chain, &page, epoch),
            Some((Job::Touch(chain), _)) => self.tier.touch(&self.key(chain)),
            Some((Job::Load(job), epoch)) => return self.load(job, epoch, now),
            Some((Job::Clear, epoch)) => {
                self.tier.clear();
                self.tell(epoch, &[], |_| {});
            }
        }
        Turn::Done
    }

    fn key(&self, chain: Digest) -> PageKey {
        PageKey { model: self.model, chain }
    }

    fn put(&mut self, chain: Digest, page: &PageBuffer, epoch: u64) {
        let key = self.key(chain);
        let mut gone = std::mem::take(&mut self.gone);
        let kept = self.tier.put(&key, &page.bytes, checksum(&key, &page.bytes), &mut gone);
        let evicted = gone.len() as u64;
        if !kept {
            gone.push(key);
        }
        self.tell(epoch, &gone, |done| {
            done.put_pages += u64::from(kept);
            done.refused_pages += u64::from(!kept);
            done.evicted_pages += evicted;
        });
        gone.clear();
        self.gone = gone;
    }

    /// Brings some pages of a load. Whether it goes on is in [`Self::current`].
    fn load(&mut self, mut job: LoadJob, epoch: u64, now: Instant) -> Turn {
        if job.is_vain(now) {
            return Turn::Done;
        }
        let mut keys: Vec<PageKey> = job.chains[job.next..].iter().map(|chain| self.key(*chain)).collect();
        if !job.is_known {
            job.is_known = true;
            let there = self.tier.exists_prefix(&keys);
            job.chains.truncate(there);
            keys.truncate(there);
        }
        keys.truncate(READ_TOGETHER);
        if keys.is_empty() {
            self.over(job);
            return Turn::Done;
        }
        let mut buffers: Vec<PageBuffer> = Vec::with_capacity(keys.len());
        buffers.extend(std::iter::from_fn(|| self.desk.lend(Way::Up)).take(keys.len()));
        if buffers.is_empty() {
            let until = job.deadline;
            self.current = Some((job, epoch));
            return Turn::Blocked { until };
        }
        keys.truncate(buffers.len());
        let mut slots: Vec<_> = buffers.iter_mut().map(|page| PageSlot { bytes: &mut page.bytes, crc: 0 }).collect();
        let read = self.tier.get(&keys, &mut slots).min(keys.len());
        let mut sound = 0;
        for (key, slot) in keys.iter().zip(slots).take(read) {
            if self.faults.corrupts_next_block()
                && let Some(byte) = slot.bytes.get_mut(3)
            {
                // In the exponent of the first number: what lets it through says something else.
                *byte ^= 0x40;
            }
            if checksum(key, slot.bytes) != slot.crc {
                tracing::warn!("a KV page came back from the offload tier with a wrong checksum and is dropped");
                self.tier.remove(key);
                self.tell(epoch, &[*key], |done| done.corrupt_pages += 1);
                break;
            }
            sound += 1;
        }
        buffers.truncate(sound);
        let all = sound == keys.len();
        for page in buffers {
            job.slot.bring(page);
        }
        job.next += sound;
        if all && job.next < job.chains.len() {
            self.desk.wake();
            self.current = Some((job, epoch));
        } else {
            self.over(job);
        }
        Turn::Done
    }

    fn over(&self, job: LoadJob) {
        drop(job);
        self.desk.wake();
    }

    fn tell(&self, epoch: u64, gone: &[PageKey], change: impl FnOnce(&mut Done)) {
        let usage = self.tier.usage();
        self.desk.tell(epoch, gone.iter().map(|key| key.chain), |done| {
            change(done);
            done.usage = usage;
        });
    }
}
