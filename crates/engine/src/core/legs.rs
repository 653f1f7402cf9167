//! Requests of which this engine computes a part: those on their way to a decode engine, and those on their way here from
//! a prefill engine. Between steps, never in one.

use super::Core;
use super::moving::NoRoom;
use crate::disagg::failure::Failure;
use crate::disagg::leg::{Inbound, Leg, News, Reply, Turn};
use crate::disagg::notes::First;
use crate::offload::load::Load;
use crate::refusal::Refusal;
use crate::request::Finish;
use crate::sequence::Sequence;
use crate::transfer::Pages;
use plimsoll_cache::Chain;
use std::collections::VecDeque;
use std::time::Instant;

mod loading;

/// Legs that are not in the schedule, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Legs {
    /// Prefill: decode is not there or has no room yet. They hold nothing.
    bootstrapping: VecDeque<Sequence>,
    /// Prefill: computed, on their way. They hold their pages until those are copied out.
    shipping: Vec<Sequence>,
    /// Decode: waiting for the prefill leg, for pages, for what is in them.
    arriving: VecDeque<Arriving>,
    /// Some task has news.
    rung: bool,
}

#[derive(Debug)]
struct Arriving {
    sequence: Sequence,
    leg: Box<Inbound>,
    hold: Hold,
}

#[derive(Debug)]
enum Hold {
    /// The prefill leg is not there.
    Nothing,
    /// It is: pages and a place are wanted. They are not to be had while the scheduler's level is below this.
    Wanted { from_level: i64 },
    /// A place, and pages for the whole prompt, of which the first `have` came from the cache.
    Pages { pages: Vec<u32>, have: usize },
    /// The same, while the offload tier brings some; prefill waits.
    Loading { pages: Vec<u32>, have: usize, load: Box<Load> },
}

impl Hold {
    fn pages(&self) -> Option<&[u32]> {
        match self {
            Hold::Pages { pages, .. } | Hold::Loading { pages, .. } => Some(pages),
            Hold::Nothing | Hold::Wanted { .. } => None,
        }
    }
}

/// How many legs wait for what, in SGLang's terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LegCounts {
    pub(crate) prefill_bootstrap: usize,
    pub(crate) prefill_inflight: usize,
    pub(crate) decode_prealloc: usize,
    pub(crate) decode_transfer: usize,
    /// Prompt tokens of all legs that hold no pages yet.
    pub(crate) waiting_tokens: usize,
}

impl Legs {
    pub(crate) fn is_empty(&self) -> bool {
        self.bootstrapping.is_empty() && self.shipping.is_empty() && self.arriving.is_empty()
    }

    /// Legs that wait for their turn, as requests in the queue do.
    fn waiting(&self) -> usize {
        let unheld = self.arriving.iter().filter(|arriving| arriving.hold.pages().is_none());
        self.bootstrapping.len() + unheld.count()
    }

    pub(crate) fn counts(&self) -> LegCounts {
        let held = |arriving: &&Arriving| arriving.hold.pages().is_some();
        let decode_transfer = self.arriving.iter().filter(held).count();
        let unheld = self.arriving.iter().filter(|arriving| !held(arriving)).map(|arriving| &arriving.sequence);
        LegCounts {
            prefill_bootstrap: self.bootstrapping.len(),
            prefill_inflight: self.shipping.len(),
            decode_prealloc: self.arriving.len() - decode_transfer,
            decode_transfer,
            waiting_tokens: unheld.chain(&self.bootstrapping).map(|sequence| sequence.prompt_len).sum(),
        }
    }

    #[cfg(test)]
    pub(crate) fn is_loading(&self) -> bool {
        self.arriving.iter().any(|arriving| matches!(arriving.hold, Hold::Loading { .. }))
    }

    /// Pages that are held outside the schedule.
    #[cfg(test)]
    pub(crate) fn held_pages(&self) -> Vec<u32> {
        let arriving = self.arriving.iter().filter_map(|arriving| arriving.hold.pages());
        self.shipping.iter().map(|sequence| &*sequence.pages).chain(arriving).flatten().copied().collect()
    }
}

impl Core {
    /// Takes a request of which this engine computes a part.
    pub(crate) fn submit_leg(&mut self, mut sequence: Sequence, leg: Leg) {
        self.stats.requests += 1;
        let room = self.scheduler.blocks.total() * self.page_tokens();
        // Prefill keeps the prompt, decode everything.
        let tokens = if matches!(leg, Leg::Prefill(_)) { sequence.prompt_len } else { sequence.most_computed() };
        if tokens > room {
            self.refuse(&mut sequence, Refusal::NeverFits { tokens, room });
        } else if self.legs.waiting() + self.scheduler.waiting.len() >= self.max_waiting {
            self.refuse(&mut sequence, Refusal::QueueFull);
        } else {
            self.scheduler.number(&mut sequence);
            match leg {
                Leg::Prefill(outbound) => {
                    sequence.outbound = Some(outbound);
                    self.legs.bootstrapping.push_back(sequence);
                }
                Leg::Decode(leg) => {
                    sequence.report_no_prompt();
                    self.legs.arriving.push_back(Arriving { sequence, leg, hold: Hold::Nothing });
                }
            }
            self.legs.rung = true;
        }
        self.refresh();
    }

