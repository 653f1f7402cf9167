//! Which tokens of which sequences the next step computes.
//!
//! Continuous batching: every step first serves the running sequences that decode (one token each), then prefill
//! chunks of running ones, then admits waiting ones in their turn, all within a token budget. When pages run out, the
//! last of the running gives up its pages and waits again, to be recomputed (bit for bit, see
//! [`crate::model::attention`]). The first of the running can always go on, so there is no deadlock.
//!
//! A step costs what runs and what it admits, however many wait.

use crate::block_manager::BlockManager;
use crate::kv_events::names::Scheme;
use crate::mailbox::Departures;
use crate::offload::load::Load;
use crate::offload::offloader::Offloader;
use crate::refusal::Refusal;
use crate::sequence::{Job, Sequence};
use claims::Claims;
use lateness::Watch;
use pace::Pace;
use plimsoll_core::Nanos;
use policy::{Order, SchedulePolicy};
use queue::Queue;
use std::sync::Arc;
use std::time::Instant;

pub(crate) mod claims;
mod displace;
mod lateness;
mod pace;
pub(crate) mod policy;
pub(crate) mod queue;
#[cfg(test)]
mod tests;

#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) blocks: BlockManager,
    pub(crate) waiting: Queue,
    /// In order of precedence: pages are taken from the last.
    pub(crate) running: Vec<Sequence>,
    limits: Limits,
    order: Order,
    /// Zero of its clock.
    origin: Instant,
    /// Tokens scheduled for the next step, of them those of decoding sequences, and how many there may be.
    planned: usize,
    decoding: usize,
    allowed: usize,
    pace: Pace,
    watch: Watch,
    claims: Claims,
    /// Who came since the last plan and would like to know whether it stays.
    fresh: Vec<u64>,
    /// Who has to go, and why; for the caller to tell them.
    pub(crate) turned_away: Vec<(Sequence, Refusal)>,
    pub(crate) retractions: u64,
    /// Sequences numbered so far.
    arrivals: u64,
    departures: Arc<Departures>,
    /// The first of the queue did not fit, and what it lacked.
    blocked: Option<Blocked>,
    /// Sequences that planning has looked at since the start.
    pub(crate) looked_at: u64,
    /// Places among the running that are kept for sequences on their way here.
    pub(crate) reserved_places: usize,
    /// Where evicted pages go; `None`: nowhere.
    pub(crate) offload: Option<Offloader>,
    /// There may be one among the running whose mailbox must be asked whether its reader left.
    lingering: bool,
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

/// Why an admission need not be tried again yet: a long prompt's pages are not looked up in every step.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    serial: u64,
    /// It cannot fit while [`Scheduler::level`] is below this.
    until_level: i64,
}

impl Scheduler {
    pub(crate) fn new(pages: usize, limits: Limits, order: Order, origin: Instant) -> Self {
        let mut blocks = BlockManager::new(pages);
        if limits.naming.is_some() {
            blocks.keep_log();
        }
        Scheduler {
            blocks,
            waiting: Queue::default(),
            running: Vec::new(),
            limits,
            order,
            origin,
            planned: 0,
            decoding: 0,
            allowed: 0,
            pace: Pace::default(),
            watch: Watch::default(),
            claims: Claims::default(),
            fresh: Vec::new(),
            turned_away: Vec::new(),
            retractions: 0,
            arrivals: 0,
            departures: Arc::default(),
            blocked: None,
            looked_at: 0,
            reserved_places: 0,
            offload: None,
            lingering: false,
        }
    }

    pub(crate) fn page_tokens(&self) -> usize {
        self.limits.page_tokens
    }

    /// A place among the running can be had now.
    pub(crate) fn has_place(&self) -> bool {
        self.running.len() + self.reserved_places < self.limits.max_running
    }

