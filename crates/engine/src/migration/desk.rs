//! All migrations of an engine, on the step thread: verbs and news in between two steps, reports and parcels out.
//!
//! Nothing here waits. A verb whose effect takes time (`freeze`, until the target has confirmed) is answered when it is
//! there; parcels go to the carrier, which moves them on the runtime. Every record ends by itself, see
//! [`super::protocol`], and is remembered for a while so that a repeated verb is answered like the first.

pub(crate) use super::incoming::Attached;
use super::incoming::{Incoming, Reservation};
use super::notes::{Head, Note};
use super::outgoing::Outgoing;
use super::protocol::Fence;
use super::protocol::source::State as SourceState;
use super::protocol::source::{self, Source};
use super::protocol::target::State as TargetState;
use super::protocol::target::{self, Target};
use super::report::{Endpoint, Report, Seal, VerbError};
use crate::core::Core;
use crate::sequence::{RidGuard, RidSet};
use crate::transfer::{Pages, Pool};
use plimsoll_cache::Digest;
use plimsoll_core::Nanos;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

#[cfg(test)]
pub(crate) mod tests;

/// Migrations under way on each side.
const MOST_LIVE: usize = 64;
/// Migrations under way and remembered on each side.
const MOST_KNOWN: usize = 1024;
/// How often a frozen request looks for a free buffer.
const BUFFER_POLL: Duration = Duration::from_millis(1);
/// How often it is looked whether the reader of a frozen request is still there: nothing rings when it leaves.
const READER_POLL: Duration = Duration::from_millis(20);
/// How long the end of one is remembered.
const REMEMBER: Nanos = Nanos::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) enum Verb {
    Look,
    List,
    // At the source.
    Offer {
        rid: String,
        ship: Nanos,
        freeze: Nanos,
        commit: Nanos,
    },
    Start {
        to: Endpoint,
        first_page: usize,
    },
    Freeze {
        delta: bool,
        commit: source::When,
    },
    Delta,
    Commit,
    Release,
    /// `fence`: the driver's word that the target will not take over.
    Resume {
        fence: Option<Fence>,
    },
    // At the target.
    Reserve(Box<Reserve>),
    Verify(Box<Seal>),
    TakeOver {
        warrant: target::Warrant,
        expected: Option<Box<Seal>>,
        from_token: Option<usize>,
    },
    /// Reads what the request says here once it runs here; decides nothing.
    Follow {
        from_token: Option<usize>,
    },
    // At whichever side it is.
    Abort,
}

#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    pub(crate) rid: String,
    /// Prompt and output so far.
    pub(crate) tokens: usize,
    /// Further ones to hold pages for.
    pub(crate) growth_tokens: usize,
    /// KV tokens that it may have in the end.
    pub(crate) most_tokens: Option<usize>,
    /// Digests of the source's committed pages: those that are here need not come.
    pub(crate) chain: Vec<Digest>,
    pub(crate) page_tokens: usize,
    pub(crate) rank: Option<usize>,
    /// Where the source finds this engine.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) reserve: Nanos,
    pub(crate) ready: Nanos,
    pub(crate) linger: Duration,
}

#[derive(Debug)]
pub(crate) enum Reply {
    Report(Box<Report>),
    Reader(Box<Attached>),
    List(Vec<Report>),
}

pub(crate) type Answer = oneshot::Sender<Result<Reply, VerbError>>;

/// For the carrier.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) id: String,
    /// From the source's side of the migration; else from the target's.
    pub(crate) at_source: bool,
    pub(crate) send: Send,
}

#[derive(Debug)]
pub(crate) enum Send {
    /// Connect.
    Open(Endpoint),
    Note(Note),
    Pages(Pages),
    Close,
}

/// From the carrier.
#[derive(Debug)]
pub(crate) enum Heard {
    Note(Note),
    Pages(Pages),
    Lost,
}

pub(crate) struct Desk {
    outgoing: BTreeMap<String, Outgoing>,
    incoming: BTreeMap<String, Incoming>,
    waiting: Vec<Waiting>,
    posts: Vec<Post>,
    rids: RidSet,
    pool: Pool,
    began: Instant,
}

