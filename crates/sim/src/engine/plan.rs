//! What the next step of a rank computes.

use super::Reserve;
use super::decode_batch::Slot;
use super::job::Loading;
use super::rank::{Chunk, Happened, Rank, is_here};
use crate::step_time::{Ramp, StepClock};
use plimsoll_timing::StepShape;

/// When pages run out, so many steps' growth is made room for at once.
const ROOM_STEPS: u64 = 64;

/// The next step of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planned {
    Idle,
    /// One step, with prefill in it.
    Mixed {
        fs: u64,
    },
    /// Up to so many steps of the same batch in a row.
    Decode {
        ramp: Ramp,
        steps: u64,
    },
}

/// What planning needs besides the rank.
pub(super) struct Planning<'a> {
    pub clock: &'a StepClock,
    /// Reused.
    pub shape: &'a mut StepShape,
    /// When the step begins.
    pub now_fs: u128,
    /// Prompts are held back: what decodes goes on.
    pub hold: bool,
}

impl Rank {
    /// The next step, and when the next load from below is through, if that may change what comes after it.
    pub(super) fn plan(&mut self, with: &mut Planning<'_>, out: &mut Vec<Happened>) -> (Planned, Option<u128>) {
        self.loads_through(with.now_fs);
        let planned = self.plan_step(with, out);
        let loads = self.prefilling.iter().filter_map(|slot| self.job(*slot).loading);
        (planned, loads.map(|loading| loading.until_fs).min())
    }

    /// Blocks that have come from below are computed ones.
    fn loads_through(&mut self, now_fs: u128) {
        for at in 0..self.prefilling.len() {
            let slot = self.prefilling[at];
            let block = self.shape.block_tokens;
            let job = self.job_mut(slot);
            let Some(loading) = job.loading.filter(|loading| loading.until_fs <= now_fs) else { continue };
            job.loading = None;
            let tokens = loading.blocks * block - job.kv_tokens;
            job.kv_tokens += tokens;
            self.below.loaded_tokens += tokens;
            self.commit(slot);
        }
    }

    fn plan_step(&mut self, with: &mut Planning<'_>, out: &mut Vec<Happened>) -> Planned {
        self.chunks.clear();
        let mut preempted_now = self.room_for_decode(out);
        let budget = self.shape.token_budget.saturating_sub(self.batch.requests());
        let mut budget = if with.hold { 0 } else { budget };
        let mut at = 0;
        while at < self.prefilling.len() && budget > 0 {
            let slot = self.prefilling[at];
            if self.job(slot).loading.is_some() {
                at += 1;
                continue;
            }
            let tokens = self.job(slot).rest_tokens().min(budget);
            match self.reserve(slot, tokens, out) {
                Reserved::Yes { preempted } => {
                    preempted_now |= preempted;
                    self.chunks.push(Chunk { slot, tokens });
                    budget -= tokens;
                    at += 1;
                }
                // It has given way itself, and with it everybody behind it.
                Reserved::GaveWay => preempted_now = true,
            }
        }
        if !preempted_now {
            self.admit(&mut budget, with, out);
        }
        self.decoding_planned = self.batch.requests() > 0;
        if self.chunks.is_empty() {
            if !self.decoding_planned {
                return Planned::Idle;
            }
            let (ramp, most) = with.clock.decode(self.batch.load());
            // Nobody is admitted in a step with a preemption; the next one looks again. Who took over shows its first token.
            let most = if preempted_now || !self.newcomers.is_empty() { 1 } else { most };
            let end = self.batch.next_end(is_here(&self.jobs)).unwrap_or(1);
            let steps = self.batch.steps_within(self.free_pages(), end.min(most));
            return Planned::Decode { ramp, steps: steps.max(1) };
        }
        let shape = &mut *with.shape;
        shape.clear();
        let load = self.batch.load();
        if load.requests > 0 {
            shape.add_decodes(load.requests, load.context_tokens, load.longest_tokens);
        }
        for chunk in &self.chunks {
            let job = self.job(chunk.slot);
            shape.add_prefill(chunk.tokens, job.kv_tokens, chunk.tokens == job.rest_tokens());
        }
        Planned::Mixed { fs: with.clock.step_fs(shape) }
    }

    /// Room for one more token of everybody who decodes; the last admitted give way until there is. True when one did.
    fn room_for_decode(&mut self, out: &mut Vec<Happened>) -> bool {
        let mut preempted = false;
        loop {
            let wanted = self.batch.pages_for(1);
            if self.free_pages() >= wanted {
                return preempted;
            }
            // Not one page a step: an eviction is an event that ends a run.
            self.make_free(self.batch.pages_for(ROOM_STEPS));
            if self.free_pages() >= wanted || self.running.len() < 2 {
                return preempted;
            }
            self.preempt_last(out);
            preempted = true;
        }
    }

    /// Pages for `tokens` more of a job in prefill.
    fn reserve(&mut self, slot: Slot, tokens: u64, out: &mut Vec<Happened>) -> Reserved {
        let mut preempted = false;
        loop {
            let job = self.job(slot);
            let have = job.path_blocks * self.shape.block_pages() + job.own_pages;
            let lacking = (job.kv_tokens + tokens).div_ceil(self.shape.page_tokens).saturating_sub(have);
            // What decodes in this step grows too.
            if lacking == 0 || self.make_free(lacking + self.batch.pages_for(1)) {
                self.job_mut(slot).own_pages += lacking;
                self.own_pages += lacking;
                return Reserved::Yes { preempted };
            }
            let last = self.running.last_key_value().map(|(_, slot)| *slot);
            self.preempt_last(out);
            preempted = true;
            if last == Some(slot) {
                return Reserved::GaveWay;
            }
        }
    }

