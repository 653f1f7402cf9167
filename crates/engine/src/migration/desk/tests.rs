//! Whole migrations between two engines in one thread: whatever happens on the way, the tokens and the text that the
//! reader gets are those of a request that was never moved, and everything that was held is given back.

use super::*;
use crate::config::EngineConfig;
use crate::core::tests::{config, sequence};
use crate::mailbox::{Mailbox, Ticket, Update};
use crate::migration::protocol::source::When;
use crate::request::{Finish, Task};
use crate::sampling::SamplingParams;
use futures_util::FutureExt;
use std::sync::Arc;

mod exact;
mod failures;
mod mixed;

/// One engine: ranks, desk, request ids.
pub(crate) struct Side {
    pub(crate) cores: Vec<Core>,
    pub(crate) desk: Desk,
    pub(crate) rids: RidSet,
    config: EngineConfig,
}

impl Side {
    pub(crate) fn new(config: &EngineConfig) -> Side {
        let cores = vec![Core::new(config)];
        let rids = RidSet::default();
        let pool = Pool::new(cores[0].page_bytes(), 4);
        let desk = Desk::new(Arc::clone(&rids), pool);
        Side { cores, desk, rids, config: config.clone() }
    }

    pub(crate) fn submit(&mut self, name: usize, params: SamplingParams, prompt: &[u32]) -> Arc<Mailbox> {
        let (sequence, mailbox) = sequence(&self.config, &self.rids, name, Task::Generate(params), prompt);
        self.cores[0].submit(sequence);
        mailbox
    }

    pub(crate) fn step(&mut self) {
        for core in &mut self.cores {
            core.step();
        }
        self.desk.turn(&mut self.cores);
        self.check();
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.cores.iter().all(|core| core.scheduler.is_idle())
    }

    pub(crate) fn check(&self) {
        let held: Vec<u32> = self.desk.outgoing.values().flat_map(Outgoing::held_pages).copied().collect();
        let reserved = self.desk.incoming.values().filter(|one| one.holds()).flat_map(Incoming::held_pages).copied();
        let legs = self.cores[0].legs.held_pages();
        let held: Vec<u32> = held.into_iter().chain(reserved).chain(legs).collect();
        self.cores[0].scheduler.check_with(&held).unwrap();
        let places = self.desk.incoming.values().filter(|one| one.holds()).count();
        let places = places + self.cores[0].legs.counts().decode_transfer;
        assert_eq!(self.cores[0].scheduler.reserved_places, places);
    }

    /// Nothing is held any more.
    pub(crate) fn check_empty(&self) {
        self.check();
        assert!(self.is_idle(), "something still runs");
        assert!(!self.desk.is_busy(), "a migration is still under way");
        for core in &self.cores {
            assert_eq!((core.scheduler.blocks.held(), core.scheduler.reserved_places), (0, 0));
        }
        assert_eq!(self.rids.lock().len(), 0);
        assert_eq!(self.desk.pool.in_use(), 0);
    }

    pub(crate) fn ask(&mut self, verb: Verb) -> Result<Reply, VerbError> {
        self.ask_as("m", verb)
    }

    pub(crate) fn ask_as(&mut self, id: &str, verb: Verb) -> Result<Reply, VerbError> {
        let (answer, mut answered) = oneshot::channel();
        self.desk.obey(id, verb, false, answer, &mut self.cores);
        self.check();
        answered.try_recv().unwrap()
    }

    /// A verb that must be obeyed.
    pub(crate) fn report(&mut self, verb: Verb) -> Report {
        match self.ask(verb).unwrap() {
            Reply::Report(report) => *report,
            other => panic!("{other:?} where a report was due"),
        }
    }

    pub(crate) fn state(&mut self) -> &'static str {
        self.report(Verb::Look).state
    }
}

/// Delivers what was posted, until nothing is on its way or `lose` says that a post is lost and the link with it.
/// Returns how many posts were delivered.
pub(crate) fn carry(source: &mut Side, target: &mut Side, mut lose: impl FnMut(&Post) -> bool) -> usize {
    let mut delivered = 0;
    loop {
        let posts: Vec<Post> = source.desk.posts().into_iter().chain(target.desk.posts()).collect();
        if posts.is_empty() {
            return delivered;
        }
        for post in posts {
            let (from_source, id) = (post.at_source, post.id.clone());
            if lose(&post) {
                source.desk.hear(&id, true, Heard::Lost, &mut source.cores);
                target.desk.hear(&id, false, Heard::Lost, &mut target.cores);
                return delivered;
            }
            delivered += 1;
            match post.send {
                Send::Open(to) => assert_eq!(to.host, "here"),
                Send::Close => {}
                Send::Note(Note::Head(head)) => assert!(target.desk.link(*head, &mut target.cores)),
                // Through its bytes, as on the wire.
                Send::Note(note) => {
                    let heard = Heard::Note(Note::decode(&note.encode()).unwrap());
                    let to = if from_source { &mut *target } else { &mut *source };
                    to.desk.hear(&id, !from_source, heard, &mut to.cores);
                }
                Send::Pages(pages) => target.desk.hear(&id, false, Heard::Pages(pages), &mut target.cores),
            }
            source.check();
            target.check();
        }
    }
}

pub(crate) fn seconds(seconds: u64) -> Nanos {
    Nanos::from_secs(seconds)
}

pub(crate) fn offer(name: usize) -> Verb {
    Verb::Offer { rid: format!("r{name}"), ship: seconds(60), freeze: seconds(60), commit: seconds(60) }
}

pub(crate) fn reserve_for(offered: &Report, growth_tokens: usize) -> Verb {
    Verb::Reserve(Box::new(Reserve {
        rid: offered.rid.clone(),
        tokens: offered.prompt_tokens + offered.output_tokens,
        growth_tokens,
        most_tokens: offered.most_tokens,
        chain: offered.chain.iter().flatten().map(|digest| super::super::notes::digest_of(digest).unwrap()).collect(),
        page_tokens: offered.page_tokens,
        rank: None,
        host: "here".into(),
        port: 1,
        reserve: seconds(60),
        ready: seconds(60),
        linger: Duration::from_secs(60),
    }))
}

pub(crate) fn start_to(reserved: &Report) -> Verb {
    Verb::Start { to: reserved.endpoint.clone().unwrap(), first_page: reserved.have_pages }
}

pub(crate) const FREEZE: Verb = Verb::Freeze { delta: true, commit: When::Asked };

pub(crate) fn take_over(fence: &str) -> Verb {
    let fence = super::super::notes::fence_of(fence).unwrap();
    Verb::TakeOver { warrant: target::Warrant::Fence(fence), expected: None, from_token: None }
}

/// What a reader has got so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Read {
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
    pub(crate) finish: Option<Finish>,
}

impl Read {
    pub(crate) fn take(&mut self, ticket: &mut Ticket) {
        while let Some(Update { ids, text, finish, .. }) = ticket.next().now_or_never().flatten() {
            self.ids.extend(ids);
            self.text.push_str(&text);
            self.finish = finish;
        }
    }
}

/// The answer of a request that is alone and never moved, and the steps it took.
pub(crate) fn unmoved(config: &EngineConfig, params: &SamplingParams, prompt: &[u32]) -> (Read, usize) {
    let mut side = Side::new(config);
    let mailbox = side.submit(0, params.clone(), prompt);
    let mut steps = 0;
    while !side.is_idle() {
        side.step();
        steps += 1;
        assert!(steps < 10_000);
    }
    let mut read = Read::default();
    read.take(&mut Ticket::bare(mailbox));
    side.check_empty();
    (read, steps)
}