    /// The point in time on this scheduler's clock.
    pub(crate) fn at(&self, time: Instant) -> Nanos {
        let since = time.saturating_duration_since(self.origin);
        Nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Queues a sequence, or gives it back with the reason.
    pub(crate) fn submit(&mut self, sequence: Sequence, now: Nanos) -> Result<(), (Box<Sequence>, Refusal)> {
        let room = self.blocks.total() * self.limits.page_tokens;
        let tokens = sequence.most_computed();
        if tokens > room {
            return Err((Box::new(sequence), Refusal::NeverFits { tokens, room }));
        }
        if let Some(refusal) = self.too_slow_for(&sequence, now) {
            return Err((Box::new(sequence), refusal));
        }
        if self.waiting.len() >= self.limits.max_waiting {
            let supplants = |last: &&Sequence| self.order.may_supplant(&sequence, last);
            let Some(serial) = self.waiting.last_untouched().filter(supplants).map(|last| last.serial) else {
                return Err((Box::new(sequence), Refusal::QueueFull));
            };
            let last = self.waiting.remove(serial);
            self.turned_away.extend(last.map(|last| (last, Refusal::Displaced)));
        }
        self.enqueue(sequence);
        Ok(())
    }

    /// Lets a sequence without pages wait for its turn, however many wait already.
    pub(crate) fn enqueue(&mut self, mut sequence: Sequence) {
        debug_assert!(sequence.pages.is_empty() && sequence.computed == 0);
        self.number(&mut sequence);
        if sequence.retractions == 0 {
            if sequence.urgency.has_goal() {
                self.fresh.push(sequence.serial);
            }
            if self.order.policy == SchedulePolicy::Slo {
                let chain = &sequence.chain.digests()[..sequence.matchable()];
                let (hit, claim) = self.claims.claim(chain, |digest| {
                    self.blocks.is_cached(digest) || self.offload.as_ref().is_some_and(|tier| tier.has(digest))
                });
                sequence.expected_hit = hit * self.limits.page_tokens;
                sequence.claim = Some(claim);
            }
        }
        let turn = self.order.turn(&sequence);
        self.watch.enters(turn.rank, sequence.is_promised());
        self.waiting.insert(turn, sequence);
    }

    /// Gives a sequence its number, under which its reader's leaving is heard of.
    pub(crate) fn number(&mut self, sequence: &mut Sequence) {
        if sequence.serial == 0 {
            let serial = self.next_serial(sequence);
            sequence.mailbox.announce(&self.departures, serial);
        }
    }

    fn next_serial(&mut self, sequence: &mut Sequence) -> u64 {
        self.arrivals += 1;
        sequence.serial = self.arrivals;
        sequence.arrived_at = self.at(sequence.arrived);
        sequence.serial
    }

    /// Runs a sequence that came with its pages.
    pub(crate) fn adopt(&mut self, mut sequence: Sequence) {
        self.next_serial(&mut sequence);
        self.run(sequence);
    }

    /// Gives a sequence its place among the running, and says which.
    pub(crate) fn run(&mut self, sequence: Sequence) -> usize {
        let at = match self.order.policy {
            SchedulePolicy::Priority => {
                let turn = self.order.turn(&sequence);
                self.running.partition_point(|other| self.order.turn(other) < turn)
            }
            SchedulePolicy::Slo | SchedulePolicy::Fcfs => self.running.len(),
        };
        self.run_at(at, sequence);
        at
    }

    /// As [`Self::run`], in a place that it had before.
    pub(crate) fn run_at(&mut self, at: usize, sequence: Sequence) {
        self.lingering |= sequence.lingers;
        self.running.insert(at, sequence);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Takes out everybody that `gone` says, giving up the pages, and whether it ran. Visits everybody.
    pub(crate) fn remove(&mut self, mut gone: impl FnMut(&Sequence) -> bool) -> Vec<(Sequence, bool)> {
        let waiting = self.waiting.find(&mut gone);
        let mut removed: Vec<_> =
            waiting.into_iter().filter_map(|serial| Some((self.waiting.remove(serial)?, false))).collect();
        for sequence in self.running.extract_if(.., |sequence| gone(sequence)) {
            self.blocks.release(&sequence.pages);
            removed.push((sequence, true));
        }
        removed
    }

    /// Takes out what nobody reads any more, giving up the pages. Returns how many, and the numbers of those whose readers
    /// left but who do not wait here.
    pub(crate) fn sweep(&mut self) -> (usize, Vec<u64>) {
        let mut left = self.departures.take();
        let known = left.len();
        left.retain(|serial| self.waiting.remove(*serial).is_none());
        let waited = known - left.len();
        if left.is_empty() && !self.lingering {
            return (waited, left);
        }
        let before = self.running.len();
        left.sort_unstable();
        let is_left = |sequence: &mut Sequence| {
            if sequence.lingers { sequence.mailbox.is_closed() } else { left.binary_search(&sequence.serial).is_ok() }
        };
        for sequence in self.running.extract_if(.., is_left) {
            self.blocks.release(&sequence.pages);
        }
        self.lingering = self.running.iter().any(|sequence| sequence.lingers);
        (waited + before - self.running.len(), left)
    }

    /// Takes out the running sequences with these indices, in rising order: they are complete.
    pub(crate) fn retire(&mut self, done: &[usize]) {
        if done.is_empty() {
            return;
        }
        let mut index = 0..;
        let complete = |_: &mut Sequence| index.next().is_some_and(|index| done.binary_search(&index).is_ok());
        for sequence in self.running.extract_if(.., complete) {
            self.blocks.release(&sequence.pages);
        }
    }

    /// Sets `scheduled` of every running sequence for the next step. Returns the tokens planned.
    pub(crate) fn plan(&mut self, now: Nanos) -> usize {
        // What was planned before is computed by now.
        self.watch.count(self.planned - self.decoding);
        self.turn_away_the_late(now);
        for serial in std::mem::take(&mut self.fresh) {
            if let Some(sequence) = self.waiting.get(serial) {
                sequence.mailbox.settle();
            }
        }
        let retractions = self.retractions;
        debug_assert!(self.running.iter().all(|sequence| sequence.scheduled == 0), "a step was not committed");
        self.looked_at += self.running.len() as u64;
        (self.planned, self.decoding) = (0, 0);
        self.allowed = self.limits.token_budget;
        let mut index = 0;
        while index < self.running.len() && self.budget() > 0 {
            if self.running[index].remaining() == 1 && self.running[index].load.is_none() {
                self.schedule(index);
            }
            index += 1;
        }
        self.decoding = self.planned;
        // Where all that run decode and nobody waits, that was all.
        if self.planned < self.running.len() || !self.waiting.is_empty() {
            self.plan_prefill(now, retractions);
        }
        self.planned
    }

    fn plan_prefill(&mut self, now: Nanos, retractions_before: u64) {
        self.allowed = self.allowed.min(self.planned + self.prefill_room(now));
        for index in self.prefills() {
            // Preemption takes from the end; who is left keeps its index.
            if index < self.running.len() && self.budget() > 0 {
                self.schedule(index);
            }
        }
        if retractions_before == self.retractions {
            self.admit();
        }
    }

    /// Indices of the running sequences in prefill, in the order in which they get chunks: who is due first under `slo`,
    /// else as they stand.
    fn prefills(&self) -> Vec<usize> {
        let mut prefills: Vec<usize> =
            (0..self.running.len()).filter(|index| self.running[*index].is_in_prefill()).collect();
        if self.order.policy == SchedulePolicy::Slo {
            prefills.sort_by_key(|index| self.order.turn(&self.running[*index]));
        }
        prefills
    }

    /// A step that was planned ended at `now` and took so long.
    pub(crate) fn observe(&mut self, now: Nanos, took: Nanos) {
        self.pace.observe(now, self.planned - self.decoding, self.decoding, took);
    }

    fn budget(&self) -> usize {
        self.allowed.saturating_sub(self.planned)
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

    /// Allocates pages for `tokens` more of a running sequence, preempting those behind it. False when it had to give up
    /// itself.
    fn make_room(&mut self, index: usize, tokens: usize) -> bool {
        let sequence = &self.running[index];
        let end = sequence.computed + tokens;
        if end <= sequence.pages.len() * self.limits.page_tokens {
            return true;
        }
        let wanted = end.div_ceil(self.limits.page_tokens);
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
        let decoded = sequence.remaining() == 1;
        self.blocks.release(&sequence.pages);
        sequence.lose_pages();
        let unplanned = std::mem::take(&mut sequence.scheduled);
        self.planned -= unplanned;
        if decoded {
            self.decoding = self.decoding.saturating_sub(unplanned);
        }
        sequence.retractions += 1;
        if let Job::Embed { sum } = &mut sequence.job {
            sum.clear();
        }
        self.retractions += 1;
        sequence.mailbox.post(|update| update.retractions += 1);
        self.enqueue(sequence);
    }

    /// Moves waiting sequences to running while budget, places and pages last.
    fn admit(&mut self) {
        while self.budget() > 0 && !self.waiting.is_empty() {
            if !self.has_place() && !self.displace(0) {
                return;
            }
            let hit = match self.fitting_hit() {
                Ok(hit) => hit,
                Err(lacking) if self.displace(lacking) => continue,
                Err(_) => return,
            };
            let Some(mut sequence) = self.waiting.pop_first() else { return };
            self.blocked = None;
            self.blocks.take(&hit);
            sequence.computed = hit.len() * self.limits.page_tokens;
            sequence.committed_pages = hit.len();
            sequence.pages = hit;
            let cached = sequence.computed.min(sequence.prompt_len);
            let is_first = sequence.cached_tokens.is_none();
            if is_first {
                sequence.cached_tokens = Some(cached);
                sequence.mailbox.post(|update| update.cached_tokens = cached);
            }
            self.want_load(&mut sequence, is_first);
            let waits = sequence.load.is_some();
            let index = self.run(sequence);
            if !waits && !self.schedule(index) {
                return;
            }
        }
    }

    /// Gives an admitted sequence pages for what the offload tier has of its prefix behind those it has, to be loaded before
    /// it computes.
    fn want_load(&mut self, sequence: &mut Sequence, is_first: bool) {
        let Some(offload) = &self.offload else { return };
        let have = sequence.pages.len();
        let wanted = &sequence.chain.digests()[have..sequence.matchable().max(have)];
        let wanted = offload.promises(wanted);
        // There are as many as were counted before, unless it is alone under a fault's pressure.
        sequence.pages.extend(std::iter::from_fn(|| self.blocks.allocate()).take(wanted));
        let pages = sequence.pages.len() - have;
        sequence.load = (pages > 0).then(|| Load::wanted(pages, is_first));
    }

    /// The cached pages that the first of the queue can take, if there is room for it now; else how many pages are lacking.
    fn fitting_hit(&mut self) -> Result<Vec<u32>, usize> {
        let Some(next) = self.waiting.first() else { return Err(0) };
        self.looked_at += 1;
        // Pages may also be held by who is on the way here or from here.
        let alone = self.running.is_empty() && self.blocks.held() == 0;
        let level = self.level();
        if !alone && let Some(it) = self.blocked.filter(|it| it.serial == next.serial && level < it.until_level) {
            return Err((it.until_level - level) as usize);
        }
        let hit = self.blocks.lookup(&next.chain.digests()[..next.matchable()]);
        // Room for the whole prompt, and for one page of growth of everything that runs.
        let wanted = next.tokens.len().div_ceil(self.limits.page_tokens) - hit.len() + self.running.len();
        let spare = self.blocks.available() - self.blocks.idle_among(&hit);
        if !alone && spare < wanted {
            let until_level = level + (wanted - spare) as i64;
            self.blocked = Some(Blocked { serial: next.serial, until_level });
            return Err(wanted - spare);
        }
        Ok(hit)
    }

    /// Rises by at least one for each page by which the room for the first of the queue grows: pages given up, sequences
    /// that no longer need room to grow, pages of its own prompt that others have computed.
    pub(crate) fn level(&self) -> i64 {
        (self.blocks.available() as u64 + self.blocks.committed_pages()) as i64 - self.running.len() as i64
    }

    /// After a step: the scheduled tokens are computed; full pages become findable.
    pub(crate) fn commit(&mut self, index: usize) {
        let sequence = &mut self.running[index];
        sequence.computed += std::mem::take(&mut sequence.scheduled);
        sequence.commit_pages(&mut self.blocks, self.limits.naming, self.limits.page_tokens);
        // A prompt is computed up to its end before anything behind it is, and only a prompt has a claim.
        if sequence.computed == sequence.prompt_len {
            sequence.claim = None;
        }
    }

    /// As [`Self::commit`], for sequences that fill a page each with one token behind their prompts. What that reads lies far
    /// from any cache and apart, so it is fetched for all of them together.
    pub(crate) fn commit_full(&mut self, indices: impl Iterator<Item = usize> + Clone) {
        indices.clone().for_each(|index| self.running[index].name_pages());
        let is_known = |index: usize| self.running[index].next_name().is_some_and(|name| self.blocks.is_cached(name));
        std::hint::black_box(indices.clone().map(is_known).fold(false, std::ops::BitXor::bitxor));
        indices.for_each(|index| self.commit(index));
    }

    /// These pages of a running sequence, behind its computed ones, were loaded.
    pub(crate) fn commit_loaded(&mut self, index: usize, pages: usize) {
        let sequence = &mut self.running[index];
        sequence.computed += pages * self.limits.page_tokens;
        sequence.commit_pages(&mut self.blocks, self.limits.naming, self.limits.page_tokens);
    }

    /// As [`Self::commit`], for a sequence that is not in the schedule.
    pub(crate) fn commit_pages(&mut self, sequence: &mut Sequence) {
        sequence.commit_pages(&mut self.blocks, self.limits.naming, self.limits.page_tokens);
    }

    /// Prompt tokens that still wait for prefill, and of them those that will have to be computed, as far as can be told:
    /// `miss_rate` is the share that had to be lately. `slo` knows better what waits.
    pub(crate) fn waiting_tokens(&self, miss_rate: f64) -> (usize, usize) {
        let waiting = match self.order.policy {
            SchedulePolicy::Slo => self.waiting.expected(),
            SchedulePolicy::Fcfs | SchedulePolicy::Priority => {
                (self.waiting.tokens() as f64 * miss_rate).ceil() as usize
            }
        };
        // What is left of prompts that are being computed.
        let chunked: usize = self.running.iter().map(Sequence::remaining).filter(|rest| *rest > 1).sum();
        (self.waiting.tokens() + chunked, waiting + chunked)
    }

    /// Pages, holders and counters agree.
    #[cfg(test)]
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_with(&[])
    }

    /// As [`Self::check`], with pages that are held elsewhere.
    #[cfg(test)]
    pub(crate) fn check_with(&self, held: &[u32]) -> Result<(), String> {
        let mut holders = vec![0; self.blocks.total()];
        for page in self.running.iter().flat_map(|sequence| &sequence.pages).chain(held) {
            holders[*page as usize] += 1;
        }
        if self.waiting.iter().any(|sequence| !sequence.pages.is_empty() || sequence.load.is_some()) {
            return Err("a waiting sequence holds pages, or waits for some".to_owned());
        }
        let tokens: usize = self.waiting.iter().map(Sequence::remaining).sum();
        if tokens != self.waiting.tokens() {
            return Err(format!("{tokens} tokens wait, {} were counted", self.waiting.tokens()));
        }
        let expected: usize = self.waiting.iter().map(Sequence::expected_prefill).sum();
        if expected != self.waiting.expected() {
            return Err(format!("{expected} tokens are to be computed, {} were counted", self.waiting.expected()));
        }
        self.blocks.check(&holders)
    }
}
