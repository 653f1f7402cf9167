//! The hit-rate funnel of a running gateway: what [`plimsoll_cache::funnel`] is fed with.
//!
//! Nothing of it decides where a request goes, so nothing of it is done on a request's way: placements and ends are put into a bounded
//! queue, and one task works it off. What does not fit is counted, and the request is in no layer.

pub mod labels;
mod report;

use crate::metrics::OTHER_MODEL;
use crate::state::Shared;
use parking_lot::Mutex;
use plimsoll_cache::funnel::{Answer, Arrival, CellKey, Funnel, FunnelConfig, FunnelReport, Reported, Unmeasured};
use plimsoll_cache::view::{Hit, Prompt};
use plimsoll_core::{Nanos, Rank, RequestId, Target};
use plimsoll_settings::Settings;
pub(crate) use report::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Messages that wait. A prompt's names are shared with the request itself, so that a full queue is not a second copy of them.
const QUEUE: usize = 4_096;

/// Messages worked off under one lock.
const BATCH: usize = 64;

/// Models with a funnel of their own.
const MOST_MODELS: usize = 32;

/// What happened to a request.
#[derive(Debug)]
pub(crate) enum Told {
    Placed(Box<Place>),
    Ended {
        model: String,
        at: Nanos,
        request: RequestId,
        reported: Option<Reported>,
    },
    Failed {
        model: String,
        request: RequestId,
    },
    /// It had no token ids, so that it is in no layer.
    Unnamed {
        model: String,
    },
}

/// A placement.
#[derive(Debug)]
pub(crate) struct Place {
    pub model: String,
    pub at: Nanos,
    pub prompt: Arc<Prompt>,
    pub request: RequestId,
    pub attempt: u8,
    pub key: CellKey,
    pub target: Target,
    pub believed: Option<Hit>,
    pub answer: Option<Answer>,
}

/// The funnels of all models, and the way to them.
pub struct Funnels {
    sender: mpsc::Sender<Told>,
    receiver: Mutex<Option<mpsc::Receiver<Told>>>,
    enabled: bool,
    config: FunnelConfig,
    /// Messages that found the queue full.
    lost: AtomicU64,
    models: Mutex<BTreeMap<String, Funnel>>,
}

impl Funnels {
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        Funnels {
            sender,
            receiver: Mutex::new(Some(receiver)),
            enabled: settings.funnel.enabled,
            config: funnel_config(settings),
            lost: AtomicU64::new(0),
            models: Mutex::default(),
        }
    }

    /// Puts a message into the queue; it is not even made where nobody wants it.
    pub(crate) fn tell(&self, told: impl FnOnce() -> Told) {
        if !self.enabled {
            return;
        }
        match self.sender.try_reserve() {
            Ok(place) => place.send(told()),
            Err(_) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Messages that found the queue full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// Every model's figures as of now.
    #[must_use]
    pub fn reports(&self, now: Nanos) -> Vec<(String, FunnelReport)> {
        self.models.lock().iter_mut().map(|(model, funnel)| (model.clone(), funnel.report(now))).collect()
    }

    /// The names in a model's funnel that are not `other` are those of models that some engine has, so their number is bounded; a bound
    /// of its own all the same.
    fn take(&self, fleet: &impl Fn() -> Capacities, told: Vec<Told>) {
        let mut models = self.models.lock();
        for one in told {
            let name = match &one {
                Told::Placed(place) => &place.model,
                Told::Ended { model, .. } | Told::Failed { model, .. } | Told::Unnamed { model } => model,
            };
            let known = models.contains_key(name) || models.len() < MOST_MODELS;
            let name = if known { name.clone() } else { OTHER_MODEL.to_owned() };
            let funnel = models.entry(name.clone()).or_insert_with(|| Funnel::new(self.config));
            match one {
                Told::Placed(place) => {
                    if !funnel.targets().any(|target| target == place.target) {
                        fit(funnel, fleet().get(&name));
                    }
                    arrive(funnel, &place);
                }
                Told::Ended { at, request, reported, .. } => funnel.ended(at, request, reported),
                Told::Failed { request, .. } => funnel.failed(request),
                Told::Unnamed { .. } => funnel.not_measured(Unmeasured::NoTokenIds),
            }
        }
    }

    /// Engines come, go and tell what they can hold.
    fn refit(&self, fleet: &Capacities) {
        for (model, funnel) in self.models.lock().iter_mut() {
            fit(funnel, fleet.get(model));
        }
    }
}

/// The funnel's share of the settings.
#[must_use]
pub fn funnel_config(settings: &Settings) -> FunnelConfig {
    FunnelConfig {
        window: Nanos::from_secs(settings.funnel.window_s),
        max_blocks: settings.funnel.max_blocks,
        max_nodes: usize::try_from(settings.funnel.max_blocks / 8).unwrap_or(usize::MAX),
        ..FunnelConfig::default()
    }
}

fn arrive(funnel: &mut Funnel, place: &Place) {
    // The names that it has seen so far, as long as there are such.
    let known = place.prompt.chains().find(|(family, _)| Some(*family) == funnel.family());
    let Some((family, names)) = known.or_else(|| place.prompt.chains().next()) else {
        return funnel.not_measured(Unmeasured::NoTokenIds);
    };
    funnel.arrived(
        place.at,
        &Arrival {
            request: place.request,
            attempt: place.attempt,
            key: place.key.clone(),
            family,
            names,
            prompt_tokens: place.prompt.tokens(),
            target: place.target,
            believed: place.believed,
            answer: place.answer,
        },
    );
}

/// KV tokens that every rank can hold, by model.
type Capacities = BTreeMap<String, BTreeMap<Target, Option<u64>>>;

fn fit(funnel: &mut Funnel, ranks: Option<&BTreeMap<Target, Option<u64>>>) {
    let gone: Vec<Target> =
        funnel.targets().filter(|target| ranks.is_none_or(|ranks| !ranks.contains_key(target))).collect();
    for target in gone {
        funnel.remove(target);
    }
    for (target, tokens) in ranks.into_iter().flatten() {
        funnel.set_capacity(*target, *tokens);
    }
}

fn capacities(shared: &Shared) -> Capacities {
    let mut all = Capacities::new();
    for view in shared.with_scheduler(|s| s.instances(shared.now())) {
        let Some(engine) = shared.fleet.get(view.id) else { continue };
        let found = engine.capability.load_full();
        // Adapters share the KV of the model they lie on.
        let base = found.iter().flat_map(|found| &found.models).find(|model| model.parent.is_none());
        let Some(model) = base.map(|model| &model.id).or(view.models.first()) else { continue };
        let ranks = all.entry(model.clone()).or_default();
        for (at, rank) in view.ranks.iter().enumerate() {
            ranks.insert(Target { instance: view.id, rank: Rank(at as u16) }, rank.capacity_kv_tokens);
        }
    }
    all
}

/// Works the queue off for as long as the gateway runs.
pub async fn run(shared: Arc<Shared>) {
    let Some(mut receiver) = shared.funnel.receiver.lock().take() else { return };
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let mut told = Vec::with_capacity(BATCH);
        tokio::select! {
            count = receiver.recv_many(&mut told, BATCH) => {
                if count == 0 {
                    return;
                }
                shared.funnel.take(&|| capacities(&shared), told);
            }
            _ = ticks.tick() => shared.funnel.refit(&capacities(&shared)),
        }
    }
}

#[cfg(test)]
mod tests;
