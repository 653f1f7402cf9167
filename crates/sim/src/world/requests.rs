//! One request from its arrival to its end, over all its attempts.

use super::{Answer, Asked, Event, Terms, World, precedence};
use crate::collect::Finished;
use crate::engine::{Happened, Job, Key};
use crate::gateway::{Open, Wanted};
use crate::names;
use crate::session::SessionSlot;
use plimsoll_core::{BlockName, Class, InstanceId, LegRole, Nanos, Target};
use plimsoll_load::{AttemptEnd, PlaceError};
use plimsoll_traffic::class::Past;

/// Attempts of one request, the first included.
const MOST_ATTEMPTS: u8 = 3;

/// Slots in a [`Key`]; the rest is the number of the request.
pub(super) const SLOT_BITS: u32 = 24;

/// Why, where something before the gateway refused.
const ENTRANCE: &str = "entrance";

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// On the engine that does all of it.
    Whole,
    /// On the engine that computes its prompt only.
    Prefill,
    /// On its way to the engine that decodes it, or there.
    Decode,
}

/// A request that has no place yet.
#[derive(Debug)]
pub(super) struct Waits {
    pub(super) number: u64,
    pub(super) arrived: Nanos,
    pub(super) session: SessionSlot,
    pub(super) asked: Asked,
    pub(super) terms: Terms,
    pub(super) prompt_tokens: u64,
    output_tokens: u64,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) past: Past,
    pub(super) class: Option<Class>,
    pub(super) names: Vec<BlockName>,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) number: u64,
    pub(super) arrived: Nanos,
    pub(super) session: SessionSlot,
    pub(super) asked: Asked,
    pub(super) prompt_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) past: Past,
    pub(super) stage: Stage,
    pub(super) attempt: u8,
    pub(super) open: Open,
    pub(super) first_token: Option<Nanos>,
    pub(super) last_token: Nanos,
    pub(super) cached_tokens: u64,
    /// Tokens that are out, where they were counted: at a hand-over.
    pub(super) generated: u64,
    /// Of its prompt: the most that any place was believed to hold when it was placed, and what the chosen one was.
    pub(super) held: Option<(u64, u64)>,
    /// It stands still since its last token while it is moved.
    pub(super) moved: bool,
}

