//! One rank: its memory, its queue, its batch, and what a step changes in them.

use super::EngineShape;
use super::decode_batch::{DecodeBatch, Slot};
use super::job::{Job, Key};
use crate::names;
use crate::prefix_cache::{PrefixCache, ROOT};
use crate::tier::{Link, SharedTier, Tier};
use plimsoll_core::{BlockName, KvEvent, LoadReport, Medium, Nanos, Rank as RankId, StoredBlocks};
use std::collections::{BTreeMap, VecDeque};

/// What became of a request in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The first token of its answer; of its prompt so many tokens were cached.
    FirstToken {
        key: Key,
        cached_tokens: u64,
    },
    /// A token after a time without, because it was preempted.
    Resumed {
        key: Key,
    },
    Finished {
        key: Key,
    },
    /// The first token of a request that was handed over, or had moved.
    TookOver {
        key: Key,
    },
    /// Its KV was given away after its last token; it will be computed again.
    Preempted {
        key: Key,
    },
}

/// A part of a prompt in the step that was planned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) slot: Slot,
    pub(super) tokens: u64,
}

/// One data-parallel rank of an engine.
#[derive(Debug)]
pub struct Rank {
    pub(super) shape: EngineShape,
    pub(super) cache: PrefixCache,
    /// Pages of running requests that are not in the cache.
    pub(super) own_pages: u64,
    pub(super) jobs: Vec<Option<Job>>,
    free_slots: Vec<Slot>,
    pub(super) waiting: VecDeque<Slot>,
    /// In order of admission.
    pub(super) prefilling: Vec<Slot>,
    pub(super) batch: DecodeBatch,
    /// Everybody who runs, by order of admission.
    pub(super) running: BTreeMap<u64, Slot>,
    pub(super) admissions: u64,
    pub(super) chunks: Vec<Chunk>,
    pub(super) decoding_planned: bool,
    /// Taken over since the last step.
    pub(super) newcomers: Vec<Key>,
    /// For whoever listens to KV events.
    pub(super) events: Option<Vec<KvEvent>>,
    pub(super) preemptions: u64,
    pub(super) prefilled_tokens: u64,
    pub(super) below: Below,
    gone: Vec<BlockName>,
}

/// Places below a rank's memory, with its link to each.
#[derive(Debug, Default)]
pub struct Below {
    pub(super) host: Option<Tier>,
    pub(super) pool: Option<SharedTier>,
    pub(super) kv_bytes_token: f64,
    pub(super) host_link: Link,
    pub(super) pool_link: Link,
    pub(super) loaded_tokens: u64,
}

impl Rank {
    /// `tells`: keeps KV events for [`Self::take_events`].
    #[must_use]
    pub fn new(shape: EngineShape, tells: bool) -> Self {
        Rank {
            shape,
            cache: PrefixCache::default(),
            own_pages: 0,
            jobs: Vec::new(),
            free_slots: Vec::new(),
            waiting: VecDeque::new(),
            prefilling: Vec::new(),
            batch: DecodeBatch::new(shape.page_tokens),
            running: BTreeMap::new(),
            admissions: 0,
            chunks: Vec::new(),
            decoding_planned: false,
            newcomers: Vec::new(),
            events: tells.then(Vec::new),
            preemptions: 0,
            prefilled_tokens: 0,
            below: Below::default(),
            gone: Vec::new(),
        }
    }

    /// Gives it places to load prefixes from.
    pub fn set_below(&mut self, below: Below) {
        self.below = below;
    }

    /// Tokens that were loaded from below in place of being computed.
    #[must_use]
    pub fn loaded_tokens(&self) -> u64 {
        self.below.loaded_tokens
    }

    /// Queues a request.
    ///
    /// # Errors
    /// Gives it back when it can never fit.
    pub fn submit(&mut self, job: Job) -> Result<(), Box<Job>> {
        let most = job.most_tokens();
        if most > self.shape.context_tokens || most.div_ceil(self.shape.page_tokens) > self.shape.pages() {
            return Err(Box::new(job));
        }
        let slot = self.put(job);
        self.waiting.push_back(slot);
        Ok(())
    }

