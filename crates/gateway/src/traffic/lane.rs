//! One model's admission with its lock, its view of the pool, and those that wait.

use super::Traffic;
use crate::metrics::ModelClass;
use crate::state::Shared;
use parking_lot::Mutex;
use plimsoll_core::{Class, InstanceLoad, ModelDemand, Nanos, RequestId};
use plimsoll_load::{Coefficients, PoolLoad};
use plimsoll_traffic::admission::{Admission, Arrival, Decision, LikelyOutput, PoolView, Rules, Snapshot, Verdict};
use plimsoll_traffic::lease::Lease;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use std::collections::HashMap;
use tokio::sync::oneshot;

/// A view is taken again after this long. Between, admission itself counts what it lets go, so a burst is not let through on an old view;
/// what ends meanwhile is seen a little late.
const VIEW_FRESH: Nanos = Nanos::from_millis(5);
/// And the model of prefill times, which moves slowly.
const MODEL_FRESH: Nanos = Nanos::from_millis(500);

/// What a waiter is told. `None`: traffic scheduling was turned off, it may go.
pub(crate) type Told = Option<Decision>;

/// One model's lane.
pub(crate) struct Lane {
    pub(crate) model: String,
    state: Mutex<State>,
    /// High, medium, low: looked up once, since every request passes here.
    waits: [Histogram; 3],
    admitted: [Counter; 3],
}

struct State {
    admission: Admission,
    view: View,
    likely_output: LikelyOutput,
    /// Those that wait. Looked up, never walked.
    waiters: HashMap<RequestId, oneshot::Sender<Told>>,
}

#[derive(Default)]
struct View {
    taken_at: Option<Nanos>,
    loads: Vec<InstanceLoad>,
    /// Share of the tokens charged that engines had really to compute.
    uncached_share: f64,
    scratch: Vec<PoolLoad>,
    /// How long a prefill takes, as far as engines have shown, and when that was asked.
    prefill: Option<Coefficients>,
    prefill_at: Option<Nanos>,
}

/// What is known of a request before the pool's own figures are applied.
pub(crate) struct Asked {
    pub arrival: Arrival,
    /// Most output, over all sequences, that the client lets it have.
    pub most_output_tokens: Option<u64>,
    pub sequences: u64,
}

/// What became of an arrival.
pub(crate) enum Arrived {
    Verdict(Verdict),
    Waits(oneshot::Receiver<Told>),
}

impl Lane {
    pub(crate) fn new(shared: &Shared, model: &str, rules: Rules, assumed_output_tokens: u64) -> Self {
        let labels = |class: Class| ModelClass { model: model.to_owned(), class: class.as_str() };
        let metrics = &shared.metrics;
        let mut admission = Admission::new(rules);
        admission.set_lease(shared.leases.lease(shared, model));
        let state = State {
            admission,
            view: View::default(),
            likely_output: LikelyOutput::new(assumed_output_tokens),
            waiters: HashMap::new(),
        };
        Lane {
            model: model.to_owned(),
            state: Mutex::new(state),
            waits: Class::ALL.map(|class| metrics.traffic_wait_seconds.get_or_create(&labels(class)).clone()),
            admitted: Class::ALL.map(|class| metrics.traffic_admitted_tokens.get_or_create(&labels(class)).clone()),
        }
    }

    /// Counts a request that was let go or refused.
    pub(crate) fn count(&self, class: Class, waited: Nanos, admitted_tokens: u64) {
        self.waits[class as usize].observe(waited.as_secs_f64());
        self.admitted[class as usize].inc_by(admitted_tokens);
    }

    pub(crate) fn arrive(&self, shared: &Shared, traffic: &Traffic, asked: Asked) -> Arrived {
        let Asked { mut arrival, most_output_tokens, sequences } = asked;
        let key = arrival.key;
        let mut state = self.state.lock();
        let State { admission, view, likely_output, waiters } = &mut *state;
        let now = shared.now();
        view.refresh(shared, &self.model, now, VIEW_FRESH);
        let likely = likely_output.tokens().saturating_mul(sequences);
        arrival.decode_tokens = most_output_tokens.map_or(likely, |most| most.min(likely));
        // A prompt whose hits nobody predicted is mostly cached where such prompts mostly are.
        arrival.prefill_tokens = (arrival.prefill_tokens as f64 * view.uncached_share).ceil() as u64;
        let hit_tokens = arrival.prompt_tokens.saturating_sub(arrival.prefill_tokens);
        let seconds = view.prefill.map(|model| model.prefill_s(arrival.prefill_tokens, hit_tokens));
        arrival.service = seconds.map(Nanos::from_secs_f64);
        match admission.arrive(now, arrival, &view.pool(now)) {
            Verdict::Wait => {
                let (tell, told) = oneshot::channel();
                waiters.insert(key, tell);
                traffic.count_waiting(1);
                drop(state);
                traffic.wake.notify_one();
                Arrived::Waits(told)
            }
            verdict => Arrived::Verdict(verdict),
        }
    }