/// A verb that is answered when something has happened.
struct Waiting {
    id: String,
    /// To be obeyed then; `None`: has been obeyed, and its effect is waited for.
    verb: Option<Verb>,
    answer: Answer,
}

impl Desk {
    pub(crate) fn new(rids: RidSet, pool: Pool) -> Self {
        Desk {
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            waiting: Vec::new(),
            posts: Vec::new(),
            rids,
            pool,
            began: Instant::now(),
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.began.elapsed().as_nanos() as u64)
    }

    /// Sequences are being moved.
    pub(crate) fn is_busy(&self) -> bool {
        self.outgoing.values().any(|one| !one.is_over()) || self.incoming.values().any(Incoming::holds)
    }

    /// Until something ends by itself, a buffer may be free that is waited for, or the reader of something frozen may have
    /// left.
    pub(crate) fn wakes_in(&self) -> Option<Duration> {
        let deadlines =
            self.outgoing.values().map(Outgoing::deadline).chain(self.incoming.values().map(Incoming::deadline));
        let next = deadlines.min().filter(|next| *next < Nanos::MAX)?;
        let after = Duration::from_nanos(next.since(self.now()).0);
        let has_frozen = self.outgoing.values().any(Outgoing::has_frozen);
        let after = if has_frozen { after.min(READER_POLL) } else { after };
        let is_pressing = self.outgoing.values().any(Outgoing::is_pressing);
        Some(if is_pressing { after.min(BUFFER_POLL) } else { after })
    }

    /// What is to be sent now.
    pub(crate) fn posts(&mut self) -> Vec<Post> {
        std::mem::take(&mut self.posts)
    }

    /// Obeys a verb. With `wait`, `freeze` and `delta` are answered when the target has confirmed, or will not;
    /// `take_over` and `follow` when they can be obeyed, or never will.
    pub(crate) fn obey(&mut self, id: &str, verb: Verb, wait: bool, answer: Answer, cores: &mut [Core]) {
        self.watch(cores);
        let id = id.to_owned();
        if wait && self.is_early(&id, &verb) {
            self.waiting.push(Waiting { id, verb: Some(verb), answer });
            return;
        }
        let waits = wait && matches!(verb, Verb::Freeze { .. } | Verb::Delta);
        let result = self.dispatch(&id, verb, cores);
        if waits && result.is_ok() && self.is_frozen(&id) {
            self.waiting.push(Waiting { id, verb: None, answer });
            return;
        }
        // The caller may be gone.
        let _ = answer.send(result);
    }

    fn is_frozen(&self, id: &str) -> bool {
        self.outgoing.get(id).is_some_and(|one| one.state() == SourceState::Frozen)
    }

    /// The verb does not fit yet, but may later.
    fn is_early(&self, id: &str, verb: &Verb) -> bool {
        let Some(state) = self.incoming.get(id).map(Incoming::state) else { return false };
        match verb {
            Verb::TakeOver { .. } => matches!(state, TargetState::Reserved | TargetState::Receiving),
            Verb::Follow { .. } => {
                matches!(state, TargetState::Reserved | TargetState::Receiving | TargetState::Ready)
            }
            _ => false,
        }
    }

    /// What the other engine sent, or that it is gone.
    pub(crate) fn hear(&mut self, id: &str, at_source: bool, heard: Heard, cores: &mut [Core]) {
        let now = self.now();
        let out = &mut self.posts;
        if at_source {
            let Some(one) = self.outgoing.get_mut(id) else { return };
            let core = &mut cores[one.rank];
            match heard {
                Heard::Note(note) => one.hear(now, note, core, out),
                Heard::Pages(_) | Heard::Lost => one.lose_link(now, core, out),
            }
        } else {
            let Some(one) = self.incoming.get_mut(id) else { return };
            let core = &mut cores[one.rank];
            match heard {
                Heard::Note(note) => one.hear(now, note, core, out),
                Heard::Pages(pages) => one.take_pages(now, &pages, core, out),
                Heard::Lost => one.lose_link(now, core, out),
            }
        }
        self.answer_waiting(cores);
    }

