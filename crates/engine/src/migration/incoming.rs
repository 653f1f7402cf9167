//! One migration at its target: what was reserved, what has come, and the sequence that grows out of it.
//!
//! The sequence is made as soon as its prompt is there and follows the source's output while blocks come, so that the
//! last word finds nothing left to do but to compare. Every page is written where it belongs and made findable when its
//! digest is that of the tokens: should the migration fail, the cache keeps what came.

use super::desk::{Post, Send};
use super::notes::{Head, Last, Note, digest_text, fence_of};
use super::protocol::target::{Ask, Effect, News, State, Target};
use super::report::{Endpoint, Report, Seal, VerbError};
use crate::core::Core;
use crate::mailbox::{Mailbox, Ticket, Update};
use crate::request::{Request, Task};
use crate::sampling::logprobs::LogprobAsk;
use crate::sequence::{RidGuard, Sequence};
use crate::transfer::{Page, Pages};
use crate::urgency::Urgency;
use plimsoll_cache::Digest;
use plimsoll_cache::block_hash::page_digest;
use plimsoll_core::Nanos;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What came does not fit what was reserved, or is damaged.
#[derive(Debug)]
struct Bad;

#[derive(Debug)]
pub(crate) struct Incoming {
    id: String,
    machine: Target,
    rid: String,
    pub(crate) rank: usize,
    endpoint: Endpoint,
    page_tokens: usize,
    linger: Duration,
    /// Digests by which the pages that are here already were found.
    found: Vec<Digest>,
    guard: Option<RidGuard>,
    /// What is reserved, until the sequence has it.
    pages: Vec<u32>,
    reserved_pages: usize,
    is_linked: bool,
    head: Option<Head>,
    /// Prompt tokens, until all are here.
    prompt: Vec<u32>,
    /// Until it runs.
    sequence: Option<Box<Sequence>>,
    mailbox: Option<Arc<Mailbox>>,
    next_page: usize,
    moved_pages: usize,
    moved_bytes: u64,
    crc32c: u32,
    /// Digest that the page which is not full came with.
    tail: Option<Digest>,
    seal: Option<Seal>,
    prompt_tokens: usize,
    arrived: Instant,
}

/// What is held for a migration.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) rank: usize,
    pub(crate) guard: RidGuard,
    pub(crate) pages: Vec<u32>,
    /// Digests of the first of them, whose KV is here.
    pub(crate) found: Vec<Digest>,
    pub(crate) endpoint: Endpoint,
    pub(crate) page_tokens: usize,
    /// How long the request may have no reader after the take-over.
    pub(crate) linger: Duration,
}

/// A reader of the output from a token on.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) ticket: Ticket,
    /// What it has already.
    pub(crate) had: Update,
    /// What it is told besides.
    pub(crate) logprobs: Option<LogprobAsk>,
}

impl Incoming {
    pub(crate) fn new(id: String, machine: Target, reservation: Reservation) -> Self {
        let Reservation { rank, guard, pages, found, endpoint, page_tokens, linger } = reservation;
        Incoming {
            id,
            machine,
            rid: guard.as_str().to_owned(),
            rank,
            endpoint,
            page_tokens,
            linger,
            next_page: found.len(),
            found,
            guard: Some(guard),
            reserved_pages: pages.len(),
            pages,
            is_linked: false,
            head: None,
            prompt: Vec::new(),
            sequence: None,
            mailbox: None,
            moved_pages: 0,
            moved_bytes: 0,
            crc32c: 0,
            tail: None,
            seal: None,
            prompt_tokens: 0,
            arrived: Instant::now(),
        }
    }

    pub(crate) fn rid(&self) -> &str {
        &self.rid
    }

    pub(crate) fn state(&self) -> State {
        self.machine.state()
    }