    /// Gives turns. Returns when it should be done again at the latest; `None` while nobody waits.
    pub(crate) fn turn(&self, shared: &Shared, traffic: &Traffic) -> Option<Nanos> {
        let mut state = self.state.lock();
        let State { admission, view, waiters, .. } = &mut *state;
        if admission.is_idle() {
            return None;
        }
        let now = shared.now();
        view.refresh(shared, &self.model, now, Nanos::ZERO);
        for decision in admission.dispatch(now, &view.pool(now)) {
            if let Some(tell) = waiters.remove(&decision.key()) {
                traffic.count_waiting(-1);
                // Whoever left in this moment cancels by himself.
                let _ = tell.send(Some(decision));
            }
        }
        admission.next_look(now)
    }

    /// The client of a request that waits, or that was let go and has not begun, has gone.
    pub(crate) fn cancel(&self, shared: &Shared, traffic: &Traffic, key: RequestId) {
        let mut state = self.state.lock();
        state.admission.cancel(key, shared.now());
        if state.waiters.remove(&key).is_some() {
            traffic.count_waiting(-1);
        }
    }

    /// The ledger knows of it.
    pub(crate) fn begun(&self, key: RequestId, prefill_until: Option<Nanos>) {
        self.state.lock().admission.begun(key, prefill_until);
    }

    pub(crate) fn first_token(&self, key: RequestId, now: Nanos) {
        self.state.lock().admission.first_token(key, now);
    }

    /// It is over, and took so much as far as engines say.
    pub(crate) fn settle(&self, now: Nanos, key: RequestId, prefill_tokens: Option<u64>, decode_tokens: Option<u64>) {
        self.state.lock().admission.settle(key, now, prefill_tokens, decode_tokens);
    }

    pub(crate) fn reconfigure(&self, now: Nanos, rules: Rules) {
        self.state.lock().admission.reconfigure(now, rules);
    }

    /// Traffic scheduling is off: nobody waits any more.
    pub(crate) fn let_all_go(&self, traffic: &Traffic) {
        let mut state = self.state.lock();
        for (_, tell) in state.waiters.drain() {
            traffic.count_waiting(-1);
            let _ = tell.send(None);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().waiters.is_empty()
    }

    /// Takes this gateway's part of the pool.
    pub(crate) fn set_lease(&self, lease: Option<Lease>) {
        self.state.lock().admission.set_lease(lease);
    }

    /// What clients ask for here.
    pub(crate) fn demand(&self, now: Nanos) -> ModelDemand {
        self.state.lock().admission.demand(now)
    }

    /// As of now: the level falls while nothing arrives, too.
    pub(crate) fn snapshot(&self, shared: &Shared) -> Snapshot {
        let mut state = self.state.lock();
        let State { admission, view, .. } = &mut *state;
        let now = shared.now();
        view.refresh(shared, &self.model, now, VIEW_FRESH);
        admission.look(now, &view.pool(now));
        admission.snapshot(now)
    }

    /// An answer said how long it was.
    pub(crate) fn learn_output(&self, tokens: u64, sequences: u64) {
        self.state.lock().likely_output.learn(tokens, sequences);
    }
}

impl View {
    fn refresh(&mut self, shared: &Shared, model: &str, now: Nanos, fresh: Nanos) {
        if self.taken_at.is_some_and(|at| now.since(at) <= fresh && (fresh > Nanos::ZERO || at == now)) {
            return;
        }
        let learnt = self.prefill_at.is_none_or(|at| now.since(at) > MODEL_FRESH);
        shared.with_scheduler(|s| {
            s.pool_loads(model, now, &mut self.scratch);
            if learnt {
                self.prefill = s.prefill_model(Some(model));
            }
        });
        if learnt {
            self.prefill_at = Some(now);
        }
        self.taken_at = Some(now);
        self.loads.clear();
        self.loads.extend(self.scratch.iter().map(|one| one.load));
        let shares = || self.scratch.iter().filter_map(|load| load.uncached_share);
        let count = shares().count();
        self.uncached_share = if count > 0 { shares().sum::<f64>() / count as f64 } else { 1.0 };
    }

    fn pool(&self, now: Nanos) -> PoolView<'_> {
        PoolView { taken_at: self.taken_at.unwrap_or(now), instances: &self.loads }
    }
}
