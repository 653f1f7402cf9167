//! A pool of engines that prefill one request after another, driven by [`Admission`] in steps of virtual time.

use crate::admission::{Admission, Arrival, Decision, PoolView, Refusal, Rules, Verdict};
use plimsoll_core::InstanceLoad;
use plimsoll_core::{Class, Nanos, RequestId};
use std::collections::{BTreeMap, VecDeque};

pub(super) const STEP: Nanos = Nanos::from_millis(5);

#[derive(Clone, Debug)]
struct Running {
    key: RequestId,
    left_tokens: f64,
}

#[derive(Clone, Debug)]
struct Engine {
    rate: f64,
    known: bool,
    queue: VecDeque<Running>,
}

/// What became of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    Refused { at: Nanos, refusal: Refusal },
    FirstToken { at: Nanos },
}

pub(super) struct World {
    pub now: Nanos,
    pub admission: Admission,
    engines: Vec<Engine>,
    pub arrived: BTreeMap<RequestId, Arrival>,
    pub at: BTreeMap<RequestId, Nanos>,
    pub went: BTreeMap<RequestId, Nanos>,
    pub ends: BTreeMap<RequestId, End>,
    pub cancelled: Vec<RequestId>,
    next: u128,
}

pub(super) fn plain(class: Class, tokens: u64) -> Arrival {
    Arrival {
        key: RequestId(0),
        tenant: "t".into(),
        class,
        prompt_tokens: tokens,
        prefill_tokens: tokens,
        decode_tokens: 0,
        bytes: 100,
        service: None,
        first_token_by: None,
        answer_by: Nanos::MAX,
        retry: false,
    }
}

impl World {
    pub(super) fn new(rules: Rules, rates: &[Option<f64>]) -> Self {
        let engine = |rate: &Option<f64>| Engine {
            rate: rate.unwrap_or(10_000.0),
            known: rate.is_some(),
            queue: VecDeque::new(),
        };
        World {
            now: Nanos::from_secs(1),
            admission: Admission::new(rules),
            engines: rates.iter().map(engine).collect(),
            arrived: BTreeMap::new(),
            at: BTreeMap::new(),
            went: BTreeMap::new(),
            ends: BTreeMap::new(),
            cancelled: Vec::new(),
            next: 0,
        }
    }

    pub(super) fn loads(&self) -> Vec<InstanceLoad> {
        let load = |engine: &Engine| InstanceLoad {
            backlog_tokens: engine.queue.iter().map(|one| one.left_tokens.ceil() as u64).sum(),
            prefill_tokens_per_s: engine.known.then_some(engine.rate),
            running: engine.queue.len() as u32,
            ..InstanceLoad::default()
        };
        self.engines.iter().map(load).collect()
    }

    /// Seconds of work in front of the engine that has the least.
    pub(super) fn least_wait_s(&self) -> f64 {
        let wait = |engine: &Engine| engine.queue.iter().map(|one| one.left_tokens).sum::<f64>() / engine.rate;
        self.engines.iter().map(wait).fold(f64::INFINITY, f64::min)
    }

    /// Lets a request arrive; its key.
    pub(super) fn arrive(&mut self, arrival: Arrival) -> RequestId {
        let key = RequestId(self.next);
        self.next += 1;
        let arrival = Arrival { key, ..arrival };
        self.arrived.insert(key, arrival.clone());
        self.at.insert(key, self.now);
        let loads = self.loads();
        let view = PoolView { taken_at: self.now, instances: &loads };
        match self.admission.arrive(self.now, arrival, &view) {
            Verdict::Go(_) => self.begin(key),
            Verdict::Wait => self.dispatch(),
            Verdict::Refuse(refusal) => self.end(key, End::Refused { at: self.now, refusal }),
        }
        key
    }

    pub(super) fn cancel(&mut self, key: RequestId) {
        if self.ends.contains_key(&key) {
            return;
        }
        assert!(self.admission.cancel(key, self.now));
        for engine in &mut self.engines {
            engine.queue.retain(|one| one.key != key);
        }
        self.cancelled.push(key);
    }

    pub(super) fn dispatch(&mut self) {
        let loads = self.loads();
        let view = PoolView { taken_at: self.now, instances: &loads };
        for decision in self.admission.dispatch(self.now, &view) {
            match decision {
                Decision::Go { key, .. } => self.begin(key),
                Decision::Refuse { key, refusal } => self.end(key, End::Refused { at: self.now, refusal }),
            }
        }
    }

    /// A step of time: engines work, then turns.
    pub(super) fn step(&mut self) {
        self.sleep(STEP);
        self.dispatch();
    }

    /// Time passes for the engines and nobody looks.
    pub(super) fn sleep(&mut self, time: Nanos) {
        self.now = self.now + time;
        let mut done = Vec::new();
        for engine in &mut self.engines {
            let mut budget = engine.rate * time.as_secs_f64();
            while let Some(first) = engine.queue.front_mut() {
                if first.left_tokens > budget {
                    first.left_tokens -= budget;
                    break;
                }
                budget -= first.left_tokens;
                done.push(first.key);
                engine.queue.pop_front();
            }
        }
        for key in done {
            self.admission.first_token(key, self.now);
            self.admission.settle(key, self.now, None, None);
            self.end(key, End::FirstToken { at: self.now });
        }
    }

    pub(super) fn run_until_quiet(&mut self) {
        for _ in 0..200_000 {
            if self.admission.is_idle() && self.engines.iter().all(|engine| engine.queue.is_empty()) {
                return;
            }
            self.step();
        }
        panic!("it never gets quiet: {:?}", self.admission.snapshot(self.now));
    }

    pub(super) fn wait_of(&self, key: RequestId) -> Option<Nanos> {
        let at = match self.ends.get(&key)? {
            End::Refused { at, .. } | End::FirstToken { at } => *at,
        };
        Some(at.since(self.at[&key]))
    }

    pub(super) fn refusal(&self, key: RequestId) -> Option<&Refusal> {
        match self.ends.get(&key)? {
            End::Refused { refusal, .. } => Some(refusal),
            End::FirstToken { .. } => None,
        }
    }

    pub(super) fn refusals(&self) -> impl Iterator<Item = (RequestId, &Refusal)> {
        self.ends.keys().filter_map(|key| Some((*key, self.refusal(*key)?)))
    }

    fn begin(&mut self, key: RequestId) {
        let tokens = self.arrived[&key].prefill_tokens as f64;
        assert!(self.went.insert(key, self.now).is_none(), "{key} went twice");
        assert!(!self.cancelled.contains(&key), "{key} went after it was cancelled");
        let wait = |engine: &Engine| engine.queue.iter().map(|one| one.left_tokens).sum::<f64>() / engine.rate;
        let best = self.engines.iter_mut().min_by(|a, b| wait(a).total_cmp(&wait(b)));
        best.expect("a world has engines").queue.push_back(Running { key, left_tokens: tokens });
        self.admission.begun(key, None);
    }

    fn end(&mut self, key: RequestId, end: End) {
        if let End::Refused { refusal, .. } = &end {
            assert!(refusal.recorded().check().is_ok(), "{:?}: {refusal:?}", refusal.recorded().check());
        }
        assert!(self.ends.insert(key, end).is_none(), "{key} ended twice");
        assert!(!self.cancelled.contains(&key), "{key} was answered after it was cancelled");
    }
}