    pub(crate) fn holds(&self) -> bool {
        self.machine.holds()
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.machine.state(), State::Done | State::Aborted(_))
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.machine.deadline()
    }

    /// Pages that are held for it.
    #[cfg(test)]
    pub(crate) fn held_pages(&self) -> &[u32] {
        self.sequence.as_ref().map_or(&self.pages, |sequence| &sequence.pages)
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
            VerbError::of(refusal, name, "target", state, why)
        })?;
        self.act(&effects, core, out);
        Ok(())
    }

    /// Compares with what the source counted, as the driver was told.
    ///
    /// # Errors
    /// Names the first difference.
    pub(crate) fn compare(&self, expected: &Seal) -> Result<(), VerbError> {
        match self.seal.as_ref().map(|seal| seal.differs(expected)) {
            Some(None) => Ok(()),
            Some(Some(field)) => Err(VerbError::Mismatch { field }),
            None => Err(VerbError::WrongState { verb: "verify", role: "target", state: self.words().0 }),
        }
    }

    /// Output tokens that came from the source.
    pub(crate) fn handed_over_at(&self) -> usize {
        self.seal.as_ref().map_or(0, |seal| seal.output_tokens)
    }

    /// Why a verb cannot be obeyed now.
    pub(crate) fn refuse(&self, verb: &'static str) -> VerbError {
        let (state, why) = self.words();
        match self.state() {
            State::Aborted(_) => VerbError::Over { state, why },
            _ => VerbError::WrongState { verb, role: "target", state },
        }
    }

    /// A reader that has the first `tokens` tokens of the output. `None` before the take-over.
    pub(crate) fn attach(&self, tokens: usize) -> Option<Attached> {
        let mailbox = self.mailbox.as_ref().filter(|_| matches!(self.state(), State::TakenOver | State::Done))?;
        let (place, had) = mailbox.attach(tokens)?;
        let ticket = Ticket {
            mailbox: Arc::clone(mailbox),
            rid: self.rid.clone(),
            prompt_tokens: self.prompt_tokens,
            rank: self.rank,
            arrived: self.arrived,
            done: false,
            place: Some(place),
            spelling: Default::default(),
        };
        let logprobs = self.head.as_ref().and_then(|head| head.params.logprobs.clone());
        Some(Attached { ticket, had, logprobs })
    }

    /// The source has connected and says what it brings. False: it is not the one that is waited for.
    pub(crate) fn link(&mut self, now: Nanos, head: Head, core: &mut Core, out: &mut Vec<Post>) -> bool {
        if self.machine.state() != State::Reserved || self.is_linked || head.key != self.endpoint.key {
            return false;
        }
        self.is_linked = true;
        let fits = head.rid == self.rid && head.first_page == self.found.len() && is_sound(&head, core);
        self.prompt_tokens = head.prompt_tokens;
        self.arrived = Instant::now().checked_sub(Duration::from_millis(head.age_ms)).unwrap_or(self.arrived);
        self.head = Some(head);
        self.learn(now, if fits { News::Linked } else { News::Bad }, core, out);
        true
    }

    pub(crate) fn hear(&mut self, now: Nanos, note: Note, core: &mut Core, out: &mut Vec<Post>) {
        if !matches!(self.state(), State::Receiving | State::Ready) {
            return;
        }
        let news = match note {
            Note::Tokens(ids) => match self.take_tokens(&ids, core) {
                Ok(()) => return self.machine.progress(now),
                Err(Bad) => News::Bad,
            },
            Note::Last(last) => match self.finish(&last, core) {
                Some(fence) => News::Complete { fence, direct: last.direct },
                None => News::Bad,
            },
            Note::Aborted => News::SourceAborted,
            Note::Head(_) | Note::Confirmed(_) | Note::Refused(_) => News::Bad,
        };
        self.learn(now, news, core, out);
    }

    pub(crate) fn take_pages(&mut self, now: Nanos, pages: &Pages, core: &mut Core, out: &mut Vec<Post>) {
        if self.state() != State::Receiving {
            return;
        }
        for page in pages.iter() {
            if self.take_page(&page, core).is_err() {
                return self.learn(now, News::Bad, core, out);
            }
        }
        self.machine.progress(now);
    }

    pub(crate) fn lose_link(&mut self, now: Nanos, core: &mut Core, out: &mut Vec<Post>) {
        self.is_linked = false;
        self.learn(now, News::LinkLost, core, out);
    }

    pub(crate) fn cancel(&mut self, now: Nanos, core: &mut Core, out: &mut Vec<Post>) {
        self.learn(now, News::Cancelled, core, out);
    }

    /// Looks whether the request that runs here is over.
    pub(crate) fn watch(&mut self, now: Nanos, core: &mut Core, out: &mut Vec<Post>) {
        if !self.machine.emits() {
            return;
        }
        let Some(mailbox) = &self.mailbox else { return };
        if mailbox.is_closed() {
            core.drop_unread(mailbox);
        }
        if core.posting_to(mailbox).is_none() {
            self.learn(now, News::RequestEnded, core, out);
        }
    }

    /// False: to be forgotten.
    pub(crate) fn tick(&mut self, now: Nanos, core: &mut Core, out: &mut Vec<Post>) -> bool {
        let Some(effects) = self.machine.tick(now) else { return false };
        self.act(&effects, core, out);
        true
    }

    fn learn(&mut self, now: Nanos, news: News, core: &mut Core, out: &mut Vec<Post>) {
        let effects = self.machine.learn(now, news);
        self.act(&effects, core, out);
    }

    fn act(&mut self, effects: &[Effect], core: &mut Core, out: &mut Vec<Post>) {
        for effect in effects {
            match effect {
                Effect::Confirm => {
                    if let Some(seal) = self.seal.clone() {
                        self.post(Send::Note(Note::Confirmed(Box::new(seal))), out);
                    }
                }
                Effect::Install => {
                    if let Some(sequence) = self.sequence.take() {
                        sequence.mailbox.begin_lingering(Instant::now());
                        core.install(sequence);
                    }
                }
                Effect::Free => {
                    let sequence = self.sequence.take();
                    let pages = sequence.as_ref().map_or(&self.pages, |sequence| &sequence.pages);
                    core.unreserve(pages);
                    self.pages.clear();
                    self.prompt.clear();
                    self.guard = None;
                }
                Effect::TellRefused => {
                    let why = self.words().1.unwrap_or_default();
                    self.post(Send::Note(Note::Refused(why.to_owned())), out);
                }
            }
        }
        if self.is_over() && self.is_linked {
            self.post(Send::Close, out);
            self.is_linked = false;
        }
    }

    fn take_tokens(&mut self, ids: &[u32], core: &Core) -> Result<(), Bad> {
        if ids.iter().any(|id| *id as usize >= core.vocab()) {
            return Err(Bad);
        }
        let missing = self.prompt_tokens - self.prompt.len();
        let (prompt, output) = ids.split_at(if self.sequence.is_some() { 0 } else { missing.min(ids.len()) });
        self.prompt.extend(prompt);
        if self.sequence.is_none() && self.prompt.len() == self.prompt_tokens {
            self.build()?;
        }
        let Some(sequence) = &mut self.sequence else { return Ok(()) };
        if sequence.tokens.len() + output.len() > core.context_tokens() {
            return Err(Bad);
        }
        for id in output {
            if sequence.replay(*id, core.rules()).is_some() {
                return Err(Bad);
            }
        }
        sequence.chain.extend(&sequence.tokens);
        Ok(())
    }

    /// The prompt is complete: the sequence can be made, and the pages that were found by digests can be checked.
    fn build(&mut self) -> Result<(), Bad> {
        let (Some(head), Some(guard)) = (&self.head, self.guard.take()) else { return Err(Bad) };
        let request = Request {
            rid: self.rid.clone(),
            prompt: std::mem::take(&mut self.prompt),
            task: Task::Generate(head.params.clone()),
            owner: Arc::new(head.owner.owner()),
            rank: Some(self.rank),
            bootstrap: None,
            // It has begun: a deadline refuses it no more. But it is as important as before.
            urgency: Urgency { ttft: None, tpot: head.tpot_us.map(Duration::from_micros), priority: head.priority },
        };
        let mailbox = Arc::new(Mailbox::keeping(Instant::now(), self.linger));
        let mut sequence = Sequence::new(request, guard, Arc::clone(&mailbox), self.page_tokens, self.arrived);
        sequence.cached_tokens = head.cached_tokens;
        sequence.retractions = head.retractions;
        mailbox.post(|update| {
            update.cached_tokens = head.cached_tokens.unwrap_or(0);
            update.retractions = head.retractions;
        });
        sequence.pages = std::mem::take(&mut self.pages);
        sequence.committed_pages = self.found.len();
        sequence.computed = self.found.len() * self.page_tokens;
        self.mailbox = Some(mailbox);
        self.sequence = Some(Box::new(sequence));
        Ok(())
    }

    fn take_page(&mut self, page: &Page<'_>, core: &mut Core) -> Result<(), Bad> {
        let sequence = self.sequence.as_mut().ok_or(Bad)?;
        let index = page.index as usize;
        let own = *sequence.pages.get(index).ok_or(Bad)?;
        let is_full = sequence.chain.digests().get(index) == Some(&page.digest);
        if index != self.next_page || self.tail.is_some() || self.seal.is_some() {
            return Err(Bad);
        }
        if !is_full {
            // How many tokens it holds, and so whether this is its digest, is known with the last word only.
            self.tail = Some(page.digest);
        }
        core.write_page(own, page.bytes).map_err(|_| Bad)?;
        self.crc32c = crc32c::crc32c_append(self.crc32c, page.bytes);
        self.moved_pages += 1;
        self.moved_bytes += page.bytes.len() as u64;
        self.next_page += 1;
        if is_full && sequence.committed_pages == index && sequence.chain.digests().starts_with(&self.found) {
            sequence.computed = (index + 1) * self.page_tokens;
            core.commit_pages(sequence);
        }
        Ok(())
    }

    /// The last word: counts and sums again, from what is here.
    fn finish(&mut self, last: &Last, core: &mut Core) -> Option<super::protocol::Fence> {
        let sequence = self.sequence.as_mut()?;
        let theirs = &last.seal;
        let computed = theirs.computed_tokens;
        let digests = sequence.chain.digests();
        let full = computed / self.page_tokens;
        if computed >= sequence.tokens.len() || full > digests.len() || !digests.starts_with(&self.found) {
            return None;
        }
        let above = full.checked_sub(1).map(|page| digests[page]);
        let tail = &sequence.tokens[full * self.page_tokens..computed];
        let tail = (!tail.is_empty()).then(|| page_digest(above.as_ref().or(sequence.chain.seed()), tail));
        if tail != self.tail {
            return None;
        }
        let seal = Seal {
            tokens: sequence.tokens.len(),
            output_tokens: sequence.generated(),
            computed_tokens: computed,
            pages: self.next_page,
            chain: above.as_ref().map(digest_text).unwrap_or_default(),
            crc32c: self.crc32c,
            visible_bytes: sequence.visible_bytes(core.rules()),
        };
        if seal.differs(theirs).is_some() || seal.pages != computed.div_ceil(self.page_tokens) {
            return None;
        }
        sequence.computed = computed;
        core.commit_pages(sequence);
        self.seal = Some(seal);
        fence_of(&last.fence)
    }

    fn post(&self, send: Send, out: &mut Vec<Post>) {
        if self.is_linked {
            out.push(Post { id: self.id.clone(), at_source: false, send });
        }
    }

    fn words(&self) -> (&'static str, Option<&'static str>) {
        match self.machine.state() {
            State::Reserved => ("reserved", None),
            State::Receiving => ("receiving", None),
            State::Ready => ("ready", None),
            State::TakenOver => ("taken_over", None),
            State::Done => ("done", None),
            State::Aborted(why) => ("aborted", Some(why.as_str())),
        }
    }

    pub(crate) fn report(&self, now: Nanos) -> Report {
        let (state, why) = self.words();
        let output_tokens = match (&self.sequence, &self.mailbox) {
            (Some(sequence), _) => sequence.generated(),
            (None, Some(mailbox)) => mailbox.kept_tokens().unwrap_or(0),
            (None, None) => 0,
        };
        Report {
            id: self.id.clone(),
            role: "target",
            state,
            why,
            rid: self.rid.clone(),
            dp_rank: self.rank,
            page_tokens: self.page_tokens,
            prompt_tokens: self.prompt_tokens,
            output_tokens,
            most_tokens: None,
            pages: if self.machine.holds() { self.reserved_pages } else { 0 },
            have_pages: self.found.len(),
            moved_pages: self.moved_pages,
            moved_bytes: self.moved_bytes,
            chain: None,
            endpoint: (self.state() == State::Reserved).then(|| self.endpoint.clone()),
            seal: self.seal.clone(),
            fence: None,
            expires_in_ms: self.machine.holds().then(|| self.machine.deadline().since(now).0 / 1_000_000),
        }
    }
}

/// The request is one that this engine would have let through itself.
fn is_sound(head: &Head, core: &Core) -> bool {
    let Some(room) = core.context_tokens().checked_sub(head.prompt_tokens) else { return false };
    head.prompt_tokens > 0
        && head.params.check(head.prompt_tokens, room, core.vocab()).is_ok()
        && core.could_fit(head.prompt_tokens + head.params.max_new_tokens - 1)
        && head.cached_tokens.is_none_or(|cached| cached <= head.prompt_tokens)
        && head.owner.is_short()
}
