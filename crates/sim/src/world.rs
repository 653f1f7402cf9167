//! The run itself: sessions ask, the gateway chooses, engines compute, and each hears of the others what it would hear.

use crate::agenda::Agenda;
use crate::collect::{Collector, Finished, Slo};
use crate::engine::{EngineShape, Happened, Instance, Job, Key};
use crate::gateway::{Gateway, GatewayConfig, Open};
use crate::names;
use crate::report::{FORMAT, InstanceFigures, Report, Setup};
use crate::series::Sample;
use crate::session::{SessionSlot, Sessions};
use crate::step_time::{FS_PER_NS, StepClock, StepTime};
use plimsoll_core::{BlockName, Class, InstanceId, LegRole, Nanos, Rank, Target};
use plimsoll_load::{AttemptEnd, PlaceError};
use plimsoll_workload::Session;

#[cfg(test)]
mod tests;

/// A trace, session by session, in order of start; an error ends the run.
pub type Source<'a> = Box<dyn Iterator<Item = Result<Session, String>> + 'a>;

/// The engines.
#[derive(Debug)]
pub struct FleetConfig {
    pub instances: u32,
    /// Ranks of each that step together.
    pub ranks: u16,
    pub gpus_per_instance: u32,
    pub shape: EngineShape,
    pub time: Box<dyn StepTime>,
}

/// A question.
#[derive(Debug)]
pub struct Config {
    pub fleet: FleetConfig,
    pub gateway: GatewayConfig,
    /// Between two polls of the engines' load.
    pub poll: Nanos,
    /// Longest pause between two calls of a session.
    pub longest_pause: Option<Nanos>,
    pub slo: Slo,
    /// Steps are computed one by one; for tests, and for whoever does not believe the short cut.
    pub single_steps: bool,
    /// Goes into the report as it is.
    pub setup: Setup,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Status {
    pub now: Nanos,
    pub started_sessions: u64,
    pub arrived: u64,
    pub ended: u64,
    pub in_flight: u64,
}

/// Looks on. Every method may do nothing.
pub trait Watcher {
    /// Called now and then; false ends the run.
    fn status(&mut self, _status: &Status) -> bool {
        true
    }
    fn finished(&mut self, _one: &Finished) {}
}

/// Nobody.
#[derive(Debug)]
pub struct Nobody;
impl Watcher for Nobody {}

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    #[error("{0}")]
    Input(String),
    #[error("no event can advance the run any more: {state}")]
    Stuck { state: String },
    #[error("interrupted")]
    Interrupted,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    StepOver { instance: u32, generation: u32 },
    Poll,
    Start,
    Call { session: SessionSlot, call: u32 },
}

/// Of equal times: what has happened comes before what begins.
mod precedence {
    pub(super) const STEP: u8 = 0;
    pub(super) const POLL: u8 = 1;
    pub(super) const CALL: u8 = 2;
}

/// Events at one moment beyond which time is taken to stand still.
const MOST_AT_ONCE: u64 = 50_000_000;

#[derive(Debug)]
struct Request {
    number: u64,
    arrived: Nanos,
    session: SessionSlot,
    call: u32,
    prompt_tokens: u64,
    output_tokens: u64,
    open: Open,
    first_token: Option<Nanos>,
    last_token: Nanos,
    cached_tokens: u64,
}

const SLOT_BITS: u32 = 24;

/// Runs a question to its end.
///
/// # Errors
/// When the source has an error, the watcher wants no more, or nothing can move any more.
pub fn run(config: Config, source: Source<'_>, watcher: &mut dyn Watcher) -> Result<Report, RunError> {
    let mut world = World::new(config, source, watcher);
    world.go()?;
    Ok(world.report())
}

struct World<'a> {
    now: Nanos,
    agenda: Agenda<Event>,
    source: Source<'a>,
    next: Option<Session>,
    watcher: &'a mut dyn Watcher,
    sessions: Sessions,
    gateway: Gateway,
    clock: StepClock,
    instances: Vec<Instance>,
    requests: Vec<Option<Request>>,
    free: Vec<u32>,
    figures: Collector,
    happened: Vec<Happened>,
    names: Vec<BlockName>,
    started: u64,
    polls: u64,
    gpus: u32,
    poll: Nanos,
    setup: Setup,
}