    /// Moves waiting requests to running while budget, places and pages last.
    fn admit(&mut self, budget: &mut u64, with: &mut Planning<'_>, out: &mut Vec<Happened>) {
        while *budget > 0 && (self.running.len() as u64) < self.shape.max_running {
            let Some(slot) = self.waiting.front().copied() else { return };
            let block = self.shape.block_tokens;
            let job = self.job(slot);
            // The last token is always computed.
            let most = ((job.goal_tokens - 1) / block).min(job.names.len() as u64) as usize;
            let probe = self.cache.probe(&job.names[..most]);
            let until = match self.shape.reserve {
                Reserve::Chunk if !job.handed_over => job.goal_tokens.min(probe.blocks * block + *budget),
                _ => job.goal_tokens,
            };
            let own = until.div_ceil(self.shape.page_tokens) - probe.blocks * self.shape.block_pages();
            let growth = match self.shape.reserve {
                Reserve::Prompt => self.running.len() as u64,
                Reserve::Chunk => self.batch.pages_for(1),
            };
            // Who comes with its KV decodes in this very step.
            let growth = growth + u64::from(job.handed_over);
            let idle = (self.cache.idle_blocks() - probe.idle_blocks) * self.shape.block_pages();
            if self.free_pages() + idle < own + growth && !self.running.is_empty() {
                return;
            }
            self.leaves_queue();
            self.enter(slot, probe.blocks, own);
            if self.job(slot).handed_over {
                self.take_over(slot);
                continue;
            }
            self.prefilling.push(slot);
            if self.load_from_below(slot, most, with) {
                continue;
            }
            let tokens = self.job(slot).rest_tokens().min(*budget);
            match self.reserve(slot, tokens, out) {
                Reserved::Yes { .. } => {
                    self.chunks.push(Chunk { slot, tokens });
                    *budget -= tokens;
                }
                Reserved::GaveWay => return,
            }
        }
    }

    /// Gives a request its place, the blocks that are cached and `own` pages.
    fn enter(&mut self, slot: Slot, blocks: u64, own: u64) {
        self.admissions += 1;
        let (admitted, block) = (self.admissions, self.shape.block_tokens);
        let Some(job) = self.jobs[slot as usize].as_mut() else { return };
        job.end = self.cache.pin(&job.names, blocks);
        job.path_blocks = blocks;
        job.kv_tokens = blocks * block;
        let cached = job.kv_tokens.min(job.prompt_tokens);
        job.cached_tokens.get_or_insert(cached);
        job.admitted = admitted;
        self.running.insert(admitted, slot);
        self.make_free(own + self.batch.pages_for(1));
        self.job_mut(slot).own_pages = own;
        self.own_pages += own;
        debug_assert!(self.cache.blocks() * self.shape.block_pages() + self.own_pages <= self.shape.pages());
    }

    /// The KV of a request has come with it: it decodes from the next step on.
    fn take_over(&mut self, slot: Slot) {
        let step = self.batch.step();
        let job = self.job_mut(slot);
        job.kv_tokens = job.goal_tokens;
        job.joined_step = step;
        let (kv, left, admitted) = (job.kv_tokens, job.output_tokens - job.generated, job.admitted);
        let key = job.key;
        self.newcomers.push(key);
        self.commit(slot);
        self.batch.join(slot, kv, left, admitted);
        self.make_free(self.batch.pages_for(1));
    }

    /// Begins to load what a place below has of a chain behind what is here, if that is sooner there than computed.
    fn load_from_below(&mut self, slot: Slot, most: usize, with: &mut Planning<'_>) -> bool {
        if self.below.host.is_none() && self.below.pool.is_none() {
            return false;
        }
        let job = self.job(slot);
        // Of a prompt that was computed here before only what is left of it counts.
        let chain = &job.names[..most];
        let have = job.path_blocks;
        let pool = self.below.pool.as_ref().map(|pool| pool.borrow());
        let host = self.below.host.as_ref();
        let on_host = host.map_or(0, |host| host.probe(chain));
        let in_pool = pool.as_ref().map_or(0, |pool| pool.probe(chain));
        let from_host = on_host >= in_pool;
        let blocks = on_host.max(in_pool);
        let config = if from_host { host.map(|host| host.config) } else { pool.as_ref().map(|pool| pool.config) };
        drop(pool);
        let Some(config) = config.filter(|_| blocks > have) else { return false };
        let tokens = (blocks - have) * self.shape.block_tokens;
        with.shape.clear();
        with.shape.add_prefill(tokens, have * self.shape.block_tokens, false);
        let computed_fs = with.now_fs + u128::from(with.clock.step_fs(with.shape));
        let link = if from_host { self.below.host_link } else { self.below.pool_link };
        let until_fs = link.done(with.now_fs, tokens as f64 * self.below.kv_bytes_token, &config);
        if until_fs >= computed_fs {
            return false;
        }
        // Its pages must be there before the bytes come.
        let have_pages = have * self.shape.block_pages() + self.job(slot).own_pages;
        let lacking = (blocks * self.shape.block_pages()).saturating_sub(have_pages);
        if lacking > 0 && !self.make_free(lacking + self.batch.pages_for(1)) {
            return false;
        }
        self.own_pages += lacking;
        let block_tokens = self.shape.block_tokens;
        let job = self.job_mut(slot);
        job.own_pages += lacking;
        job.loading = Some(Loading { until_fs, blocks });
        let cached = (blocks * block_tokens).min(job.prompt_tokens);
        if job.generated == 0 {
            job.cached_tokens = Some(cached);
        }
        let link = if from_host { &mut self.below.host_link } else { &mut self.below.pool_link };
        link.take(until_fs);
        true
    }
}

enum Reserved {
    Yes { preempted: bool },
    GaveWay,
}
