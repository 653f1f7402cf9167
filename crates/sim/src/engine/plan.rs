//! What the next step of a rank computes.

use super::Reserve;
use super::decode_batch::Slot;
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
    Mixed { fs: u64 },
    /// Up to so many steps of the same batch in a row.
    Decode { ramp: Ramp, steps: u64 },
}

impl Rank {
    pub(super) fn plan(&mut self, clock: &StepClock, shape: &mut StepShape, out: &mut Vec<Happened>) -> Planned {
        self.chunks.clear();
        let mut preempted_now = self.room_for_decode(out);
        let mut budget = self.shape.token_budget.saturating_sub(self.batch.requests());
        let mut at = 0;
        while at < self.prefilling.len() && budget > 0 {
            let slot = self.prefilling[at];
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
            self.admit(&mut budget, out);
        }
        self.decoding_planned = self.batch.requests() > 0;
        if self.chunks.is_empty() {
            if !self.decoding_planned {
                return Planned::Idle;
            }
            let (ramp, most) = clock.decode(self.batch.load());
            // Nobody is admitted in a step with a preemption; the next one looks again.
            let most = if preempted_now { 1 } else { most };
            let end = self.batch.next_end(is_here(&self.jobs)).unwrap_or(1);
            let steps = self.batch.steps_within(self.free_pages(), end.min(most));
            return Planned::Decode { ramp, steps: steps.max(1) };
        }
        shape.clear();
        let load = self.batch.load();
        if load.requests > 0 {
            shape.add_decodes(load.requests, load.context_tokens, load.longest_tokens);
        }
        for chunk in &self.chunks {
            let job = self.job(chunk.slot);
            shape.add_prefill(chunk.tokens, job.kv_tokens, chunk.tokens == job.rest_tokens());
        }
        Planned::Mixed { fs: clock.step_fs(shape) }
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
    fn admit(&mut self, budget: &mut u64, out: &mut Vec<Happened>) {
        while *budget > 0 && (self.running.len() as u64) < self.shape.max_running {
            let Some(slot) = self.waiting.front().copied() else { return };
            let (block, page) = (self.shape.block_tokens, self.shape.page_tokens);
            let job = self.job(slot);
            // The last token is always computed.
            let most = ((job.goal_tokens - 1) / block).min(job.names.len() as u64);
            let probe = self.cache.probe(&job.names[..most as usize]);
            let hit_pages = probe.blocks * self.shape.block_pages();
            let until = match self.shape.reserve {
                Reserve::Prompt => job.goal_tokens,
                Reserve::Chunk => job.goal_tokens.min(probe.blocks * block + *budget),
            };
            let own = until.div_ceil(page) - hit_pages;
            let growth = match self.shape.reserve {
                Reserve::Prompt => self.running.len() as u64,
                Reserve::Chunk => self.batch.pages_for(1),
            };
            let idle = (self.cache.idle_blocks() - probe.idle_blocks) * self.shape.block_pages();
            if self.free_pages() + idle < own + growth && !self.running.is_empty() {
                return;
            }
            self.leaves_queue();
            self.admissions += 1;
            let admitted = self.admissions;
            let mut job = match self.jobs[slot as usize].take() {
                Some(job) => job,
                None => return,
            };
            job.end = self.cache.pin(&job.names, probe.blocks);
            job.path_blocks = probe.blocks;
            job.kv_tokens = probe.blocks * block;
            let cached = job.kv_tokens.min(job.prompt_tokens);
            job.cached_tokens.get_or_insert(cached);
            job.admitted = admitted;
            let tokens = job.rest_tokens().min(*budget);
            self.jobs[slot as usize] = Some(job);
            self.running.insert(admitted, slot);
            self.prefilling.push(slot);
            self.make_free(own + self.batch.pages_for(1));
            self.job_mut(slot).own_pages = own;
            self.own_pages += own;
            debug_assert!(self.cache.blocks() * self.shape.block_pages() + self.own_pages <= self.shape.pages());
            match self.reserve(slot, tokens, out) {
                Reserved::Yes { .. } => {
                    self.chunks.push(Chunk { slot, tokens });
                    *budget -= tokens;
                }
                Reserved::GaveWay => return,
            }
        }
    }
}

enum Reserved {
    Yes { preempted: bool },
    GaveWay,
}