impl<'a> World<'a> {
    fn new(config: Config, source: Source<'a>, watcher: &'a mut dyn Watcher) -> Self {
        let Config { fleet, gateway, poll, longest_pause, slo, single_steps, setup } = config;
        let mut clock = StepClock::new(fleet.time);
        clock.single_steps = single_steps;
        let mut gateway = Gateway::new(gateway, fleet.shape.block_tokens);
        let tells = gateway.config().cache_view;
        let ranks = fleet.ranks.max(1);
        for id in 0..fleet.instances {
            let (kv, context) = (fleet.shape.kv_tokens, fleet.shape.context_tokens);
            gateway.add(Nanos::ZERO, InstanceId(id), LegRole::Unified, ranks, kv, context);
        }
        World {
            now: Nanos::ZERO,
            agenda: Agenda::default(),
            source,
            next: None,
            watcher,
            sessions: Sessions::new(longest_pause),
            gateway,
            clock,
            instances: (0..fleet.instances).map(|_| Instance::new(fleet.shape, ranks, tells)).collect(),
            requests: Vec::new(),
            free: Vec::new(),
            figures: Collector::new(slo),
            happened: Vec::new(),
            names: Vec::new(),
            started: 0,
            polls: 0,
            gpus: fleet.gpus_per_instance,
            poll,
            setup,
        }
    }

    fn go(&mut self) -> Result<(), RunError> {
        self.pull()?;
        if let Some(first) = &self.next {
            self.agenda.put(first.start, precedence::POLL, Event::Poll);
            self.polls = 1;
        }
        let (mut events, mut at_once) = (0u64, 0u64);
        while let Some((at, event)) = self.agenda.pop() {
            at_once = if at == self.now { at_once + 1 } else { 0 };
            if at_once > MOST_AT_ONCE {
                return Err(self.stuck("time stands still"));
            }
            self.now = at;
            events += 1;
            if events.is_multiple_of(4_096) && !self.watcher.status(&self.status()) {
                return Err(RunError::Interrupted);
            }
            match event {
                Event::StepOver { instance, generation } => self.step_over(instance, generation),
                Event::Poll => self.poll()?,
                Event::Start => self.start()?,
                Event::Call { session, call } => self.arrive(session, call),
            }
        }
        if self.in_flight() > 0 || self.sessions.len() > 0 {
            return Err(self.stuck("requests are left"));
        }
        let _ = self.watcher.status(&self.status());
        Ok(())
    }

    fn in_flight(&self) -> u64 {
        (self.requests.len() - self.free.len()) as u64
    }

    fn status(&self) -> Status {
        let arrived = self.figures.requests.arrived;
        let in_flight = self.in_flight();
        Status { now: self.now, started_sessions: self.started, arrived, ended: arrived - in_flight, in_flight }
    }

    fn stuck(&self, why: &str) -> RunError {
        let waiting: usize = self.instances.iter().flat_map(Instance::ranks).map(|rank| rank.waiting()).sum();
        let running: usize = self.instances.iter().flat_map(Instance::ranks).map(|rank| rank.running()).sum();
        let state = format!(
            "{why} at {:.3} s: {} requests in flight, {running} running and {waiting} waiting on {} instances, {} sessions \
             under way, {} events to come",
            self.now.as_secs_f64(),
            self.in_flight(),
            self.instances.len(),
            self.sessions.len(),
            self.agenda.len()
        );
        RunError::Stuck { state }
    }

    /// Reads the next session ahead, and notes when it begins.
    fn pull(&mut self) -> Result<(), RunError> {
        self.next = self.source.next().transpose().map_err(RunError::Input)?;
        if let Some(session) = &self.next {
            self.agenda.put(session.start.max(self.now), precedence::CALL, Event::Start);
        }
        Ok(())
    }

    fn start(&mut self) -> Result<(), RunError> {
        let Some(session) = self.next.take() else { return Ok(()) };
        self.started += 1;
        let (now, agenda) = (self.now, &mut self.agenda);
        let mut first = None;
        self.sessions.begin(now, session, |slot, call| match first {
            None => first = Some((slot, call as u32)),
            Some(_) => agenda.put(now, precedence::CALL, Event::Call { session: slot, call: call as u32 }),
        });
        if let Some((slot, call)) = first {
            self.arrive(slot, call);
        }
        self.pull()
    }