    fn put(&mut self, job: Job) -> Slot {
        match self.free_slots.pop() {
            Some(slot) => {
                self.jobs[slot as usize] = Some(job);
                slot
            }
            None => {
                self.jobs.push(Some(job));
                self.jobs.len() as Slot - 1
            }
        }
    }

    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// A newcomer would be looked at in the next step: nobody waits before it.
    #[must_use]
    pub fn would_admit(&self) -> bool {
        self.waiting.is_empty() && (self.running.len() as u64) < self.shape.max_running
    }

    /// A prompt is under way, or waits for nothing but its turn.
    pub(super) fn has_prompt(&self) -> bool {
        !self.prefilling.is_empty()
            || (!self.waiting.is_empty() && (self.running.len() as u64) < self.shape.max_running)
    }

    /// Tokens that the step under way computes; of a run of decode steps, each of them.
    #[must_use]
    pub fn step_tokens(&self) -> u64 {
        let decoding = if self.decoding_planned { self.batch.requests() } else { 0 };
        decoding + self.chunks.iter().map(|chunk| chunk.tokens).sum::<u64>()
    }

    /// What it tells of its load, `ahead` decode steps after the last plan.
    #[must_use]
    pub fn report(&self, rank: RankId, now: Nanos, ahead: u64) -> LoadReport {
        let pinned = (self.cache.blocks() - self.cache.idle_blocks()) * self.shape.block_pages();
        let pages = pinned + self.own_pages + self.batch.pages_for(ahead);
        let chunked: u64 = self.prefilling.iter().map(|slot| self.rest_uncached_tokens(*slot)).sum();
        let waiting: u64 = self.waiting.iter().map(|slot| self.waiting_uncached_tokens(*slot)).sum();
        LoadReport {
            rank,
            received: now,
            running_requests: Some(self.running.len() as u64),
            waiting_requests: Some(self.waiting.len() as u64),
            waiting_uncached_tokens: Some(waiting + chunked),
            used_kv_tokens: Some(pages * self.shape.page_tokens),
            capacity_kv_tokens: Some(self.shape.kv_tokens),
            max_running_requests: Some(self.shape.max_running),
        }
    }

    /// What is still to be computed of a prompt in prefill, beyond what is on its way from below.
    fn rest_uncached_tokens(&self, slot: Slot) -> u64 {
        let job = self.job(slot);
        let loading = job.loading.map_or(0, |loading| loading.blocks * self.shape.block_tokens);
        job.goal_tokens - job.kv_tokens.max(loading)
    }

    /// What would be computed of a waiting prompt if it were admitted now.
    fn waiting_uncached_tokens(&self, slot: Slot) -> u64 {
        let (job, block) = (self.job(slot), self.shape.block_tokens);
        if job.handed_over {
            return 0;
        }
        let most = ((job.goal_tokens - 1) / block).min(job.names.len() as u64) as usize;
        job.goal_tokens - self.cache.probe(&job.names[..most]).blocks * block
    }

    /// KV events since the last time.
    #[must_use]
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    #[must_use]
    pub fn cache(&self) -> &PrefixCache {
        &self.cache
    }

