//! Traffic scheduling at the gateway: one [`plimsoll_traffic::Admission`] per model, fed with what the scheduler's ledger and the engines' reports
//! say, and one task that gives turns to those that wait.
//!
//! The deciding is not here. This holds the clock, the locks and the waiters. A request that finds room passes through with one lock
//! of its model's lane and no switch of tasks; only what waits concerns the driver.

pub(crate) mod driver;
pub(crate) mod engine_levels;
pub(crate) mod lane;
pub(crate) mod permit;
mod rules;
pub(crate) mod show;

pub use rules::rules;

use crate::state::Shared;
use arc_swap::ArcSwap;
use lane::Lane;
use parking_lot::Mutex;
use plimsoll_settings::Settings;
use plimsoll_traffic::admission::Rules;
use plimsoll_traffic::class::basis::Bounds;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use tokio::sync::Notify;

/// The lanes of all models.
pub struct Traffic {
    /// `None`: off.
    rules: ArcSwap<Option<Rules>>,
    lanes: ArcSwap<BTreeMap<String, Arc<Lane>>>,
    /// Held while the set of lanes changes.
    changing: Mutex<()>,
    /// Requests that wait, over all lanes.
    waiting: AtomicIsize,
    wake: Notify,
}

impl Traffic {
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Traffic {
            rules: ArcSwap::from_pointee(rules(settings)),
            lanes: ArcSwap::default(),
            changing: Mutex::new(()),
            waiting: AtomicIsize::new(0),
            wake: Notify::new(),
        }
    }

    /// The rules in force; `None` where traffic scheduling is off.
    #[must_use]
    pub fn rules(&self) -> Arc<Option<Rules>> {
        self.rules.load_full()
    }

    /// Takes new settings. What waits goes on waiting; when traffic scheduling was turned off, it goes at once.
    pub fn reconfigure(&self, shared: &Shared, settings: &Settings) {
        let rules = rules(settings);
        self.rules.store(Arc::new(rules.clone()));
        let _changing = self.changing.lock();
        for lane in self.lanes.load().values() {
            match &rules {
                Some(rules) => lane.reconfigure(shared.now(), rules.clone()),
                None => lane.let_all_go(self),
            }
        }
        self.wake.notify_one();
    }

    /// What a tenant may ask for and have; `None`: traffic scheduling is off.
    pub(crate) fn bounds(&self, tenant: &str) -> Option<Bounds> {
        let rules = self.rules.load();
        let rules = rules.as_ref().as_ref()?;
        Some(rules.tenant(tenant).bounds(rules.tenants.contains_key(tenant)))
    }

    /// The lane of a model that is served here; made when it is first asked for. `None`: off, or placement will say what is wrong with
    /// the name.
    pub(crate) fn lane(&self, shared: &Shared, model: Option<&str>) -> Option<Arc<Lane>> {
        let lanes = self.lanes.load();
        if self.rules.load().is_none() {
            return None;
        }
        let served = shared.served_models();
        let model = match model {
            Some(model) => model,
            None if served.len() == 1 => served.first()?,
            None => return None,
        };
        if let Some(lane) = lanes.get(model) {
            return Some(lane.clone());
        }
        // Names come from clients: only those of the fleet get a lane.
        served.contains(model).then(|| self.add(shared, model)).flatten()
    }

    fn add(&self, shared: &Shared, model: &str) -> Option<Arc<Lane>> {
        let _changing = self.changing.lock();
        let rules = self.rules.load_full();
        let rules = rules.as_ref().as_ref()?;
        let mut lanes = BTreeMap::clone(&self.lanes.load());
        // Those of models that have gone go too, unless somebody still waits there.
        let served = shared.served_models();
        lanes.retain(|name, lane| served.contains(name) || !lane.is_idle());
        let assumed = shared.settings.load().policy.assumed_output_tokens;
        let lane =
            lanes.entry(model.to_owned()).or_insert_with(|| Arc::new(Lane::new(shared, model, rules.clone(), assumed)));
        let lane = lane.clone();
        self.lanes.store(Arc::new(lanes));
        Some(lane)
    }

    pub(crate) fn lanes(&self) -> Arc<BTreeMap<String, Arc<Lane>>> {
        self.lanes.load_full()
    }

    /// Something ended or moved on: there may be room. Costs nothing while nobody waits.
    pub fn nudge(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.wake.notify_one();
        }
    }

    fn count_waiting(&self, by: isize) {
        self.waiting.fetch_add(by, Ordering::Relaxed);
    }
}
