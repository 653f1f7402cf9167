//! A fleet in virtual time: the real [`Scheduler`] and the real [`FleetView`] before engines that cache, evict and tell of it.
//!
//! Small and exact: every event happens at its time in order, nothing is drawn outside the scheduler's own seed. Several
//! gateways may stand before the same engines, each with a scheduler and a view of its own.

pub(crate) mod engine;

use crate::fleet::{MODEL, target};
use engine::{Engine, Happened, Job, Shape};
use plimsoll_cache::chain::Namespace;
use plimsoll_cache::view::{FleetView, Hit, Prompt, ViewConfig};
use plimsoll_core::{EngineKind, InstanceId, KvBatch, Nanos, RequestId};
use plimsoll_load::{Ask, AttemptEnd, Charge, HeldTokens, InstanceSpec, Placed, Scheduler, SchedulerConfig, Ticket};
use std::collections::BTreeMap;

/// A request to come.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub at: Nanos,
    pub prompt: Vec<u32>,
    pub output: Vec<u32>,
}

/// What became of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub engine: u32,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub ttft: Nanos,
}

#[derive(Debug)]
enum Event {
    Arrive(usize),
    PrefillOver(u32),
    Done(u32, usize),
    Told(u32, u64, KvBatch),
    Report,
}

#[derive(Debug)]
struct Open {
    at: Nanos,
    gateway: usize,
    ticket: Ticket,
    prompt: Prompt,
    believed: Hit,
}

#[derive(Debug)]
pub(crate) struct Gateway {
    pub scheduler: Scheduler,
    pub view: FleetView,
}

#[derive(Debug)]
pub(crate) struct World {
    pub now: Nanos,
    pub gateways: Vec<Gateway>,
    pub engines: BTreeMap<u32, Engine>,
    /// From an engine's event to the gateways.
    pub lag: Nanos,
    /// Between two reports of load.
    pub poll: Nanos,
    /// Requests are placed without knowledge of caches.
    pub blind: bool,
    events: BTreeMap<(Nanos, u64), Event>,
    numbered: u64,
    arrivals: Vec<Arrival>,
    open: BTreeMap<usize, Open>,
    pub served: BTreeMap<usize, Served>,
}

impl World {
    pub(crate) fn new(config: SchedulerConfig, gateways: usize, engines: u32, shape: Shape) -> Self {
        let gateway = |nth: usize| Gateway {
            scheduler: Scheduler::new(SchedulerConfig { seed: config.seed + nth as u64, ..config }),
            view: FleetView::new(ViewConfig::default()),
        };
        let mut world = World {
            now: Nanos::from_secs(100),
            gateways: (0..gateways).map(gateway).collect(),
            engines: BTreeMap::new(),
            lag: Nanos::from_millis(50),
            poll: Nanos::from_millis(500),
            blind: false,
            events: BTreeMap::new(),
            numbered: 0,
            arrivals: Vec::new(),
            open: BTreeMap::new(),
            served: BTreeMap::new(),
        };
        for id in 0..engines {
            world.add_engine(id, shape);
        }
        world
    }

    pub(crate) fn add_engine(&mut self, id: u32, shape: Shape) {
        let spec = InstanceSpec {
            models: vec![MODEL.to_owned()],
            kind: EngineKind::Vllm,
            ready: true,
            capacity_kv_tokens: Some(shape.blocks as u64 * u64::from(shape.block_tokens)),
            ..InstanceSpec::default()
        };
        for gateway in &mut self.gateways {
            gateway.scheduler.add_instance(InstanceId(id), spec.clone());
            gateway.scheduler.probe_ok(InstanceId(id), self.now);
            gateway.view.add(target(id), EngineKind::Vllm, Some(shape.block_tokens));
        }
        self.engines.insert(id, Engine::new(target(id), shape));
    }

