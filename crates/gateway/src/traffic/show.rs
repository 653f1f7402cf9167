//! What operators see: gauges, the admin API's report, and a line in the log while there is something to say.

use super::lane::Lane;
use crate::metrics::{ModelClass, ModelLabel, ModelStage};
use crate::state::Shared;
use plimsoll_traffic::admission::Snapshot;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often the log says how full the pools are, while that is worth a line.
const LOG_EVERY: Duration = Duration::from_secs(5);
/// From this level on it is, or when something waits.
const WORTH_A_LINE: f64 = 0.5;

/// Sets the gauges as of now.
pub(crate) fn render(shared: &Shared) {
    let metrics = &shared.metrics;
    metrics.traffic_level.clear();
    metrics.traffic_capacity.clear();
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    for lane in shared.traffic.lanes().values() {
        let snapshot = lane.snapshot(shared);
        let model = ModelLabel { model: lane.model.clone() };
        let stages =
            [("prefill", snapshot.smooth.prefill), ("decode", snapshot.smooth.decode), ("quota", snapshot.level)];
        for (stage, level) in stages.into_iter().filter_map(|(stage, level)| Some((stage, level?))) {
            metrics.traffic_level.get_or_create(&ModelStage { model: lane.model.clone(), stage }).set(level);
        }
        if let Some(capacity) = snapshot.capacity_tokens_per_s {
            metrics.traffic_capacity.get_or_create(&model).set(capacity);
        }
        metrics.traffic_in_flight_tokens.get_or_create(&model).set(whole(snapshot.totals.in_flight_tokens));
        for class in &snapshot.classes {
            let labels = ModelClass { model: lane.model.clone(), class: class.class.as_str() };
            metrics.traffic_share.get_or_create(&labels).set(class.share);
            metrics.traffic_queue_requests.get_or_create(&labels).set(whole(class.depth.requests));
            metrics.traffic_queue_tokens.get_or_create(&labels).set(whole(class.depth.tokens));
            let oldest_s = class.oldest_wait.map_or(0.0, plimsoll_core::Nanos::as_secs_f64);
            metrics.traffic_oldest_wait.get_or_create(&labels).set(oldest_s);
        }
    }
}

/// `GET /admin/traffic`.
pub(crate) fn report(shared: &Shared) -> Value {
    let pools: BTreeMap<String, Snapshot> =
        shared.traffic.lanes().iter().map(|(model, lane)| (model.clone(), lane.snapshot(shared))).collect();
    let mut report = json!({ "settings": shared.settings.load().traffic, "models": pools });
    if let Some(cluster) = shared.leases.report(shared) {
        report["cluster"] = cluster;
    }
    report
}

/// Says from time to time how full the pools are, while they are.
pub(crate) async fn log_forever(shared: Arc<Shared>) {
    let mut every = tokio::time::interval(LOG_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut full: BTreeMap<String, bool> = BTreeMap::new();
    loop {
        every.tick().await;
        for lane in shared.traffic.lanes().values() {
            let snapshot = lane.snapshot(&shared);
            let is_full = snapshot.depth.requests > 0 || snapshot.level.is_some_and(|level| level >= WORTH_A_LINE);
            // The line after the last one says that it is over.
            if is_full || full.insert(lane.model.clone(), is_full) == Some(true) {
                full.insert(lane.model.clone(), is_full);
                say(lane, &snapshot);
            }
        }
    }
}

fn say(lane: &Lane, snapshot: &Snapshot) {
    let level = snapshot.level.map_or_else(|| "unknown".to_owned(), |level| format!("{level:.2}"));
    let classes = snapshot.classes.iter().map(|class| {
        let oldest_s = class.oldest_wait.map_or(0.0, plimsoll_core::Nanos::as_secs_f64);
        let requests = class.depth.requests;
        format!("{} share {:.2}, {requests} wait, oldest {oldest_s:.1} s", class.class, class.share)
    });
    let classes: Vec<String> = classes.collect();
    tracing::info!(model = lane.model, level, classes = classes.join("; "), "traffic");
}