    fn poll(&mut self) -> Result<(), RunError> {
        self.polls -= 1;
        let now = self.now;
        self.gateway.tick(now);
        let mut sample = Sample { instances: self.instances.len() as u64, ..Sample::default() };
        for (id, instance) in self.instances.iter().enumerate() {
            let mut kv = 0;
            for report in instance.reports(now) {
                sample.running += report.running_requests.unwrap_or(0);
                sample.waiting += report.waiting_requests.unwrap_or(0);
                kv += report.used_kv_tokens.unwrap_or(0);
                self.gateway.report(InstanceId(id as u32), report, now);
            }
            sample.kv_tokens += kv;
            sample.fullest_kv_tokens = sample.fullest_kv_tokens.max(kv);
        }
        self.figures.series.sample(now, sample);
        if self.agenda.len() as u64 > self.polls {
            self.polls += 1;
            // Nothing to look at until the next session: the poll before it is enough.
            let idle = self.in_flight() == 0;
            let next = self.agenda.next_at().filter(|_| idle).unwrap_or(now);
            let skipped = next.since(now).0 / self.poll.0.max(1);
            let at = Nanos(now.0 + (skipped.max(1)) * self.poll.0.max(1));
            self.agenda.put(at, precedence::POLL, Event::Poll);
            return Ok(());
        }
        if self.in_flight() > 0 { Err(self.stuck("no engine has anything to do")) } else { Ok(()) }
    }

