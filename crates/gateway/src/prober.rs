//! One task per engine: who are you, are you alive, how loaded are you?
//!
//! A poll of the engine's cheap endpoint is probe and load report in one. It must be answered within
//! `health.probe_timeout_ms`; a failed one is repeated at once, so that a frozen engine is out after two time-outs.
//! It does not count as failed if a stream of that engine moved meanwhile: an engine deep in a long prefill, or with a
//! busy HTTP side, is not a frozen one.

use crate::clock::millis;
use crate::fleet::EngineHandle;
use crate::state::Shared;
use plimsoll_core::{EngineKind, Nanos};
use plimsoll_load::{HealthState, InstanceSpec};
use plimsoll_pools::capability::Capability;
use plimsoll_pools::loads::{PollState, poll};
use plimsoll_pools::probe::probe;
use std::sync::Arc;
use std::time::Duration;

/// An engine is asked who it is again this often: it may have been upgraded behind its address.
const IDENTIFY_EVERY: Duration = Duration::from_secs(30);

/// Probing asks several questions; each has the probe time-out, all together this many of them.
const IDENTIFY_TIMEOUTS: u32 = 6;

/// Runs until the engine is removed.
pub async fn run(shared: Arc<Shared>, engine: Arc<EngineHandle>) {
    let mut stopped = engine.stopped();
    tokio::select! {
        _ = stopped.wait_for(|stop| *stop) => {}
        () = watch(&shared, &engine) => {}
    }
}

async fn watch(shared: &Arc<Shared>, engine: &Arc<EngineHandle>) {
    let mut state: Option<PollState> = None;
    let mut identified: Option<tokio::time::Instant> = None;
    loop {
        let health = shared.settings.load().health.clone();
        let began = tokio::time::Instant::now();
        let began_at = shared.now();
        let timeout = millis(health.probe_timeout_ms);
        let known = engine.capability.load_full();
        let result = match known {
            Some(capability) if identified.is_some_and(|at| at.elapsed() < IDENTIFY_EVERY) => {
                poll_once(shared, engine, &capability, &mut state, timeout).await
            }
            _ => match identify(shared, engine, timeout).await {
                Ok(capability) => {
                    identified = Some(tokio::time::Instant::now());
                    poll_once(shared, engine, &capability, &mut state, timeout).await
                }
                Err(error) => Err(error),
            },
        };
        engine.endpoint.reap_idle();
        let failed = result.is_err();
        match result {
            Ok(()) => alive(shared, engine),
            Err(error) => {
                engine.last_error.store(Some(Arc::new(error)));
                if engine.last_progress() < began_at {
                    if let Some(change) = shared.with_scheduler(|s| s.probe_failed(engine.id, shared.now())) {
                        shared.health_changed(change);
                    }
                } else {
                    shared.with_scheduler(|s| s.progress(engine.id, shared.now()));
                }
            }
        }
        let interval = millis(health.probe_interval_ms);
        let out = *engine.watch_health().borrow() == HealthState::Ejected;
        // A first failure is looked at again at once; an engine that is out for good is not hammered.
        let pause = if failed && !out { interval / 10 } else { interval.saturating_sub(began.elapsed()) };
        tokio::time::sleep(pause.max(Duration::from_millis(20))).await;
        if out && !failed {
            // It answers again: it may be another program by now.
            identified = None;
        }
    }
}

fn alive(shared: &Shared, engine: &EngineHandle) {
    engine.last_error.store(None);
    if let Some(change) = shared.with_scheduler(|s| s.probe_ok(engine.id, shared.now())) {
        shared.health_changed(change);
    }
}

async fn identify(shared: &Shared, engine: &EngineHandle, timeout: Duration) -> Result<Arc<Capability>, String> {
    let found = probe(&engine.endpoint, engine.settings.kind, timeout * IDENTIFY_TIMEOUTS)
        .await
        .map_err(|error| format!("cannot tell what engine this is: {error}"))?;
    let spec = spec(engine, &found);
    if spec.models.is_empty() {
        return Err("the engine names no model; set `engines.models` for it".into());
    }
    let news =
        engine.capability.load().as_ref().is_none_or(|old| old.kind != found.kind || old.version != found.version);
    if news {
        tracing::info!(
            engine = %engine.id, url = engine.endpoint.url(), kind = %found.kind,
            version = found.version.as_deref().unwrap_or("unknown"), models = spec.models.join(","), "engine identified"
        );
        for sentence in &found.degraded {
            tracing::info!(engine = %engine.id, "{sentence}");
        }
    }
    let capability = Arc::new(found);
    engine.capability.store(Some(capability.clone()));
    shared.with_scheduler(|s| s.update_instance(engine.id, spec));
    shared.refresh_models();
    Ok(capability)
}

fn spec(engine: &EngineHandle, found: &Capability) -> InstanceSpec {
    let configured = &engine.settings.models;
    InstanceSpec {
        models: if configured.is_empty() {
            found.models.iter().map(|m| m.id.clone()).collect()
        } else {
            configured.clone()
        },
        kind: found.kind,
        ranks: found.dp_ranks,
        capacity_kv_tokens: engine.settings.capacity_kv_tokens.or(found.kv_capacity_tokens),
        ready: true,
    }
}

/// What is known of an engine before it has been asked.
#[must_use]
pub fn first_spec(settings: &plimsoll_settings::Engine) -> InstanceSpec {
    InstanceSpec {
        models: settings.models.clone(),
        kind: settings.kind.unwrap_or(EngineKind::Openai),
        ranks: 1,
        capacity_kv_tokens: settings.capacity_kv_tokens,
        // With its models named it can be tried as a last resort before it has answered a probe.
        ready: !settings.models.is_empty(),
    }
}

async fn poll_once(
    shared: &Shared,
    engine: &EngineHandle,
    capability: &Capability,
    state: &mut Option<PollState>,
    timeout: Duration,
) -> Result<(), String> {
    let polled = poll(&engine.endpoint, capability, state.as_ref(), shared.now(), timeout)
        .await
        .map_err(|error| format!("no answer to a load poll: {error}"))?;
    let now: Nanos = shared.now();
    shared.with_scheduler(|s| {
        for report in polled.reports {
            s.report(engine.id, report, now);
        }
    });
    *state = Some(polled.state);
    if polled.sign_of_life { Ok(()) } else { Err("the engine answers that it is not up".into()) }
}
