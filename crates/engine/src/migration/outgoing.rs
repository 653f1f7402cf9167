//! One migration at its source: what is shipped, and what becomes of the sequence.

use super::desk::{Post, Send};
use super::notes::{Head, Last, Note, OwnerNote, digest_text, fence_text};
use super::protocol::source::{Ask, Effect, News, Source, State};
use super::report::{Endpoint, Report, Seal, VerbError};
use crate::core::Core;
use crate::core::moving::Moved;
use crate::mailbox::Mailbox;
use crate::request::Finish;
use crate::sequence::Sequence;
use crate::transfer::{Pages, Pool};
use plimsoll_cache::Digest;
use plimsoll_cache::block_hash::page_digest;
use plimsoll_core::Nanos;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Outgoing {
    id: String,
    machine: Source,
    rid: String,
    pub(crate) rank: usize,
    mailbox: Arc<Mailbox>,
    /// The sequence while it is frozen.
    frozen: Option<Moved>,
    to: Option<(Endpoint, usize)>,
    is_linked: bool,
    /// The next page to ship, and how much was shipped.
    next_page: usize,
    next_token: usize,
    moved_pages: usize,
    moved_bytes: u64,
    crc32c: u32,
    /// What is left shall be shipped.
    wants_delta: bool,
    seal: Option<Seal>,
    seen: Seen,
}

/// Of the sequence, when it was last looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    page_tokens: usize,
    prompt_tokens: usize,
    output_tokens: usize,
    most_tokens: usize,
    committed_pages: usize,
}

impl Outgoing {
    pub(crate) fn new(id: String, machine: Source, rank: usize, sequence: &Sequence) -> Self {
        Outgoing {
            id,
            machine,
            rid: sequence.rid.as_str().to_owned(),
            rank,
            mailbox: Arc::clone(&sequence.mailbox),
            frozen: None,
            to: None,
            is_linked: false,
            next_page: 0,
            next_token: 0,
            moved_pages: 0,
            moved_bytes: 0,
            crc32c: 0,
            wants_delta: false,
            seal: None,
            seen: Seen::of(sequence),
        }
    }

    pub(crate) fn rid(&self) -> &str {
        &self.rid
    }

    pub(crate) fn state(&self) -> State {
        self.machine.state()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.machine.is_over()
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.machine.deadline()
    }

    pub(crate) fn moves(&self, mailbox: &Arc<Mailbox>) -> bool {
        !self.machine.is_over() && Arc::ptr_eq(&self.mailbox, mailbox)
    }

    /// The request is here and pauses.
    pub(crate) fn has_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// Something waits for a buffer.
    pub(crate) fn is_pressing(&self) -> bool {
        self.wants_delta && self.is_linked
    }

    /// Pages that the frozen sequence holds.
    #[cfg(test)]
    pub(crate) fn held_pages(&self) -> &[u32] {
        self.frozen.as_ref().map_or(&[], |moved| &moved.sequence.pages)
    }

    pub(crate) fn verb(
        &mut self,
        now: Nanos,
        name: &'static str,
        ask: Ask,
        core: &mut Core,
        out: &mut Vec<Post>,
    ) -> Result<(), VerbError> {
        let effects = self.machine.ask(now, ask).map_err(|refusal| {
            let (state, why) = self.words();
            VerbError::of(refusal, name, "source", state, why)
        })?;
        self.act(now, &effects, core, out);
        Ok(())
    }

    /// As [`Self::verb`] for `start`, which says where to.
    pub(crate) fn start(
        &mut self,
        now: Nanos,
        to: Endpoint,
        first_page: usize,
        core: &mut Core,
        out: &mut Vec<Post>,
    ) -> Result<(), VerbError> {
        if self.to.as_ref().is_some_and(|known| *known != (to.clone(), first_page)) {
            return Err(VerbError::Conflict("another target"));
        }
        let pages = core.posting_to(&self.mailbox).map(|sequence| sequence.chain.digests().len());
        if let Some(ours) = pages.filter(|ours| first_page > *ours) {
            return Err(VerbError::Incompatible { what: "have_pages", theirs: first_page, ours });
        }
        self.to = Some((to, first_page));
        self.verb(now, "start", Ask::Start, core, out)
    }

    pub(crate) fn hear(&mut self, now: Nanos, note: Note, core: &mut Core, out: &mut Vec<Post>) {
        let news = match note {
            Note::Confirmed(seal) if self.seal.as_ref() == Some(&*seal) => News::Confirmed,
            Note::Refused(_) => {
                self.is_linked = false;
                News::Refused
            }
            // A target that counts otherwise, or talks nonsense, gets nothing.
            _ => News::LinkLost,
        };
        self.learn(now, news, core, out);
    }

    pub(crate) fn lose_link(&mut self, now: Nanos, core: &mut Core, out: &mut Vec<Post>) {
        self.is_linked = false;
        self.learn(now, News::LinkLost, core, out);
    }

