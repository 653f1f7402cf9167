//! Which tokens of which sequences the next step computes.
//!
//! Continuous batching: every step first serves the running sequences that decode (one token each), then prefill
//! chunks of running ones, then admits waiting ones first come first served, all within a token budget. When pages
//! run out, the sequence admitted last gives up its pages and goes back to the head of the queue, to be recomputed
//! (bit for bit, see [`crate::model::attention`]). The first one admitted can always go on, so there is no deadlock.

use crate::block_manager::BlockManager;
use crate::kv_events::Label;
use crate::kv_events::names::{Names, Scheme};
use crate::sequence::{Job, Sequence};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) blocks: BlockManager,
    pub(crate) waiting: VecDeque<Sequence>,
    /// In order of admission.
    pub(crate) running: Vec<Sequence>,
    limits: Limits,
    /// Tokens scheduled for the next step.
    planned: usize,
    pub(crate) retractions: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) page_tokens: usize,
    pub(crate) max_running: usize,
    pub(crate) max_waiting: usize,
    pub(crate) token_budget: usize,
    /// How KV events name pages; `None`: nobody listens.
    pub(crate) naming: Option<Scheme>,
}

impl Scheduler {
    pub(crate) fn new(pages: usize, limits: Limits) -> Self {
        let mut blocks = BlockManager::new(pages);
        if limits.naming.is_some() {
            blocks.keep_log();
        }
        Scheduler { blocks, waiting: VecDeque::new(), running: Vec::new(), limits, planned: 0, retractions: 0 }
    }

    /// Queues a sequence. Gives it back when the queue is full.
    pub(crate) fn submit(&mut self, sequence: Sequence) -> Result<(), Box<Sequence>> {
        if self.waiting.len() >= self.limits.max_waiting {
            return Err(Box::new(sequence));
        }
        self.waiting.push_back(sequence);
        Ok(())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Takes out every sequence that `gone` says, giving up its pages.
    pub(crate) fn remove(&mut self, mut gone: impl FnMut(&Sequence, bool) -> bool) -> Vec<Sequence> {
        let mut removed: Vec<Sequence> = Vec::new();
        let mut keep = VecDeque::with_capacity(self.waiting.len());
        for sequence in self.waiting.drain(..) {
            if gone(&sequence, false) { removed.push(sequence) } else { keep.push_back(sequence) }
        }
        self.waiting = keep;
        for sequence in self.running.extract_if(.., |sequence| gone(sequence, true)) {
            self.blocks.release(&sequence.pages);
            removed.push(sequence);
        }
        removed
    }

    /// Sets `scheduled` of every running sequence for the next step. Returns the tokens planned.
    pub(crate) fn plan(&mut self) -> usize {
        for sequence in &mut self.running {
            sequence.scheduled = 0;
        }
        self.planned = 0;
        let retractions = self.retractions;
        for decoding in [true, false] {
            let mut index = 0;
            while index < self.running.len() && self.budget() > 0 {
                let remaining = self.running[index].remaining();
                if (remaining == 1) == decoding {
                    self.schedule(index);
                }
                index += 1;
            }
        }
        if retractions == self.retractions {
            self.admit();
        }
        self.planned
    }

    fn budget(&self) -> usize {
        self.limits.token_budget - self.planned
    }

    /// Schedules as much of a running sequence as the budget allows. False when it had to give up its pages.
    fn schedule(&mut self, index: usize) -> bool {
        let tokens = self.running[index].remaining().min(self.budget());
        let fits = self.make_room(index, tokens);
        if fits {
            self.running[index].scheduled = tokens;
            self.planned += tokens;
        }
        fits
    }

    /// Allocates pages for `tokens` more of a running sequence, preempting those admitted after it. False when it had
    /// to give up itself.
    fn make_room(&mut self, index: usize, tokens: usize) -> bool {
        let sequence = &self.running[index];
        let wanted = (sequence.computed + tokens).div_ceil(self.limits.page_tokens);
        while self.running[index].pages.len() < wanted {
            match self.blocks.allocate() {
                Some(page) => self.running[index].pages.push(page),
                None => {
                    let last = self.running.len() - 1;
                    self.preempt_last();
                    if last == index {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn preempt_last(&mut self) {
        let Some(mut sequence) = self.running.pop() else { return };
        self.blocks.release(&sequence.pages);
        sequence.pages.clear();
        sequence.committed_pages = 0;
        sequence.computed = 0;
        self.planned -= std::mem::take(&mut sequence.scheduled);
        sequence.retractions += 1;
        if let Job::Embed { sum } = &mut sequence.job {
            sum.clear();
        }
        self.retractions += 1;
        sequence.mailbox.post(|update| update.retractions += 1);
        self.waiting.push_front(sequence);
    }

    /// Moves waiting sequences to running while budget, places and pages last.
    fn admit(&mut self) {
        while self.budget() > 0 && self.running.len() < self.limits.max_running {
            let Some(next) = self.waiting.front() else { return };
            let hit =
                self.blocks.lookup(&next.chain.digests()[..next.matchable_pages().min(next.chain.digests().len())]);
            let wanted = next.tokens.len().div_ceil(self.limits.page_tokens) - hit.len();
            // Room for the whole prompt, and for one page of growth of everything that runs.
            let spare = self.blocks.available() - self.blocks.idle_among(&hit);
            if !self.running.is_empty() && spare < wanted + self.running.len() {
                return;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            self.blocks.take(&hit);
            sequence.computed = hit.len() * self.limits.page_tokens;
            sequence.committed_pages = hit.len();
            sequence.pages = hit;
            let cached = sequence.computed.min(sequence.prompt_len);
            if sequence.cached_tokens.is_none() {
                sequence.cached_tokens = Some(cached);
                sequence.mailbox.post(|update| update.cached_tokens = cached);
            }
            self.running.push(sequence);
            if !self.schedule(self.running.len() - 1) {
                return;
            }
        }
    }

    /// After a step: the scheduled tokens are computed; full pages become findable.
    pub(crate) fn commit(&mut self, index: usize) {
        let sequence = &mut self.running[index];
        sequence.computed += sequence.scheduled;
        sequence.chain.extend(&sequence.tokens);
        let full = sequence.computed / self.limits.page_tokens;
        let Sequence { chain, names, tokens, owner, pages, .. } = sequence;
        if let Some(naming) = self.limits.naming {
            let new = || Names::new(naming, Arc::clone(owner), self.limits.page_tokens);
            names.get_or_insert_with(new).extend(chain, tokens);
        }
        for page in sequence.committed_pages..full {
            let parent = page.checked_sub(1).map(|above| pages[above]);
            let label = || names.as_ref().map_or_else(Label::default, |names| names.label(page, tokens));
            pages[page] = self.blocks.commit(pages[page], chain.digests()[page], parent, label);
        }
        sequence.committed_pages = full;
    }

    /// Prompt tokens that still wait for prefill.
    pub(crate) fn waiting_tokens(&self) -> usize {
        let queued: usize = self.waiting.iter().map(Sequence::remaining).sum();
        let chunked: usize = self.running.iter().map(Sequence::remaining).filter(|rest| *rest > 1).sum();
        queued + chunked
    }

    /// Pages, holders and counters agree.
    #[cfg(test)]
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut holders = vec![0; self.blocks.total()];
        for page in self.running.iter().flat_map(|sequence| &sequence.pages) {
            holders[*page as usize] += 1;
        }
        if self.waiting.iter().any(|sequence| !sequence.pages.is_empty()) {
            return Err("a waiting sequence holds pages".to_owned());
        }
        self.blocks.check(&holders)
    }
}
