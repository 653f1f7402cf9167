//! The run itself: sessions ask, the gateway chooses, engines compute, and each hears of the others what it would hear.

mod callers;
mod changes;
mod fleet;
mod legs;
mod moves;
mod outcome;
mod requests;
mod waiting;

pub use callers::{Answer, Asked, Callers, Plain, Terms};
pub use changes::{Change, StartUp, in_words, too_late};
pub use fleet::FleetConfig;
pub use moves::{KvBalance, Move, MoveFigures, Mover, Running};

use crate::agenda::Agenda;
use crate::collect::{Collector, Finished, Slo};
use crate::door::Door;
use crate::engine::{Happened, Instance, Key};
use crate::gateway::{Gateway, GatewayConfig};
use crate::report::{Report, Setup};
use crate::series::Sample;
use crate::session::{SessionSlot, Sessions};
use crate::step_time::StepClock;
use fleet::Engine;
use moves::Moves;
use plimsoll_core::{InstanceId, Nanos, Rank, Target};
use plimsoll_traffic::admission::Rules;
use plimsoll_workload::Session;
use requests::{Request, Waits};
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

/// A trace, session by session, in order of start; an error ends the run.
pub type Source<'a> = Box<dyn Iterator<Item = Result<Session, String>> + 'a>;

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
    /// Names of regions; each session comes from one.
    pub regions: Vec<String>,
    /// What happens to engines, and when.
    pub changes: Vec<(Nanos, Change)>,
    /// Traffic scheduling before the fleet; `None`: everybody goes at once.
    pub admission: Option<Rules>,
    /// Who moves running requests; asked at every poll.
    pub mover: Option<Box<dyn Mover>>,
    /// Goes into the report as it is.
    pub setup: Setup,
}

impl Config {
    /// This fleet behind this gateway, and nothing else: polls every 500 ms as the gateway's default is, no admission, no moves, no changes.
    #[must_use]
    pub fn new(fleet: FleetConfig, gateway: GatewayConfig) -> Self {
        Config {
            fleet,
            gateway,
            poll: Nanos::from_millis(500),
            longest_pause: None,
            slo: Slo::default(),
            single_steps: false,
            regions: Vec::new(),
            changes: Vec::new(),
            admission: None,
            mover: None,
            setup: Setup::default(),
        }
    }
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
    StepOver {
        instance: u32,
        generation: u32,
    },
    Poll,
    Start,
    Call {
        session: SessionSlot,
        call: u32,
        /// How often it was sent before.
        sending: u32,
    },
    /// The patience of a request's caller is at its end.
    GiveUp {
        number: u64,
    },
    /// The KV of a request has come to where it decodes.
    Handed {
        key: Key,
    },
    /// A copy of a running request's KV is through.
    Copied {
        key: Key,
    },
    Change(u32),
    /// An engine has started up.
    Ready(u32),
    /// Somebody who waits may have to leave.
    Look,
}

/// Of equal times: what has happened comes before what begins.
mod precedence {
    pub(super) const STEP: u8 = 0;
    pub(super) const HANDED: u8 = 1;
    pub(super) const CHANGE: u8 = 2;
    pub(super) const POLL: u8 = 3;
    pub(super) const CALL: u8 = 4;
}

/// Events at one moment beyond which time is taken to stand still.
const MOST_AT_ONCE: u64 = 50_000_000;

/// Runs a question to its end.
///
/// # Errors
/// When the source has an error, the watcher wants no more, or nothing can move any more.
pub fn run(config: Config, source: Source<'_>, watcher: &mut dyn Watcher) -> Result<Report, RunError> {
    run_with(config, source, watcher, &mut Plain)
}

/// The same with callers that have tenants, promises and a will of their own.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    config: Config,
    source: Source<'_>,
    watcher: &mut dyn Watcher,
    callers: &mut dyn Callers,
) -> Result<Report, RunError> {
    let mut world = World::new(config, source, watcher, callers);
    world.go()?;
    Ok(world.report())
}

