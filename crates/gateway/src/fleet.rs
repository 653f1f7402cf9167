//! The engines this process knows: addresses, capabilities and the signals that requests wait on.
//!
//! What is *decided* about an engine (health, load, draining) lives in the scheduler; this is its other half, the part
//! with sockets. Readers take an immutable snapshot.

use arc_swap::{ArcSwap, ArcSwapOption};
use plimsoll_core::{EngineKind, InstanceId, Nanos};
use plimsoll_load::HealthState;
use plimsoll_pools::capability::Capability;
use plimsoll_pools::http::Endpoint;
use plimsoll_settings::{Engine as EngineSettings, PriorityOrder};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tokio::sync::watch;

/// Where an engine's entry came from: a reload only touches what a config brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Config,
    Admin,
}

/// An engine's entry in the settings and the address made from it.
pub struct Reach {
    pub settings: EngineSettings,
    pub endpoint: Endpoint,
}

/// One engine.
pub struct EngineHandle {
    pub id: InstanceId,
    pub origin: Origin,
    /// How it is reached; a reload swaps it in place, so that id, ledger and running requests stay.
    reach: ArcSwap<Reach>,
    pub capability: ArcSwapOption<Capability>,
    /// Last probe's error in words; empty when it answered.
    pub last_error: ArcSwapOption<String>,
    health: watch::Sender<HealthState>,
    /// When a stream of this engine last moved, on the gateway's clock.
    last_progress: AtomicU64,
    /// It is to be asked anew who it is.
    renewal: AtomicBool,
    stop: watch::Sender<bool>,
}

impl EngineHandle {
    #[must_use]
    pub fn new(id: InstanceId, settings: EngineSettings, origin: Origin, endpoint: Endpoint) -> Self {
        EngineHandle {
            id,
            origin,
            reach: ArcSwap::from_pointee(Reach { settings, endpoint }),
            capability: ArcSwapOption::empty(),
            last_error: ArcSwapOption::empty(),
            health: watch::channel(HealthState::Unproven).0,
            last_progress: AtomicU64::new(0),
            renewal: AtomicBool::new(false),
            stop: watch::channel(false).0,
        }
    }

    /// Where it is reached as of now. What has begun on an older one ends there.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.reach.load().endpoint.clone()
    }

    /// Its entry in the settings as of now.
    #[must_use]
    pub fn settings(&self) -> EngineSettings {
        self.reach.load().settings.clone()
    }

    /// Takes another entry for the same engine.
    pub fn swap_reach(&self, settings: EngineSettings, endpoint: Endpoint) {
        self.reach.store(Arc::new(Reach { settings, endpoint }));
        self.renewal.store(true, Ordering::Relaxed);
    }

    /// The gateway proves itself to this engine with a key of its own.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.reach.load().settings.api_key.is_some()
    }

    /// True once after each [`EngineHandle::swap_reach`] and each ejection.
    #[must_use]
    pub fn take_renewal(&self) -> bool {
        self.renewal.swap(false, Ordering::Relaxed)
    }

    /// As configured.
    #[must_use]
    pub fn priority_order(&self) -> Option<PriorityOrder> {
        self.reach.load().settings.priority_order
    }

    /// As found by probing, else as configured.
    #[must_use]
    pub fn kind(&self) -> EngineKind {
        let found = self.capability.load().as_ref().map(|c| c.kind);
        found.or(self.reach.load().settings.kind).unwrap_or(EngineKind::Openai)
    }

    /// A receiver that wakes when the engine's health changes.
    #[must_use]
    pub fn watch_health(&self) -> watch::Receiver<HealthState> {
        self.health.subscribe()
    }

    /// Whatever comes back after an ejection may be another program.
    pub fn set_health(&self, state: HealthState) {
        if state == HealthState::Ejected {
            self.renewal.store(true, Ordering::Relaxed);
        }
        self.health.send_replace(state);
    }

    /// Taken out for its health.
    #[must_use]
    pub fn is_ejected(&self) -> bool {
        *self.health.borrow() == HealthState::Ejected
    }

    pub fn moved(&self, now: Nanos) {
        self.last_progress.store(now.0, Ordering::Relaxed);
    }

    #[must_use]
    pub fn last_progress(&self) -> Nanos {
        Nanos(self.last_progress.load(Ordering::Relaxed))
    }

    /// Ends the engine's prober.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    #[must_use]
    pub fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}

/// All engines.
#[derive(Default)]
pub struct Fleet {
    engines: ArcSwap<BTreeMap<InstanceId, Arc<EngineHandle>>>,
    next_id: AtomicU32,
}

impl Fleet {
    /// Ids are never given twice.
    #[must_use]
    pub fn next_id(&self) -> InstanceId {
        InstanceId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    #[must_use]
    pub fn get(&self, id: InstanceId) -> Option<Arc<EngineHandle>> {
        self.engines.load().get(&id).cloned()
    }

    /// The family of the engines, where all are of one; they join the text parts of a message in ways of their own.
    #[must_use]
    pub fn kind_of_all(&self) -> EngineKind {
        let engines = self.engines.load();
        let mut kinds = engines.values().map(|engine| engine.kind());
        kinds.next().filter(|first| kinds.all(|kind| kind == *first)).unwrap_or(EngineKind::Sglang)
    }

    #[must_use]
    pub fn all(&self) -> Arc<BTreeMap<InstanceId, Arc<EngineHandle>>> {
        self.engines.load_full()
    }

    pub fn insert(&self, engine: &Arc<EngineHandle>) {
        self.engines.rcu(|map| {
            let mut map = BTreeMap::clone(map);
            map.insert(engine.id, engine.clone());
            map
        });
    }

    pub fn remove(&self, id: InstanceId) -> Option<Arc<EngineHandle>> {
        let before = self.engines.rcu(|map| {
            let mut map = BTreeMap::clone(map);
            map.remove(&id);
            map
        });
        before.get(&id).cloned()
    }
}