    /// Looks whether the request is still there.
    pub(crate) fn watch(&mut self, now: Nanos, core: &mut Core, out: &mut Vec<Post>) {
        if self.machine.is_over() {
            return;
        }
        let is_left = self.frozen.as_ref().is_some_and(|moved| moved.sequence.mailbox.is_closed());
        if is_left {
            self.end(now, "Aborted", core, out);
            return;
        }
        match self.frozen.as_ref().map(|moved| &*moved.sequence).or_else(|| core.posting_to(&self.mailbox)) {
            Some(sequence) => self.seen = Seen::of(sequence),
            None => self.learn(now, News::RequestEnded, core, out),
        }
    }

    /// Ends the request if it is frozen here; one in the schedule is ended there.
    pub(crate) fn end(&mut self, now: Nanos, message: &str, core: &mut Core, out: &mut Vec<Post>) {
        let Some(mut moved) = self.frozen.take() else { return };
        core.give_up_pages(&mut moved.sequence);
        moved.sequence.abort(message, None);
        core.stats.aborted += 1;
        self.learn(now, News::RequestEnded, core, out);
    }

    /// False: to be forgotten.
    pub(crate) fn tick(&mut self, now: Nanos, core: &mut Core, out: &mut Vec<Post>) -> bool {
        let Some(effects) = self.machine.tick(now) else { return false };
        self.act(now, &effects, core, out);
        true
    }

    fn learn(&mut self, now: Nanos, news: News, core: &mut Core, out: &mut Vec<Post>) {
        let effects = self.machine.learn(now, news);
        self.act(now, &effects, core, out);
    }

    fn act(&mut self, now: Nanos, effects: &[Effect], core: &mut Core, out: &mut Vec<Post>) {
        for effect in effects {
            match effect {
                Effect::Ship => self.open(core, out),
                Effect::Freeze => self.frozen = core.take_out(&self.mailbox),
                Effect::SendDelta => self.wants_delta = true,
                Effect::Thaw => {
                    if let Some(moved) = self.frozen.take() {
                        core.put_back(moved);
                    }
                }
                Effect::TellAbort => self.post(Send::Note(Note::Aborted), out),
                Effect::Release => self.release(core),
            }
        }
        if self.machine.is_over() {
            self.wants_delta = false;
            self.post(Send::Close, out);
            self.is_linked = false;
        } else if effects.contains(&Effect::Freeze) && self.frozen.is_none() {
            // Cannot happen while `watch` comes first; and must not leave a frozen nothing.
            self.learn(now, News::RequestEnded, core, out);
        }
        debug_assert_eq!(self.machine.emits(), self.frozen.is_none() && !self.is_handed_over(), "{:?}", self.state());
    }

    /// The request is not here any more, or was over.
    fn is_handed_over(&self) -> bool {
        matches!(self.state(), State::Released | State::Ended)
    }

    fn release(&mut self, core: &mut Core) {
        let Some(mut moved) = self.frozen.take() else { return };
        core.give_up_pages(&mut moved.sequence);
        let output_tokens = moved.sequence.generated();
        let fence = fence_text(self.machine.fence());
        moved.sequence.end(Finish::Migrated { migration: self.id.clone(), output_tokens, fence }, None);
    }

    fn open(&mut self, core: &Core, out: &mut Vec<Post>) {
        let (Some((to, first_page)), Some(sequence)) = (self.to.clone(), core.posting_to(&self.mailbox)) else {
            return;
        };
        let Some(params) = sequence.settled_params() else { return };
        self.next_page = first_page;
        self.is_linked = true;
        let head = Head {
            migration: self.id.clone(),
            key: to.key.clone(),
            rid: self.rid.clone(),
            prompt_tokens: sequence.prompt_len,
            params,
            owner: OwnerNote::of(&sequence.owner),
            first_page,
            cached_tokens: sequence.cached_tokens,
            retractions: sequence.retractions,
            age_ms: sequence.arrived.elapsed().as_millis() as u64,
            priority: sequence.urgency.priority,
            tpot_us: sequence.urgency.tpot.map(|tpot| u64::try_from(tpot.as_micros()).unwrap_or(u64::MAX)),
        };
        self.post(Send::Open(to), out);
        self.post(Send::Note(Note::Head(Box::new(head))), out);
    }

    /// Ships what can be shipped now: while the sequence runs one buffer of committed pages, so that the steps are not
    /// held up; after the freeze all that is left, and the last word.
    pub(crate) fn ship(&mut self, now: Nanos, core: &mut Core, pool: &Pool, out: &mut Vec<Post>) {
        if !self.is_linked || !matches!(self.machine.state(), State::Shipping | State::Frozen) {
            return;
        }
        let frozen = self.frozen.take();
        if let Some(sequence) = frozen.as_ref().map(|moved| &*moved.sequence).or_else(|| core.posting_to(&self.mailbox))
        {
            while self.next_page < sequence.committed_pages {
                let Some(mut pages) = pool.try_take() else { break };
                self.ship_tokens(sequence, out);
                let digests = sequence.chain.digests();
                while self.next_page < sequence.committed_pages
                    && self.fill(&mut pages, core, sequence, &digests[self.next_page])
                {}
                self.post(Send::Pages(pages), out);
                if frozen.is_none() {
                    break;
                }
            }
            if frozen.is_some() && self.wants_delta && self.next_page >= sequence.committed_pages {
                self.ship_last(sequence, core, pool, out);
            }
        }
        let is_sent = frozen.is_some() && self.seal.is_some();
        self.frozen = frozen;
        if is_sent {
            self.learn(now, News::Sent, core, out);
        }
    }