struct World<'a> {
    now: Nanos,
    agenda: Agenda<Event>,
    source: Source<'a>,
    next: Option<Session>,
    watcher: &'a mut dyn Watcher,
    callers: &'a mut dyn Callers,
    sessions: Sessions,
    gateway: Gateway,
    clock: StepClock,
    fleet: FleetConfig,
    engines: Vec<Engine>,
    requests: Vec<Option<Request>>,
    free: Vec<u32>,
    figures: Collector,
    happened: Vec<Happened>,
    door: Option<Door>,
    /// By number.
    waiting: BTreeMap<u64, Waits>,
    looks_at: Option<Nanos>,
    changes: Vec<(Nanos, Change)>,
    moves: Moves,
    started: u64,
    /// Polls in the agenda, and other things there that alone do not keep a run going.
    idle_events: u64,
    poll: Nanos,
    setup: Setup,
}

impl<'a> World<'a> {
    fn new(config: Config, source: Source<'a>, watcher: &'a mut dyn Watcher, callers: &'a mut dyn Callers) -> Self {
        let Config {
            mut fleet,
            gateway,
            poll,
            longest_pause,
            slo,
            single_steps,
            regions,
            changes,
            admission,
            mover,
            setup,
        } = config;
        let mut clock = StepClock::new(fleet.take_time());
        clock.single_steps = single_steps;
        let door = admission.map(|rules| Door::new(rules, gateway.assumed_output_tokens));
        let gateway = Gateway::new(gateway, fleet.shape.block_tokens);
        let mut world = World {
            now: Nanos::ZERO,
            agenda: Agenda::default(),
            source,
            next: None,
            watcher,
            callers,
            sessions: Sessions::new(longest_pause, regions.len(), setup.seed),
            gateway,
            clock,
            fleet,
            engines: Vec::new(),
            requests: Vec::new(),
            free: Vec::new(),
            figures: Collector::new(slo, regions),
            happened: Vec::new(),
            door,
            waiting: BTreeMap::new(),
            looks_at: None,
            changes,
            moves: Moves::new(mover),
            started: 0,
            idle_events: 0,
            poll,
            setup,
        };
        world.build_fleet();
        world
    }