    /// Serves these in the order of their times, and all that is still open; returns what became of these.
    pub(crate) fn serve(&mut self, arrivals: Vec<Arrival>) -> Vec<Served> {
        let first = self.arrivals.len();
        for (nth, arrival) in arrivals.iter().enumerate() {
            self.put(arrival.at.max(self.now), Event::Arrive(first + nth));
        }
        self.arrivals.extend(arrivals);
        self.put(self.now, Event::Report);
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at;
            self.happen(event);
        }
        for gateway in &mut self.gateways {
            gateway.scheduler.check_invariants().unwrap();
            assert_eq!(gateway.scheduler.totals(self.now).entries, 0, "everything is settled");
        }
        (first..self.arrivals.len()).map(|id| self.served[&id]).collect()
    }

    /// One at a time, each after the one before has ended.
    pub(crate) fn serve_one(&mut self, prompt: &[u32]) -> Served {
        let at = self.now + Nanos::from_millis(200);
        self.serve(vec![Arrival { at, prompt: prompt.to_vec(), output: text(u64::from(prompt[0]) << 20, 4) }])[0]
    }

    fn put(&mut self, at: Nanos, event: Event) {
        self.numbered += 1;
        self.events.insert((at, self.numbered), event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(id) => self.arrive(id),
            Event::PrefillOver(engine) => self.prefill_over(engine),
            Event::Done(engine, id) => {
                if let Some(open) = self.open.remove(&id) {
                    let Gateway { scheduler, view } = &mut self.gateways[open.gateway];
                    scheduler.settle(open.ticket, self.now, AttemptEnd::Ok);
                    view.left(target(engine), &open.prompt);
                }
                self.engine(engine).finish(id);
                self.moved(engine);
            }
            Event::Told(engine, seq, batch) => {
                for gateway in &mut self.gateways {
                    gateway.view.live(self.now, target(engine), seq, batch.clone());
                }
            }
            Event::Report => {
                for gateway in &mut self.gateways {
                    gateway.view.tick(self.now);
                    for (id, engine) in &self.engines {
                        gateway.scheduler.report(InstanceId(*id), engine.report(self.now), self.now);
                    }
                }
                if self.events.values().any(|event| !matches!(event, Event::Report)) {
                    self.put(self.now + self.poll, Event::Report);
                }
            }
        }
    }

    fn arrive(&mut self, id: usize) {
        let arrival = self.arrivals[id].clone();
        let nth = id % self.gateways.len();
        let (placed, prompt, believed) = self.place(nth, id as u128, &arrival);
        let engine = placed.target.instance.0;
        self.open.insert(id, Open { at: self.now, gateway: nth, ticket: placed.ticket, prompt, believed });
        let served = Served { engine, prompt_tokens: arrival.prompt.len() as u64, cached_tokens: 0, ttft: Nanos::ZERO };
        self.served.insert(id, served);
        let job = Job::new(id, self.engine(engine).shape, arrival.prompt, &arrival.output);
        self.engine(engine).queue(job);
        self.moved(engine);
    }

    /// Looks up, chooses and notes the decision, as the gateway does.
    pub(crate) fn place(&mut self, gateway: usize, request: u128, arrival: &Arrival) -> (Placed, Prompt, Hit) {
        let Gateway { scheduler, view } = &mut self.gateways[gateway];
        let prompt = view.prompt(Namespace::default(), &arrival.prompt);
        let found = if self.blind { BTreeMap::new() } else { view.hits(self.now, &prompt).into_iter().collect() };
        let held = |hit: &Hit| HeldTokens {
            device_tokens: hit.device_tokens,
            host_tokens: hit.host_tokens,
            shared_tokens: hit.shared_tokens,
        };
        let hits: Vec<_> = found.iter().map(|(target, hit)| (*target, held(hit))).collect();
        let prompt_tokens = arrival.prompt.len() as u64;
        let ask = Ask {
            request: RequestId(request),
            model: Some(MODEL),
            charge: Charge {
                uncached_prefill_tokens: prompt_tokens,
                reserved_kv_tokens: prompt_tokens + arrival.output.len() as u64,
                sequences: 1,
            },
            hits: &hits,
            ..Ask::default()
        };
        let placed = scheduler.place(self.now, &ask).unwrap();
        let believed = found.get(&placed.target).copied().unwrap_or_default();
        let _ = view.routed(self.now, placed.target, &prompt);
        (placed, prompt, believed)
    }

    fn prefill_over(&mut self, engine: u32) {
        if let Happened::FirstToken { id, cached_tokens, decode } = self.engine(engine).prefill_over() {
            let now = self.now;
            if let (Some(open), Some(served)) = (self.open.get(&id), self.served.get_mut(&id)) {
                (served.cached_tokens, served.ttft) = (cached_tokens, now.since(open.at));
                let Gateway { scheduler, view } = &mut self.gateways[open.gateway];
                scheduler.first_token(open.ticket, now);
                scheduler.prefilled(open.ticket, served.prompt_tokens - cached_tokens, cached_tokens);
                view.reported(now, target(engine), &open.prompt, open.believed, cached_tokens);
            }
            self.put(now + decode, Event::Done(engine, id));
        }
        self.moved(engine);
    }

    /// Lets an engine go on, and its events go out.
    pub(crate) fn moved(&mut self, id: u32) {
        let now = self.now;
        if let Some(over) = self.engine(id).start(now) {
            self.put(over, Event::PrefillOver(id));
        }
        if let Some((seq, batch)) = self.engine(id).take_events() {
            self.put(now + self.lag, Event::Told(id, seq, batch));
        }
    }

    pub(crate) fn engine(&mut self, id: u32) -> &mut Engine {
        self.engines.get_mut(&id).unwrap()
    }
}

/// Tokens that no other seed has in a row.
pub(crate) fn text(seed: u64, tokens: usize) -> Vec<u32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 40) as u32
    };
    (0..tokens).map(next).collect()
}

/// Requests per engine.
pub(crate) fn shares(served: &[Served]) -> BTreeMap<u32, usize> {
    let mut shares = BTreeMap::new();
    for one in served {
        *shares.entry(one.engine).or_insert(0) += 1;
    }
    shares
}

/// Share of all prompt tokens that the engines had.
pub(crate) fn hit_share(served: &[Served]) -> f64 {
    let sum = |f: fn(&Served) -> u64| served.iter().map(f).sum::<u64>() as f64;
    sum(|s| s.cached_tokens) / sum(|s| s.prompt_tokens)
}

/// The time to first token that a share of requests stays under, in milliseconds.
pub(crate) fn ttft_ms(served: &[Served], share: f64) -> f64 {
    let mut all: Vec<Nanos> = served.iter().map(|one| one.ttft).collect();
    all.sort_unstable();
    all[((all.len() - 1) as f64 * share) as usize].as_millis_f64()
}