    /// A source has connected. False: it is not expected.
    pub(crate) fn link(&mut self, head: Head, cores: &mut [Core]) -> bool {
        let now = self.now();
        let Some(one) = self.incoming.get_mut(&head.migration) else { return false };
        let core = &mut cores[one.rank];
        one.link(now, head, core, &mut self.posts)
    }

    /// Ends requests that are neither running nor waiting but here, by the start of their id.
    pub(crate) fn cancel(&mut self, prefix: Option<&str>, cores: &mut [Core]) {
        let now = self.now();
        let matches = |rid: &str| prefix.is_none_or(|prefix| rid.starts_with(prefix));
        for one in self.outgoing.values_mut().filter(|one| matches(one.rid())) {
            one.end(now, "Aborted", &mut cores[one.rank], &mut self.posts);
        }
        for one in self.incoming.values_mut().filter(|one| matches(one.rid())) {
            one.cancel(now, &mut cores[one.rank], &mut self.posts);
        }
    }

    /// Between two steps: what ended, what can be shipped, what has expired.
    pub(crate) fn turn(&mut self, cores: &mut [Core]) {
        if self.outgoing.is_empty() && self.incoming.is_empty() {
            return;
        }
        self.watch(cores);
        let now = self.now();
        let out = &mut self.posts;
        self.outgoing.retain(|_, one| one.tick(now, &mut cores[one.rank], out));
        self.incoming.retain(|_, one| one.tick(now, &mut cores[one.rank], out));
        self.ship(cores);
        self.answer_waiting(cores);
    }

    fn watch(&mut self, cores: &mut [Core]) {
        let now = self.now();
        for one in self.outgoing.values_mut() {
            one.watch(now, &mut cores[one.rank], &mut self.posts);
        }
        for one in self.incoming.values_mut() {
            one.watch(now, &mut cores[one.rank], &mut self.posts);
        }
    }

    fn ship(&mut self, cores: &mut [Core]) {
        let now = self.now();
        for one in self.outgoing.values_mut() {
            one.ship(now, &mut cores[one.rank], &self.pool, &mut self.posts);
        }
    }

