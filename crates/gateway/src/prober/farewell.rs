//! An engine that has been removed may still work for requests. They are watched over until the last has ended.
//!
//! The scheduler has forgotten the engine, so nobody else would notice that it froze, and what waits there for its
//! first output would wait for as long as a request may take. It is told that the engine is out and goes elsewhere;
//! streams that have begun go on. When nothing is left the engine's series leave the metrics.

use crate::clock::millis;
use crate::fleet::EngineHandle;
use crate::state::Shared;
use plimsoll_load::HealthState;
use plimsoll_pools::loads::poll;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(super) async fn watch(shared: &Shared, engine: &Arc<EngineHandle>) {
    let mut failures = 0;
    // Attempts and aborts hold the engine; this task's caller holds it once, the caller's caller not at all.
    while Arc::strong_count(engine) > 1 && !shared.stopping() {
        let health = shared.settings.load().health.clone();
        let began = Instant::now();
        let out = *engine.watch_health().borrow() == HealthState::Ejected;
        if !out && let Some(known) = engine.capability.load_full() {
            let (began_at, timeout) = (shared.now(), millis(health.probe_timeout_ms));
            let polled = poll(&engine.endpoint(), &known, None, began_at, timeout).await;
            let lives = polled.is_ok_and(|poll| poll.sign_of_life) || engine.last_progress() >= began_at;
            failures = if lives { 0 } else { failures + 1 };
            if failures >= health.probe_failures.max(1) {
                tracing::warn!(engine = %engine.id, url = engine.endpoint().url(), "a removed engine answers no more");
                engine.set_health(HealthState::Ejected);
            }
        }
        let interval = millis(health.probe_interval_ms).saturating_sub(began.elapsed());
        tokio::time::sleep(interval.max(Duration::from_millis(20))).await;
    }
    shared.metrics.forget_engine(engine.id.0);
}