    /// Everybody in it, running or waiting, in order of arrival at it.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.running.values().chain(&self.waiting).map(|slot| self.job(*slot).key).collect()
    }

    pub(super) fn job(&self, slot: Slot) -> &Job {
        match &self.jobs[slot as usize] {
            Some(job) => job,
            None => unreachable!("a slot in a list holds a job"),
        }
    }

    pub(super) fn job_mut(&mut self, slot: Slot) -> &mut Job {
        match &mut self.jobs[slot as usize] {
            Some(job) => job,
            None => unreachable!("a slot in a list holds a job"),
        }
    }

    pub(super) fn leaves_queue(&mut self) -> Option<Slot> {
        self.waiting.pop_front()
    }

    pub(super) fn free_pages(&self) -> u64 {
        self.shape.pages() - self.cache.blocks() * self.shape.block_pages() - self.own_pages
    }

    /// Evicts until so many pages are free. False when there are not as many.
    pub(super) fn make_free(&mut self, pages: u64) -> bool {
        let free = self.free_pages();
        if free >= pages {
            return true;
        }
        let blocks = (pages - free).div_ceil(self.shape.block_pages());
        let mut gone = std::mem::take(&mut self.gone);
        let evicted = self.cache.evict(blocks, self.events.is_some().then_some(&mut gone));
        if let Some(events) = &mut self.events
            && !gone.is_empty()
        {
            events.push(KvEvent::Removed { names: gone.clone(), medium: Medium::Device });
        }
        gone.clear();
        self.gone = gone;
        evicted == blocks
    }

    /// The planned step, or so many decode steps in a row, are over.
    pub(super) fn advance(&mut self, steps: u64, out: &mut Vec<Happened>) {
        if self.decoding_planned {
            out.extend(self.newcomers.drain(..).map(|key| Happened::TookOver { key }));
            self.own_pages += self.batch.pages_for(steps);
            self.batch.advance(steps);
            while let Some(slot) = self.batch.pop_ended(is_here(&self.jobs)) {
                self.finish(slot, out);
            }
        }
        let chunks = std::mem::take(&mut self.chunks);
        for chunk in &chunks {
            self.prefilled(*chunk, out);
        }
        self.chunks = chunks;
        self.chunks.clear();
        self.decoding_planned = false;
    }

    fn prefilled(&mut self, chunk: Chunk, out: &mut Vec<Happened>) {
        self.prefilled_tokens += chunk.tokens;
        let job = self.job_mut(chunk.slot);
        job.kv_tokens += chunk.tokens;
        self.commit(chunk.slot);
        let step = self.batch.step();
        let job = self.job_mut(chunk.slot);
        if job.rest_tokens() > 0 {
            return;
        }
        job.generated += 1;
        let key = job.key;
        out.push(if job.generated == 1 {
            Happened::FirstToken { key, cached_tokens: job.cached_tokens.unwrap_or(0) }
        } else {
            Happened::Resumed { key }
        });
        let (kv, left, admitted) = (job.kv_tokens, job.output_tokens - job.generated, job.admitted);
        job.joined_step = step;
        self.prefilling.retain(|slot| *slot != chunk.slot);
        if left > 0 {
            self.batch.join(chunk.slot, kv, left, admitted);
        } else {
            self.leave(chunk.slot);
            out.push(Happened::Finished { key });
        }
    }

    /// Moves full blocks from a job's own pages to the cache.
    pub(super) fn commit(&mut self, slot: Slot) {
        let (block_tokens, block_pages) = (self.shape.block_tokens, self.shape.block_pages());
        let Some(job) = self.jobs[slot as usize].as_mut() else { return };
        let full = (job.kv_tokens / block_tokens).min(job.names.len() as u64);
        let from = job.path_blocks;
        if full <= from {
            return;
        }
        let chain = &job.names[..full as usize];
        let committed = self.cache.commit(job.end, chain, from as usize);
        job.end = committed.end;
        job.path_blocks = full;
        let pages = ((full - from) * block_pages).min(job.own_pages);
        job.own_pages -= pages;
        self.own_pages -= pages;
        if let Some(events) = &mut self.events
            && committed.new_blocks > 0
        {
            events.push(KvEvent::Stored(StoredBlocks {
                names: chain[from as usize..].to_vec(),
                parent: from.checked_sub(1).map(|at| chain[at as usize]),
                block_tokens: block_tokens as u32,
                ..StoredBlocks::default()
            }));
        }
        let chain = &self.jobs[slot as usize].as_ref().map_or(&[][..], |job| &job.names)[..full as usize];
        self.below.keep(chain, block_tokens as u32, self.events.as_mut());
    }

    fn finish(&mut self, slot: Slot, out: &mut Vec<Happened>) {
        let step = self.batch.step();
        let job = self.job_mut(slot);
        let (kv, joined) = (job.kv_tokens, job.joined_step);
        let steps = step - joined;
        job.generated += steps;
        job.kv_tokens += steps;
        let key = job.key;
        self.batch.leave(kv, joined);
        self.leave(slot);
        out.push(Happened::Finished { key });
    }

    /// Gives up a running job's memory and place.
    fn leave(&mut self, slot: Slot) -> Option<Job> {
        let job = self.jobs[slot as usize].take()?;
        self.free_slots.push(slot);
        self.running.remove(&job.admitted);
        self.own_pages -= self.own_pages_of(&job);
        if job.end != ROOT {
            self.cache.release(job.end);
        }
        Some(job)
    }

    /// Pages besides the path's. A decoding job's grow without being written down one by one.
    fn own_pages_of(&self, job: &Job) -> u64 {
        job.kv_tokens
            .div_ceil(self.shape.page_tokens)
            .saturating_sub(job.path_blocks * self.shape.block_pages())
            .max(job.own_pages)
    }

    /// The last admitted gives up its pages and waits again, first of all. What it has computed stays cached while nobody
    /// needs the room.
    pub(super) fn preempt_last(&mut self, out: &mut Vec<Happened>) {
        let Some((_, slot)) = self.running.last_key_value().map(|(order, slot)| (*order, *slot)) else { return };
        let step = self.batch.step();
        let decoding = !self.prefilling.contains(&slot);
        let (page_tokens, block_tokens) = (self.shape.page_tokens, self.shape.block_tokens);
        let job = self.job_mut(slot);
        let (kv, joined) = (job.kv_tokens, job.joined_step);
        if decoding {
            let steps = step - joined;
            job.generated += steps;
            job.kv_tokens += steps;
            // What it generated has names from now on.
            let blocks = (job.prompt_tokens + job.generated) / block_tokens;
            let more = blocks.saturating_sub(job.names.len() as u64);
            let key = job.key.0;
            names::extend_own(&mut job.names, key, more);
            job.goal_tokens = job.prompt_tokens.max(1) + job.generated;
            job.own_pages = job
                .kv_tokens
                .div_ceil(page_tokens)
                .saturating_sub(job.path_blocks * block_tokens.div_ceil(page_tokens));
            out.push(Happened::Preempted { key: job.key });
            self.batch.leave(kv, joined);
        } else {
            self.prefilling.retain(|other| *other != slot);
            self.chunks.retain(|chunk| chunk.slot != slot);
        }
        self.commit(slot);
        self.preemptions += 1;
        let Some(mut job) = self.leave(slot) else { return };
        (job.kv_tokens, job.end, job.path_blocks, job.own_pages) = (0, ROOT, 0, 0);
        (job.loading, job.handed_over) = (None, false);
        let slot = self.put(job);
        self.waiting.push_front(slot);
    }

    /// Everybody who decodes, with the KV that each holds after the steps that are over.
    pub fn decoding(&self) -> impl Iterator<Item = (Key, u64)> + '_ {
        let step = self.batch.step();
        let jobs = self.running.values().filter(|slot| !self.prefilling.contains(slot)).map(|slot| self.job(*slot));
        jobs.map(move |job| (job.key, job.kv_tokens + step - job.joined_step))
    }

    /// Context of everybody who runs: the whole prompt of who computes it, else the KV held after the steps that are over and `ahead`
    /// further ones.
    pub fn contexts(&self, ahead: u64) -> impl Iterator<Item = u64> + '_ {
        let step = self.batch.step() + ahead;
        let running = self.running.values().map(|slot| self.job(*slot));
        running.map(move |job| match job.rest_tokens() {
            0 => job.kv_tokens + step - job.joined_step,
            _ => job.goal_tokens,
        })
    }

    /// Takes a decoding request out with all that it holds, as it stands after the steps that are over.
    pub(super) fn take_out(&mut self, key: Key) -> Option<Job> {
        let of = |slot: &&Slot| self.job(**slot).key == key;
        let slot = *self.running.values().filter(|slot| !self.prefilling.contains(slot)).find(of)?;
        let step = self.batch.step();
        let job = self.job_mut(slot);
        let (kv, joined) = (job.kv_tokens, job.joined_step);
        job.generated += step - joined;
        job.kv_tokens += step - joined;
        self.batch.leave(kv, joined);
        self.newcomers.retain(|other| *other != key);
        self.leave(slot)
    }

    /// A request that waits leaves. False when it does not wait.
    pub(super) fn drop_waiting(&mut self, key: Key) -> bool {
        let Some(at) = self.waiting.iter().position(|slot| self.job(*slot).key == key) else { return false };
        if let Some(slot) = self.waiting.remove(at) {
            self.jobs[slot as usize] = None;
            self.free_slots.push(slot);
        }
        true
    }

    /// A request leaves between two steps, if it is still there. What was computed of it stays cached while nobody needs the room.
    pub(super) fn drop_running(&mut self, key: Key) {
        if self.drop_waiting(key) || self.take_out(key).is_some() {
            return;
        }
        let of = |slot: &&Slot| self.job(**slot).key == key;
        let Some(slot) = self.prefilling.iter().find(of).copied() else { return };
        self.prefilling.retain(|other| *other != slot);
        self.leave(slot);
    }

    /// Counters against what they count.
    ///
    /// # Errors
    /// Says which one is wrong.
    pub fn check(&self) -> Result<(), String> {
        self.cache.check()?;
        let step = self.batch.step();
        let mut own = 0;
        for slot in self.running.values() {
            let job = self.job(*slot);
            let grown = if self.prefilling.contains(slot) { 0 } else { step - job.joined_step };
            let needed = (job.kv_tokens + grown).div_ceil(self.shape.page_tokens);
            own += needed.saturating_sub(job.path_blocks * self.shape.block_pages()).max(job.own_pages);
        }
        if own != self.own_pages {
            return Err(format!("{own} pages are in use besides the cache, {} were counted", self.own_pages));
        }
        let pages = self.cache.blocks() * self.shape.block_pages() + own;
        if pages > self.shape.pages() {
            return Err(format!("{pages} pages of {} are in use", self.shape.pages()));
        }
        Ok(())
    }
}