    fn arrive(&mut self, session: SessionSlot, call: u32) {
        let now = self.now;
        let Some(what) = self.sessions.call(session, call as usize) else { return };
        let (prompt_tokens, output_tokens) = (what.prompt.tokens().max(1), what.output_tokens.max(1));
        self.names.clear();
        names::extend(&mut self.names, &what.prompt);
        self.figures.arrived(now);
        let number = self.figures.requests.arrived;
        let placed = self.gateway.place(now, number, 0, &self.names, prompt_tokens, &[]);
        let open = match placed {
            Ok(open) => open,
            Err(error) => {
                self.figures.refused(now, None, refusal(&error));
                return self.over(session, call);
            }
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.requests.push(None);
                self.requests.len() as u32 - 1
            }
        };
        let key = Key(number << SLOT_BITS | u64::from(slot));
        let job = Job::new(key, self.names.clone(), prompt_tokens, output_tokens);
        let Target { instance, rank } = open.target;
        let submitted = self.instances[instance.0 as usize].submit(now, rank, job, &self.clock, &mut self.happened);
        match submitted {
            Ok(ends) => {
                let request = Request {
                    number,
                    arrived: now,
                    session,
                    call,
                    prompt_tokens,
                    output_tokens,
                    open,
                    first_token: None,
                    last_token: now,
                    cached_tokens: 0,
                };
                self.requests[slot as usize] = Some(request);
                self.announce(instance.0, ends);
                self.tell(instance.0);
            }
            Err(_) => {
                self.free.push(slot);
                self.gateway.failed(now, &open, AttemptEnd::ClientFault);
                self.figures.refused(now, Some(open.class), "too long for the engine");
                self.over(session, call);
            }
        }
    }

    fn announce(&mut self, instance: u32, ends: Option<Nanos>) {
        if let Some(at) = ends {
            let generation = self.instances[instance as usize].generation();
            self.agenda.put(at, precedence::STEP, Event::StepOver { instance, generation });
        }
    }

    /// A call has been answered or refused: its session goes on.
    fn over(&mut self, session: SessionSlot, call: u32) {
        let agenda = &mut self.agenda;
        self.sessions.answered(self.now, session, call as usize, |next, at| {
            agenda.put(at, precedence::CALL, Event::Call { session, call: next as u32 });
        });
    }

    fn step_over(&mut self, id: u32, generation: u32) {
        let instance = &mut self.instances[id as usize];
        if instance.generation() != generation {
            return;
        }
        let steps = instance.end(&mut self.happened);
        self.figures.itl.record_ramp(steps.ramp, steps.steps, steps.tokens_each);
        self.settle();
        let ends = self.instances[id as usize].begin(&self.clock, &mut self.happened);
        self.settle();
        self.announce(id, ends);
        self.tell(id);
    }

    /// What an engine has to say of its cache goes out.
    fn tell(&mut self, id: u32) {
        if !self.gateway.config().cache_view {
            return;
        }
        for rank in 0..self.instances[id as usize].ranks().len() as u16 {
            let events = self.instances[id as usize].rank_mut(Rank(rank)).take_events();
            self.gateway.kv_events(self.now, Target { instance: InstanceId(id), rank: Rank(rank) }, events);
        }
    }

    /// Tells everybody what happened in a step.
    fn settle(&mut self) {
        let now = self.now;
        let happened = std::mem::take(&mut self.happened);
        for one in &happened {
            match *one {
                Happened::FirstToken { key, cached_tokens } => {
                    let Some(request) = request(&mut self.requests, key) else { continue };
                    (request.first_token, request.cached_tokens, request.last_token) = (Some(now), cached_tokens, now);
                    self.gateway.first_token(now, &request.open);
                    self.figures.first_token(now, request.arrived, request.prompt_tokens, cached_tokens);
                }
                Happened::Resumed { key } => {
                    let Some(request) = request(&mut self.requests, key) else { continue };
                    self.figures.itl.record(now.since(request.last_token).0);
                    request.last_token = now;
                }
                Happened::Preempted { key } => {
                    let Some(request) = request(&mut self.requests, key) else { continue };
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
        let slot = slot(key);
        let Some(request) = self.requests.get_mut(slot).and_then(Option::take) else { return };
        self.free.push(slot as u32);
        let first_token = request.first_token.unwrap_or(now);
        let step = (request.output_tokens > 1).then(|| Nanos(now.since(first_token).0 / (request.output_tokens - 1)));
        self.gateway.completed(now, &request.open, request.cached_tokens, step);
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
        };
        self.figures.finished(&one, class);
        self.watcher.finished(&one);
        self.over(request.session, request.call);
    }

    fn report(mut self) -> Report {
        debug_assert_eq!(self.gateway.scheduler.check_invariants(), Ok(()));
        debug_assert_eq!(self.gateway.scheduler.totals(self.now).entries, 0);
        let duration_s = self.figures.duration().as_secs_f64();
        let mut sum = crate::engine::InstanceTotals::default();
        let seconds = |fs: u128| fs as f64 / FS_PER_NS as f64 / 1e9;
        let completed = self.figures.requests.completed;
        let mut instances = Vec::new();
        for (at, instance) in self.instances.iter().enumerate() {
            let totals = instance.totals();
            sum.busy_fs += totals.busy_fs;
            sum.prefill_fs += totals.prefill_fs;
            sum.prefilled_tokens += totals.prefilled_tokens;
            sum.preemptions += totals.preemptions;
            let of = self.figures.instances.get(at).copied().unwrap_or_default();
            instances.push(InstanceFigures {
                requests: of.requests,
                share: share(of.requests as f64, completed as f64),
                prompt_tokens: of.prompt_tokens,
                cached_tokens: of.cached_tokens,
                prefilled_tokens: totals.prefilled_tokens,
                output_tokens: totals.output_tokens,
                busy_share: share(seconds(totals.busy_fs), duration_s),
                preemptions: totals.preemptions,
            });
        }
        let fleet_s = duration_s * self.instances.len() as f64;
        self.setup.ranks = self.instances.first().map_or(0, |instance| instance.ranks().len() as u16);
        self.setup.instances = self.instances.len() as u32;
        self.setup.gpus = self.gpus * self.setup.instances;
        Report {
            format: FORMAT,
            duration_s,
            ttft_ms: self.figures.ttft.summary(),
            itl_ms: self.figures.itl.summary(),
            tpot_ms: self.figures.tpot.summary(),
            e2e_ms: self.figures.e2e.summary(),
            tokens: self.figures.tokens(sum.prefilled_tokens),
            gpu_hours: fleet_s * f64::from(self.gpus) / 3_600.0,
            busy_share: share(seconds(sum.busy_fs), fleet_s),
            prefill_share: share(seconds(sum.prefill_fs), fleet_s),
            preemptions: sum.preemptions,
            classes: self.figures.classes(),
            instances,
            over_time: self.figures.series.columns(),
            requests: self.figures.requests,
            setup: self.setup,
        }
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn slot(key: Key) -> usize {
    (key.0 & ((1 << SLOT_BITS) - 1)) as usize
}

fn request(requests: &mut [Option<Request>], key: Key) -> Option<&mut Request> {
    requests.get_mut(slot(key)).and_then(Option::as_mut)
}

fn refusal(error: &PlaceError) -> &'static str {
    match error {
        PlaceError::NoCandidate { .. } => "no capacity",
        PlaceError::UnknownModel | PlaceError::ModelRequired => "unknown model",
        PlaceError::AlreadyCharged => "charged twice",
    }
}
