//! Water levels of single engines, for operators: a pool's level is their mean, and does not say which of them is full.

use crate::metrics::EngineStage;
use crate::state::Shared;
use plimsoll_core::Nanos;
use plimsoll_traffic::level::instance_levels;
use std::collections::BTreeMap;

/// Sets the gauges as of now. Of an engine's ranks and models the fullest; nothing where it is not known, or the engine takes nothing.
pub(crate) fn render(shared: &Shared) {
    let gauge = &shared.metrics.engine_level;
    gauge.clear();
    let target_wait = Nanos::from_millis(shared.settings.load().traffic.target_wait_ms);
    let (now, mut loads, mut fullest) = (shared.now(), Vec::new(), BTreeMap::new());
    for model in shared.traffic.lanes().keys() {
        shared.with_scheduler(|s| s.pool_loads(model, now, &mut loads));
        for one in loads.iter().filter(|one| !one.load.out) {
            let levels = instance_levels(&one.load, target_wait);
            for (stage, level) in [("prefill", levels.prefill), ("decode", levels.decode)] {
                let Some(level) = level else { continue };
                let known: &mut f64 = fullest.entry((one.target.instance.0, stage)).or_default();
                *known = known.max(level);
            }
        }
    }
    for ((engine, stage), level) in fullest {
        gauge.get_or_create(&EngineStage { engine, stage }).set(level);
    }
}