impl World<'_> {
    pub(super) fn arrive(&mut self, session: SessionSlot, call: u32, sending: u32) {
        let now = self.now;
        let asked = Asked { session: self.sessions.nth(session), call, sending };
        let terms = self.terms(asked);
        let Some(what) = self.sessions.call(session, call as usize) else { return };
        let (prompt_tokens, output_tokens) = (what.prompt.tokens().max(1), what.output_tokens.max(1));
        let max_output_tokens = what.max_output_tokens;
        let mut names = Vec::new();
        names::extend(&mut names, &what.prompt);
        let past = self.sessions.past(now, session, call as usize);
        self.figures.arrived(now, self.sessions.region(session));
        let number = self.figures.requests.arrived;
        let Some(terms) = terms else {
            self.figures.refused(now, None, ENTRANCE);
            return self.over(session, asked, Answer::Refused(ENTRANCE));
        };
        if let Some(at) = terms.gives_up_at {
            self.agenda.put(at.max(now), precedence::CALL, Event::GiveUp { number });
        }
        let waits = Waits {
            number,
            arrived: now,
            session,
            asked,
            prompt_tokens,
            output_tokens,
            max_output_tokens,
            past: terms.past.unwrap_or(past),
            terms,
            class: None,
            names,
        };
        self.at_the_door(waits);
    }

    /// A place is chosen, and another one where nobody answers.
    pub(super) fn launch(&mut self, waits: Waits) {
        let now = self.now;
        let Waits {
            number,
            arrived,
            session,
            asked,
            terms: _,
            prompt_tokens,
            output_tokens,
            max_output_tokens,
            past,
            mut class,
            names,
        } = waits;
        let role = if self.fleet.is_split() { LegRole::Prefill } else { LegRole::Unified };
        let mut exclude: Vec<InstanceId> = Vec::new();
        for attempt in 0..MOST_ATTEMPTS {
            let wanted = Wanted {
                role,
                attempt,
                exclude: &exclude,
                max_output_tokens,
                past,
                ..Wanted::new(number, &names, prompt_tokens)
            };
            let open = match self.gateway.place(now, &wanted) {
                Ok(open) => open,
                Err(error) => {
                    let why = refusal(&error);
                    self.figures.refused(now, class, why);
                    return self.nothing_done(number, session, asked, Answer::Refused(why));
                }
            };
            class = Some(open.class);
            let Target { instance, .. } = open.target;
            if !self.engines[instance.0 as usize].up {
                self.gateway.failed(now, &open, AttemptEnd::ConnectFailed);
                self.figures.requests.retries += 1;
                exclude.push(instance);
                continue;
            }
            if let Some(door) = &mut self.door {
                door.begun(number);
            }
            let request = Request {
                number,
                arrived,
                session,
                asked,
                prompt_tokens,
                output_tokens,
                max_output_tokens,
                past,
                stage: if role == LegRole::Prefill { Stage::Prefill } else { Stage::Whole },
                attempt,
                open,
                first_token: None,
                last_token: now,
                cached_tokens: 0,
                generated: 0,
                held: None,
                moved: false,
            };
            return self.send(request, names);
        }
        let why = "no engine answered";
        self.figures.refused(now, class, why);
        self.nothing_done(number, session, asked, Answer::Refused(why));
    }

    /// Refused before an engine did anything for it.
    pub(super) fn nothing_done(&mut self, number: u64, session: SessionSlot, asked: Asked, answer: Answer) {
        if let Some(door) = &mut self.door {
            door.cancel(self.now, number);
        }
        self.over(session, asked, answer);
    }

    /// A request with its place goes to its engine.
    fn send(&mut self, request: Request, names: Vec<u64>) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.requests.push(None);
                self.requests.len() as u32 - 1
            }
        };
        let key = Key(request.number << SLOT_BITS | u64::from(slot));
        let output = if request.stage == Stage::Prefill { 1 } else { request.output_tokens };
        let job = Job::new(key, names, request.prompt_tokens, output);
        self.requests[slot as usize] = Some(request);
        self.submit(key, job);
    }

    /// A job goes to the engine that its request was placed on.
    pub(super) fn submit(&mut self, key: Key, job: Job) {
        let now = self.now;
        let Some(request) = request(&mut self.requests, key) else { return };
        let Target { instance, rank } = request.open.target;
        let engine = &mut self.engines[instance.0 as usize].instance;
        match engine.submit(now, rank, job, &self.clock, &mut self.happened) {
            Ok(ends) => {
                self.announce(instance.0, ends);
                self.settle();
                self.tell(instance.0);
            }
            Err(_) => {
                let Some(request) = self.take(key) else { return };
                self.gateway.failed(now, &request.open, AttemptEnd::ClientFault);
                let why = "too long for the engine";
                self.figures.refused(now, Some(request.open.class), why);
                self.nothing_done(request.number, request.session, request.asked, Answer::Refused(why));
            }
        }
    }

    pub(super) fn take(&mut self, key: Key) -> Option<Request> {
        let request = self.requests.get_mut(slot(key)).and_then(Option::take)?;
        self.free.push(slot(key) as u32);
        Some(request)
    }

    /// Its engine is gone. Before the first token another one is tried; after it the stream is broken.
    pub(super) fn broken(&mut self, key: Key, end: AttemptEnd) {
        let now = self.now;
        let Some(mut request) = self.take(key) else { return };
        self.gateway.failed(now, &request.open, end);
        let names = request.open.names().to_vec();
        let dead = request.open.target.instance;
        if request.first_token.is_none() && request.attempt + 1 < MOST_ATTEMPTS {
            request.attempt += 1;
            self.figures.requests.retries += 1;
            let role = if request.stage == Stage::Prefill { LegRole::Prefill } else { LegRole::Unified };
            let exclude = [dead];
            let wanted = Wanted {
                role,
                attempt: request.attempt,
                exclude: &exclude,
                max_output_tokens: request.max_output_tokens,
                past: request.past,
                ..Wanted::new(request.number, &names, request.prompt_tokens)
            };
            if let Ok(open) = self.gateway.place(now, &wanted) {
                if self.engines[open.target.instance.0 as usize].up {
                    request.open = open;
                    return self.send(request, names);
                }
                self.gateway.failed(now, &open, AttemptEnd::ConnectFailed);
            }
        }
        self.figures.failed(now, request.open.class);
        self.nothing_done(request.number, request.session, request.asked, Answer::Failed);
    }

    /// Tells everybody what happened in a step.
    pub(super) fn settle(&mut self) {
        let now = self.now;
        let happened = std::mem::take(&mut self.happened);
        for one in &happened {
            match *one {
                Happened::FirstToken { key, cached_tokens } => {
                    let Some(request) = request(&mut self.requests, key) else { continue };
                    (request.first_token, request.cached_tokens, request.last_token) = (Some(now), cached_tokens, now);
                    self.gateway.first_token(now, &request.open);
                    if let Some(door) = &mut self.door {
                        door.first_token(now, request.number);
                    }
                    let (best, believed) = (request.open.best_tokens, request.open.believed.tokens());
                    request.held = best.map(|best| (best.max(believed), believed));
                }
                Happened::Resumed { key } => {
                    let Some(request) = request(&mut self.requests, key) else { continue };
                    self.figures.gap(now, now.since(request.last_token));
                    request.last_token = now;
                }
                Happened::Preempted { key } => {
                    let Some(request) = request(&mut self.requests, key) else { continue };
                    request.last_token = now;
                }
                Happened::TookOver { key } => {
                    let Some(request) = request(&mut self.requests, key) else { continue };
                    let gap = now.since(request.last_token);
                    self.figures.gap(now, gap);
                    if std::mem::take(&mut request.moved) {
                        self.moves.paused(gap);
                        self.figures.series.moved(now);
                    }
                    request.last_token = now;
                }
                Happened::Finished { key } => self.finished(key),
            }
        }
        self.happened = happened;
        self.happened.clear();
    }

    fn finished(&mut self, key: Key) {
        let now = self.now;
        let Some(request) = request(&mut self.requests, key) else { return };
        if request.stage == Stage::Prefill && request.output_tokens > 1 {
            return self.hand_over(key);
        }
        let Some(request) = self.take(key) else { return };
        let first_token = request.first_token.unwrap_or(now);
        let step = (request.output_tokens > 1).then(|| Nanos(now.since(first_token).0 / (request.output_tokens - 1)));
        self.gateway.completed(now, &request.open, request.cached_tokens, step);
        if let Some(door) = &mut self.door {
            let prefill_tokens = request.prompt_tokens.saturating_sub(request.cached_tokens);
            door.settle(now, request.number, prefill_tokens, request.output_tokens);
        }
        let Target { instance, rank } = request.open.target;
        let class: Class = request.open.class;
        let one = Finished {
            number: request.number,
            arrived_ns: request.arrived.0,
            first_token_ns: first_token.0,
            ended_ns: now.0,
            instance: instance.0,
            rank: rank.0,
            class: class.as_str(),
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            cached_tokens: request.cached_tokens,
            region: self.sessions.region(request.session),
        };
        let (session, call) = (request.session, request.asked.call as usize);
        self.sessions.served(now, session, call, request.prompt_tokens, request.cached_tokens);
        self.figures.finished(&one, class, request.held);
        self.watcher.finished(&one);
        let cached_tokens = request.cached_tokens;
        self.over(request.session, request.asked, Answer::Whole { first_token, cached_tokens });
    }
}

fn slot(key: Key) -> usize {
    (key.0 & ((1 << SLOT_BITS) - 1)) as usize
}

pub(super) fn request(requests: &mut [Option<Request>], key: Key) -> Option<&mut Request> {
    let request = requests.get_mut(slot(key)).and_then(Option::as_mut)?;
    (request.number == key.0 >> SLOT_BITS).then_some(request)
}

fn refusal(error: &PlaceError) -> &'static str {
    match error {
        PlaceError::NoCandidate { .. } => "no capacity",
        PlaceError::UnknownModel | PlaceError::ModelRequired => "unknown model",
        PlaceError::AlreadyCharged => "charged twice",
    }
}