impl Below {
    /// `kv_bytes_token`: KV of one token on the whole rank.
    #[must_use]
    pub fn new(host: Option<Tier>, pool: Option<SharedTier>, kv_bytes_token: f64) -> Self {
        Below { host, pool, kv_bytes_token, ..Below::default() }
    }

    /// Writes a chain through, and tells of what the host has gained and lost.
    fn keep(&mut self, chain: &[BlockName], block_tokens: u32, events: Option<&mut Vec<KvEvent>>) {
        if let Some(pool) = &self.pool {
            pool.borrow_mut().keep(chain, None);
        }
        let Some(host) = &mut self.host else { return };
        let mut gone = Vec::new();
        let known = host.keep(chain, events.is_some().then_some(&mut gone)) as usize;
        let Some(events) = events else { return };
        let medium = Medium::Host;
        if known < chain.len() {
            let parent = known.checked_sub(1).map(|at| chain[at]);
            let names = chain[known..].to_vec();
            events.push(KvEvent::Stored(StoredBlocks {
                names,
                parent,
                block_tokens,
                medium,
                ..StoredBlocks::default()
            }));
        }
        if !gone.is_empty() {
            events.push(KvEvent::Removed { names: gone, medium });
        }
    }
}

/// Whether an entry of the batch's list of ends is still true.
pub(super) fn is_here(jobs: &[Option<Job>]) -> impl Fn(Slot, u64) -> bool + '_ {
    |slot, admitted| jobs[slot as usize].as_ref().is_some_and(|job| job.admitted == admitted && job.rest_tokens() == 0)
}