    fn ship_tokens(&mut self, sequence: &Sequence, out: &mut Vec<Post>) {
        for note in Note::tokens(&sequence.tokens[self.next_token..]) {
            self.post(Send::Note(note), out);
        }
        self.next_token = sequence.tokens.len();
    }

    fn ship_last(&mut self, sequence: &Sequence, core: &Core, pool: &Pool, out: &mut Vec<Post>) {
        let page_tokens = sequence.chain.page_tokens();
        let full = self.next_page;
        let above = full.checked_sub(1).map(|page| sequence.chain.digests()[page]);
        let mut pages = full;
        if sequence.computed > full * page_tokens {
            let Some(mut buffer) = pool.try_take() else { return };
            self.ship_tokens(sequence, out);
            let tail = &sequence.tokens[full * page_tokens..sequence.computed];
            let digest = page_digest(above.as_ref().or(sequence.chain.seed()), tail);
            self.fill(&mut buffer, core, sequence, &digest);
            self.post(Send::Pages(buffer), out);
            pages += 1;
        }
        self.ship_tokens(sequence, out);
        let seal = Seal {
            tokens: sequence.tokens.len(),
            output_tokens: sequence.generated(),
            computed_tokens: sequence.computed.max(full * page_tokens),
            pages,
            chain: above.as_ref().map(digest_text).unwrap_or_default(),
            crc32c: self.crc32c,
            visible_bytes: sequence.visible_bytes(core.rules()),
        };
        self.seal = Some(seal.clone());
        let last = Last { seal, fence: fence_text(self.machine.fence()), direct: self.machine.is_direct() };
        self.post(Send::Note(Note::Last(Box::new(last))), out);
        self.wants_delta = false;
    }

    /// Adds the next page to a buffer; false when it is full.
    fn fill(&mut self, buffer: &mut Pages, core: &Core, sequence: &Sequence, digest: &Digest) -> bool {
        let index = self.next_page;
        let mut crc32c = self.crc32c;
        let mut bytes = 0;
        let fits = buffer.push(index as u32, digest, |page| {
            core.copy_page(sequence.pages[index], page);
            crc32c = crc32c::crc32c_append(crc32c, page);
            bytes = page.len() as u64;
        });
        if fits {
            (self.crc32c, self.next_page) = (crc32c, index + 1);
            self.moved_pages += 1;
            self.moved_bytes += bytes;
        }
        fits
    }

    fn post(&self, send: Send, out: &mut Vec<Post>) {
        if self.is_linked {
            out.push(Post { id: self.id.clone(), at_source: true, send });
        }
    }

    fn words(&self) -> (&'static str, Option<&'static str>) {
        match self.machine.state() {
            State::Offered => ("offered", None),
            State::Shipping => ("shipping", None),
            State::Frozen => ("frozen", None),
            State::Synced => ("synced", None),
            State::Committed => ("committed", None),
            State::Released => ("released", None),
            State::Resumed(why) => ("resumed", Some(why.as_str())),
            State::Ended => ("ended", None),
        }
    }

    /// The digests of its committed pages are left out.
    pub(crate) fn report(&self, now: Nanos) -> Report {
        let (state, why) = self.words();
        Report {
            id: self.id.clone(),
            role: "source",
            state,
            why,
            rid: self.rid.clone(),
            dp_rank: self.rank,
            page_tokens: self.seen.page_tokens,
            prompt_tokens: self.seen.prompt_tokens,
            output_tokens: self.seen.output_tokens,
            most_tokens: Some(self.seen.most_tokens),
            pages: self.seen.committed_pages.max(self.next_page),
            have_pages: self.to.as_ref().map_or(0, |(_, first_page)| *first_page),
            moved_pages: self.moved_pages,
            moved_bytes: self.moved_bytes,
            chain: None,
            endpoint: None,
            seal: self.seal.clone(),
            fence: self.machine.given_fence().map(fence_text),
            expires_in_ms: (!self.machine.is_over()).then(|| self.machine.deadline().since(now).0 / 1_000_000),
        }
    }

    /// Digests of what could be shipped now, for the target's `reserve`.
    pub(crate) fn chain(&self, core: &Core) -> Option<Vec<String>> {
        let sequence = core.posting_to(&self.mailbox)?;
        Some(sequence.chain.digests()[..sequence.committed_pages].iter().map(digest_text).collect())
    }
}

impl Seen {
    fn of(sequence: &Sequence) -> Self {
        Seen {
            page_tokens: sequence.chain.page_tokens(),
            prompt_tokens: sequence.prompt_len,
            output_tokens: sequence.generated(),
            most_tokens: sequence.most_computed(),
            committed_pages: sequence.committed_pages,
        }
    }
}