    fn go(&mut self) -> Result<(), RunError> {
        self.pull()?;
        if let Some(first) = &self.next {
            self.agenda.put(first.start, precedence::POLL, Event::Poll);
            self.idle_events = 1;
        }
        self.note_changes();
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
                Event::Call { session, call, sending } => self.arrive(session, call, sending),
                Event::GiveUp { number } => self.give_up(number),
                Event::Handed { key } => self.handed(key),
                Event::Copied { key } => self.copied(key),
                Event::Change(nth) => self.change(nth),
                Event::Ready(instance) => self.ready(instance),
                Event::Look => self.give_turns(),
            }
        }
        if self.in_flight() > 0 || self.sessions.len() > 0 {
            return Err(self.stuck("requests are left"));
        }
        let _ = self.watcher.status(&self.status());
        Ok(())
    }

    fn in_flight(&self) -> u64 {
        (self.requests.len() - self.free.len() + self.waiting.len()) as u64
    }

    fn status(&self) -> Status {
        let arrived = self.figures.requests.arrived;
        let in_flight = self.in_flight();
        Status { now: self.now, started_sessions: self.started, arrived, ended: arrived - in_flight, in_flight }
    }

    fn stuck(&self, why: &str) -> RunError {
        let ranks = || self.engines.iter().flat_map(|engine| engine.instance.ranks());
        let waiting: usize = ranks().map(|rank| rank.waiting()).sum();
        let running: usize = ranks().map(|rank| rank.running()).sum();
        let state = format!(
            "{why} at {:.3} s: {} requests in flight, {running} running and {waiting} waiting on {} instances, {} sessions \
             under way, {} events to come",
            self.now.as_secs_f64(),
            self.in_flight(),
            self.engines.len(),
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
            Some(_) => agenda.put(now, precedence::CALL, Event::Call { session: slot, call: call as u32, sending: 0 }),
        });
        if let Some((slot, call)) = first {
            self.arrive(slot, call, 0);
        }
        self.pull()
    }

    fn poll(&mut self) -> Result<(), RunError> {
        self.idle_events -= 1;
        let now = self.now;
        self.gateway.tick(now);
        let mut sample = Sample {
            instances: self.engines.iter().filter(|engine| engine.up || engine.starting).count() as u64,
            ..Sample::default()
        };
        for (id, engine) in self.engines.iter().enumerate().filter(|(_, engine)| engine.known) {
            let id = InstanceId(id as u32);
            if !engine.up {
                self.gateway.scheduler.probe_failed(id, now);
                continue;
            }
            sample.serving += 1;
            self.gateway.scheduler.probe_ok(id, now);
            let mut kv = 0;
            for report in engine.instance.reports(now) {
                sample.running += report.running_requests.unwrap_or(0);
                sample.waiting += report.waiting_requests.unwrap_or(0);
                kv += report.used_kv_tokens.unwrap_or(0);
                self.gateway.report(id, report, now);
            }
            sample.kv_tokens += kv;
            sample.fullest_kv_tokens = sample.fullest_kv_tokens.max(kv);
        }
        self.figures.series.sample(now, sample);
        self.look_at_contexts();
        self.ask_mover();
        if self.agenda.len() as u64 > self.idle_events {
            self.idle_events += 1;
            // Nothing to look at until the next event: the poll before it is enough.
            let idle = sample.running + sample.waiting == 0 && self.waiting.is_empty();
            let next = self.agenda.next_at().filter(|_| idle).unwrap_or(now);
            let skipped = next.since(now).0 / self.poll.0.max(1);
            let at = now + Nanos(skipped.max(1).saturating_mul(self.poll.0.max(1)));
            self.agenda.put(at, precedence::POLL, Event::Poll);
            return Ok(());
        }
        if self.in_flight() > 0 { Err(self.stuck("no engine has anything to do")) } else { Ok(()) }
    }

    /// What everybody who runs has for a context, now and then.
    fn look_at_contexts(&mut self) {
        if !self.figures.contexts.due(self.now) {
            return;
        }
        for (id, engine) in self.engines.iter().enumerate().filter(|(_, engine)| engine.up) {
            for context in engine.instance.contexts(self.now) {
                self.figures.contexts.see(self.now, id as u32, context);
            }
        }
    }

    fn announce(&mut self, instance: u32, ends: Option<Nanos>) {
        if let Some(at) = ends {
            let generation = self.engines[instance as usize].instance.generation();
            self.agenda.put(at, precedence::STEP, Event::StepOver { instance, generation });
        }
    }

    fn step_over(&mut self, id: u32, generation: u32) {
        let instance = &mut self.engines[id as usize].instance;
        if instance.generation() != generation {
            return;
        }
        let steps = instance.end(&mut self.happened);
        self.figures.steps(&steps);
        self.settle();
        self.let_go(id);
        let ends = self.engines[id as usize].instance.begin(&self.clock, &mut self.happened);
        self.settle();
        self.announce(id, ends);
        self.tell(id);
        self.give_turns();
    }

    /// What an engine has to say of its cache goes out.
    fn tell(&mut self, id: u32) {
        if !self.gateway.config().cache_view {
            return;
        }
        let instance = &mut self.engines[id as usize].instance;
        for rank in 0..instance.ranks().len() as u16 {
            let events = instance.rank_mut(Rank(rank)).take_events();
            self.gateway.kv_events(self.now, Target { instance: InstanceId(id), rank: Rank(rank) }, events);
        }
    }

    fn instance(&mut self, id: InstanceId) -> &mut Instance {
        &mut self.engines[id.0 as usize].instance
    }
}