    fn answer_waiting(&mut self, cores: &mut [Core]) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            let id = waiting.id.clone();
            let is_due = match &waiting.verb {
                Some(verb) => !self.is_early(&id, verb),
                None => !self.is_frozen(&id),
            };
            if waiting.answer.is_closed() {
                // Nobody waits: it must not be obeyed any more.
                continue;
            }
            if !is_due {
                self.waiting.push(waiting);
                continue;
            }
            let result = match waiting.verb.take() {
                Some(verb) => self.dispatch(&id, verb, cores),
                None => self.report(&id).map(|report| Reply::Report(Box::new(report))),
            };
            let _ = waiting.answer.send(result);
        }
    }

    fn dispatch(&mut self, id: &str, verb: Verb, cores: &mut [Core]) -> Result<Reply, VerbError> {
        match verb {
            Verb::Look => {}
            Verb::List => {
                let now = self.now();
                let outgoing = self.outgoing.values().map(|one| one.report(now));
                return Ok(Reply::List(outgoing.chain(self.incoming.values().map(|one| one.report(now))).collect()));
            }
            Verb::Offer { rid, ship, freeze, commit } => {
                return self.offer(id, &rid, source::Limits { ship, freeze, commit, remember: REMEMBER }, cores);
            }
            Verb::Reserve(reserve) => self.reserve(id, &reserve, cores)?,
            Verb::Start { to, first_page } => {
                let now = self.now();
                let one = self.outgoing.get_mut(id).ok_or(VerbError::Unknown)?;
                one.start(now, to, first_page, &mut cores[one.rank], &mut self.posts)?;
            }
            Verb::Freeze { delta, commit } => {
                self.ask_source(id, "freeze", source::Ask::Freeze { delta, commit }, cores)?;
            }
            Verb::Delta => self.ask_source(id, "delta", source::Ask::Delta, cores)?,
            Verb::Commit => self.ask_source(id, "commit", source::Ask::Commit, cores)?,
            Verb::Release => self.ask_source(id, "release", source::Ask::Release, cores)?,
            Verb::Resume { fence } => {
                let proof = fence.map(|fence| source::Proof { fence });
                self.ask_source(id, "resume", source::Ask::Resume(proof), cores)?;
            }
            Verb::Abort if self.outgoing.contains_key(id) => {
                self.ask_source(id, "abort", source::Ask::Resume(None), cores)?;
            }
            Verb::Abort => self.ask_target(id, "abort", target::Ask::Abort, cores)?,
            Verb::Verify(expected) => {
                self.ask_target(id, "verify", target::Ask::Verify, cores)?;
                self.incoming.get(id).map_or(Ok(()), |one| one.compare(&expected))?;
            }
            Verb::TakeOver { warrant, expected, from_token } => {
                if let (Some(expected), Some(one)) = (expected, self.incoming.get(id))
                    && one.holds()
                {
                    one.compare(&expected)?;
                }
                self.ask_target(id, "take_over", target::Ask::TakeOver(warrant), cores)?;
                return self.attach(id, "take_over", from_token);
            }
            Verb::Follow { from_token } => return self.attach(id, "follow", from_token),
        }
        // What a verb sets off is done when it is reported.
        self.ship(cores);
        self.report(id).map(|report| Reply::Report(Box::new(report)))
    }

    fn attach(&self, id: &str, verb: &'static str, from_token: Option<usize>) -> Result<Reply, VerbError> {
        let one = self.incoming.get(id).ok_or(VerbError::Unknown)?;
        let attached = one.attach(from_token.unwrap_or_else(|| one.handed_over_at()));
        attached.map(|attached| Reply::Reader(Box::new(attached))).ok_or_else(|| one.refuse(verb))
    }

    fn report(&self, id: &str) -> Result<Report, VerbError> {
        let now = self.now();
        let outgoing = self.outgoing.get(id).map(|one| one.report(now));
        outgoing.or_else(|| self.incoming.get(id).map(|one| one.report(now))).ok_or(VerbError::Unknown)
    }

    fn ask_source(
        &mut self,
        id: &str,
        name: &'static str,
        ask: source::Ask,
        cores: &mut [Core],
    ) -> Result<(), VerbError> {
        let now = self.now();
        let one = self.outgoing.get_mut(id).ok_or(VerbError::Unknown)?;
        one.verb(now, name, ask, &mut cores[one.rank], &mut self.posts)
    }

    fn ask_target(
        &mut self,
        id: &str,
        name: &'static str,
        ask: target::Ask,
        cores: &mut [Core],
    ) -> Result<(), VerbError> {
        let now = self.now();
        let one = self.incoming.get_mut(id).ok_or(VerbError::Unknown)?;
        one.verb(now, name, ask, &mut cores[one.rank], &mut self.posts)
    }

    fn offer(&mut self, id: &str, rid: &str, limits: source::Limits, cores: &mut [Core]) -> Result<Reply, VerbError> {
        self.check_id(id, rid)?;
        if self.incoming.contains_key(id) {
            return Err(VerbError::Conflict("the target's side of a migration"));
        }
        if !self.outgoing.contains_key(id) {
            let live = self.outgoing.values().filter(|one| !one.is_over()).count();
            if live >= MOST_LIVE || self.outgoing.len() >= MOST_KNOWN {
                return Err(VerbError::TooMany);
            }
            let found = cores.iter().enumerate().find_map(|(rank, core)| core.with_rid(rid).map(|found| (rank, found)));
            let (rank, sequence) = found.ok_or(VerbError::NoSuchRequest)?;
            sequence.check_movable().map_err(VerbError::NotMovable)?;
            if let Some((other, _)) = self.outgoing.iter().find(|(_, one)| one.moves(&sequence.mailbox)) {
                return Err(VerbError::Moving(other.clone()));
            }
            let machine = Source::new(self.now(), limits, Fence(rand::random()));
            let one = Outgoing::new(id.to_owned(), machine, rank, sequence);
            self.outgoing.insert(id.to_owned(), one);
        }
        let mut report = self.report(id)?;
        if let Some(one) = self.outgoing.get(id) {
            report.chain = one.chain(&cores[one.rank]);
        }
        Ok(Reply::Report(Box::new(report)))
    }

    fn reserve(&mut self, id: &str, ask: &Reserve, cores: &mut [Core]) -> Result<(), VerbError> {
        self.check_id(id, &ask.rid)?;
        if self.outgoing.contains_key(id) {
            return Err(VerbError::Conflict("the source's side of a migration"));
        }
        if self.incoming.contains_key(id) {
            return Ok(());
        }
        // One that runs here is a request like others: the batch bounds them.
        let live = self.incoming.values().filter(|one| one.holds()).count();
        if live >= MOST_LIVE || self.incoming.len() >= MOST_KNOWN {
            return Err(VerbError::TooMany);
        }
        let page_tokens = cores[0].page_tokens();
        if ask.page_tokens != page_tokens {
            return Err(VerbError::Incompatible { what: "page_tokens", theirs: ask.page_tokens, ours: page_tokens });
        }
        let context = cores[0].context_tokens();
        // The last token is not computed.
        let tokens = ask.most_tokens.unwrap_or(0).saturating_add(1).max(ask.tokens.saturating_add(1));
        if tokens > context {
            return Err(VerbError::Incompatible {
                what: "tokens do not fit the context",
                theirs: tokens,
                ours: context,
            });
        }
        if let Some(theirs) = ask.most_tokens.filter(|most| !cores[0].could_fit(*most)) {
            let ours = cores[0].scheduler.blocks.total() * page_tokens;
            return Err(VerbError::Incompatible { what: "tokens do not fit the KV cache", theirs, ours });
        }
        let guard = RidGuard::take(&ask.rid, &self.rids).ok_or(VerbError::RidInFlight)?;
        let rank = match ask.rank {
            Some(rank) if rank < cores.len() => rank,
            Some(rank) => {
                return Err(VerbError::Incompatible {
                    what: "dp_rank is out of range",
                    theirs: rank,
                    ours: cores.len(),
                });
            }
            // The one with the most room.
            None => (0..cores.len()).max_by_key(|rank| cores[*rank].scheduler.blocks.available()).unwrap_or(0),
        };
        let pages = (ask.tokens + ask.growth_tokens).min(context).div_ceil(page_tokens);
        // The last token is computed here whatever the cache holds: its logits are needed.
        let matchable = ask.tokens.saturating_sub(1) / page_tokens;
        let chain = &ask.chain[..matchable.min(ask.chain.len())];
        let (pages, have) = cores[rank].reserve(chain, pages).map_err(VerbError::NoRoom)?;
        let key = format!("{:032x}", rand::random::<u128>());
        let endpoint = Endpoint { host: ask.host.clone(), port: ask.port, key };
        let limits = target::Limits { reserve: ask.reserve, ready: ask.ready, remember: REMEMBER };
        let machine = Target::new(self.now(), limits);
        let found = chain[..have].to_vec();
        let reservation = Reservation { rank, guard, pages, found, endpoint, page_tokens, linger: ask.linger };
        self.incoming.insert(id.to_owned(), Incoming::new(id.to_owned(), machine, reservation));
        Ok(())
    }

    /// An id means one migration of one request.
    fn check_id(&self, id: &str, rid: &str) -> Result<(), VerbError> {
        let known = self.outgoing.get(id).map(Outgoing::rid).or_else(|| self.incoming.get(id).map(Incoming::rid));
        if known.is_some_and(|known| known != rid) {
            return Err(VerbError::Conflict("the migration of another request"));
        }
        Ok(())
    }
}