    pub(super) fn refuse(&mut self, sequence: &mut Sequence, refusal: Refusal) {
        self.stats.refused += 1;
        sequence.refuse(refusal);
    }

    /// Nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.legs.is_empty()
    }

    /// A task has news.
    pub(crate) fn ring(&mut self) {
        self.legs.rung = true;
    }

    /// Takes in and gives out what there is. Between steps; costs little when nobody rang.
    pub(super) fn attend(&mut self) {
        if std::mem::take(&mut self.legs.rung) {
            self.begin_prefills();
            self.drop_failed_prefills();
            self.receive();
        }
        self.ship();
        self.load_arrivals(Instant::now());
        self.make_room_for_arrivals();
    }

    /// Queues prefill legs whose decode leg has room.
    fn begin_prefills(&mut self) {
        for _ in 0..self.legs.bootstrapping.len() {
            let Some(mut sequence) = self.legs.bootstrapping.pop_front() else { return };
            match turn_of(&mut sequence) {
                Ok(None) => self.legs.bootstrapping.push_back(sequence),
                Ok(Some(_)) => self.scheduler.enqueue(sequence),
                Err(failure) => self.fail(&mut sequence, &failure),
            }
        }
    }

    /// Prefill legs in the schedule whose decode leg is gone.
    fn drop_failed_prefills(&mut self) {
        let over = |sequence: &Sequence| sequence.outbound.as_ref().is_some_and(|leg| leg.is_over());
        for (mut sequence, _) in self.scheduler.remove(over) {
            if let Some(failure) = sequence.outbound.as_ref().map(|leg| leg.failure()) {
                self.fail(&mut sequence, &failure);
            }
        }
    }

    /// A prefill leg in the schedule has its first token: it leaves the schedule with its pages.
    pub(super) fn leave_with(&mut self, index: usize, first: First) {
        let mut sequence = self.scheduler.running.remove(index);
        if let Some(outbound) = &mut sequence.outbound {
            outbound.first = Some(first);
        }
        self.legs.shipping.push(sequence);
    }

    /// Copies out what is computed, and ends the legs that decode has taken over.
    pub(super) fn ship(&mut self) {
        let page_tokens = self.page_tokens();
        for sequence in &mut self.scheduler.running {
            if let Some(outbound) = &mut sequence.outbound {
                outbound.ship(&sequence.pages, sequence.computed / page_tokens, &self.kv);
            }
        }
        let mut index = 0;
        while index < self.legs.shipping.len() {
            let sequence = &mut self.legs.shipping[index];
            let Some(outbound) = &mut sequence.outbound else { break };
            outbound.ship(&sequence.pages, sequence.pages.len(), &self.kv);
            if outbound.is_shipped() {
                self.scheduler.blocks.release(&sequence.pages);
                sequence.pages.clear();
            }
            outbound.end();
            match turn_of(sequence) {
                Ok(None) => index += 1,
                Ok(Some(_)) => {
                    let mut sequence = self.legs.shipping.swap_remove(index);
                    if let Some(first) = sequence.outbound.take().and_then(|leg| leg.first) {
                        sequence.hand_over(&first, &self.rules);
                    }
                    self.scheduler.blocks.release(&sequence.pages);
                }
                Err(failure) => {
                    let mut sequence = self.legs.shipping.swap_remove(index);
                    self.scheduler.blocks.release(&sequence.pages);
                    self.fail(&mut sequence, &failure);
                }
            }
        }
    }

    /// Takes in what came from prefill engines.
    fn receive(&mut self) {
        let mut index = 0;
        while index < self.legs.arriving.len() {
            match self.legs.arriving[index].leg.news() {
                Ok(None) => index += 1,
                Ok(Some(News::Paired)) => self.legs.arriving[index].hold = Hold::Wanted { from_level: i64::MIN },
                Ok(Some(News::Pages(pages))) => self.write(index, &pages),
                Ok(Some(News::Landed(first))) => self.land(index, &first),
                Ok(Some(News::Failed(failure))) => self.fail_arriving(index, &failure),
                Err(()) => self.fail_arriving(index, &Failure::unknown()),
            }
        }
    }

    /// The pages were checked: they are due, in order, of this chain.
    fn write(&mut self, index: usize, arrived: &Pages) {
        for page in arrived.iter() {
            let Hold::Pages { pages, .. } = &self.legs.arriving[index].hold else { return };
            let own = pages.get(page.index as usize).copied();
            let written = own.map(|own| self.write_kv(own, page.bytes));
            debug_assert!(matches!(written, Some(Ok(()))), "a page that is not due was let through");
        }
    }

    /// Everything is here: the request runs.
    fn land(&mut self, index: usize, first: &First) {
        let Some(Arriving { mut sequence, leg, hold }) = self.legs.arriving.remove(index) else { return };
        let Hold::Pages { pages, have } = hold else { return };
        let now = Instant::now();
        self.scheduler.reserved_places -= 1;
        sequence.computed = sequence.prompt_len;
        sequence.scheduled = 0;
        sequence.pages = pages;
        sequence.committed_pages = have.min(sequence.prompt_len / self.page_tokens());
        let cached = first.cached_tokens.min(sequence.prompt_len);
        sequence.cached_tokens = Some(cached);
        sequence.mailbox.post(|update| update.cached_tokens = cached);
        let at = self.scheduler.run(sequence);
        self.scheduler.commit(at);
        let sequence = &mut self.scheduler.running[at];
        self.stats.ttft.observe((now - sequence.arrived).as_secs_f64());
        sequence.last_token = Some(now);
        let finish: Option<Finish> = sequence.go_on_from(first, &self.rules);
        leg.reply(Reply::Landed);
        if finish.is_some() {
            let sequence = self.scheduler.running.remove(at);
            self.stats.e2e.observe((now - sequence.arrived).as_secs_f64());
            self.scheduler.blocks.release(&sequence.pages);
        }
    }

    /// Holds pages and a place for arrivals, first come first served, as far as they last. Requests that gave up their
    /// pages come first.
    fn make_room_for_arrivals(&mut self) {
        if self.legs.arriving.is_empty() || !self.scheduler.waiting.is_empty() {
            return;
        }
        for index in 0..self.legs.arriving.len() {
            let Hold::Wanted { from_level } = self.legs.arriving[index].hold else { continue };
            if !self.scheduler.has_place() || self.scheduler.level() < from_level {
                return;
            }
            let wanted = self.legs.arriving[index].sequence.prompt_len.div_ceil(self.page_tokens());
            let empty = Chain::new(1, None);
            let chain = std::mem::replace(&mut self.legs.arriving[index].sequence.chain, empty);
            let reserved = self.reserve(chain.digests(), wanted);
            self.legs.arriving[index].sequence.chain = chain;
            match reserved {
                Ok((pages, have)) => self.hold(index, pages, have),
                Err(NoRoom { pages, available_pages, .. }) => {
                    let lacking = pages.saturating_sub(available_pages) as i64;
                    let from_level = self.scheduler.level() + lacking;
                    self.legs.arriving[index].hold = Hold::Wanted { from_level };
                    return;
                }
            }
        }
    }

    fn fail_arriving(&mut self, index: usize, failure: &Failure) {
        let Some(arriving) = self.legs.arriving.remove(index) else { return };
        let mut sequence = self.let_go(arriving);
        self.fail(&mut sequence, failure);
    }

    fn let_go(&mut self, arriving: Arriving) -> Sequence {
        if let Some(pages) = arriving.hold.pages() {
            self.unreserve(pages);
        }
        arriving.sequence
    }

    fn fail(&mut self, sequence: &mut Sequence, failure: &Failure) {
        self.stats.aborted += 1;
        sequence.abort(&failure.message, Some(500));
    }

    /// Takes out every leg outside the schedule that `gone` says, with whether it had begun.
    pub(super) fn remove_legs(&mut self, gone: impl Fn(&Sequence) -> bool) -> Vec<(Sequence, bool)> {
        let mut removed = Vec::new();
        for _ in 0..self.legs.bootstrapping.len() {
            let Some(sequence) = self.legs.bootstrapping.pop_front() else { break };
            if gone(&sequence) {
                removed.push((sequence, false));
            } else {
                self.legs.bootstrapping.push_back(sequence);
            }
        }
        for sequence in self.legs.shipping.extract_if(.., |sequence| gone(sequence)) {
            self.scheduler.blocks.release(&sequence.pages);
            removed.push((sequence, true));
        }
        for _ in 0..self.legs.arriving.len() {
            let Some(arriving) = self.legs.arriving.pop_front() else { break };
            if gone(&arriving.sequence) {
                let begun = arriving.hold.pages().is_some();
                removed.push((self.let_go(arriving), begun));
            } else {
                self.legs.arriving.push_back(arriving);
            }
        }
        removed
    }
}

/// What the task of a prefill leg says; `Err` when it failed.
fn turn_of(sequence: &mut Sequence) -> Result<Option<Turn>, Failure> {
    sequence.outbound.as_mut().map_or(Ok(None), |leg| leg.turn())
}
