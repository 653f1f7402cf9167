//! Who an engine is, and what of it the scheduler must know.

use crate::fleet::EngineHandle;
use crate::state::Shared;
use plimsoll_core::{EngineKind, LegRole};
use plimsoll_load::{InstanceSpec, RouteSet};
use plimsoll_pools::capability::Capability;
use plimsoll_pools::probe::probe;
use plimsoll_settings::Engine;
use std::sync::Arc;
use std::time::Duration;

/// Several questions are asked; together they may take this many probe time-outs, one of them about one.
const TIMEOUTS: u32 = 6;

/// Asks, and tells the scheduler. What a busy engine does not say stays as it was known.
pub(super) async fn identify(
    shared: &Shared,
    engine: &EngineHandle,
    timeout: Duration,
) -> Result<Arc<Capability>, String> {
    let (endpoint, hint) = (engine.endpoint(), engine.settings().kind);
    let found = probe(&endpoint, hint, timeout * TIMEOUTS)
        .await
        .map_err(|error| format!("cannot tell what engine this is: {error}"))?;
    let old = engine.capability.load_full();
    let found = match &old {
        Some(old) => found.after(old),
        None => found,
    };
    let models = spec(&engine.settings(), &found).models;
    if models.is_empty() {
        let why = found.degraded.iter().find(|sentence| sentence.contains("401") || sentence.contains("403"));
        return Err(match why {
            Some(why) => format!("the engine wants a key: set `engines[].api_key` (`serve --api-key`); {why}"),
            None => "the engine names no model; set `engines[].models` for it".to_owned(),
        });
    }
    let same = |old: &Capability| {
        old.kind == found.kind && old.version == found.version && old.model_names() == found.model_names()
    };
    if !old.as_deref().is_some_and(same) {
        tracing::info!(
            engine = %engine.id, url = endpoint.url(), kind = %found.kind,
            version = found.version.as_deref().unwrap_or("unknown"), models = models.join(","), "engine identified"
        );
        for sentence in &found.degraded {
            tracing::debug!(engine = %engine.id, "{sentence}");
        }
    }
    let capability = Arc::new(found);
    engine.capability.store(Some(capability.clone()));
    // Read inside the critical section: a reload may change the settings at the same time.
    shared.with_scheduler(|s| s.update_instance(engine.id, current_spec(engine)));
    shared.refresh_models();
    Ok(capability)
}

/// What is known of an engine now.
#[must_use]
pub fn current_spec(engine: &EngineHandle) -> InstanceSpec {
    let settings = engine.settings();
    match engine.capability.load().as_deref() {
        Some(found) => spec(&settings, found),
        None => InstanceSpec {
            models: settings.models.clone(),
            kind: settings.kind.unwrap_or(EngineKind::Openai),
            capacity_kv_tokens: settings.capacity_kv_tokens,
            // With its models named it can be tried as a last resort before it has answered a probe.
            ready: !settings.models.is_empty(),
            ..InstanceSpec::default()
        },
    }
}

fn spec(settings: &Engine, found: &Capability) -> InstanceSpec {
    // Engines tell what one rank can hold.
    let told = found.kv_capacity_tokens.map(|tokens| tokens.saturating_mul(u64::from(found.dp_ranks.max(1))));
    let listed = |paths: &Vec<String>| RouteSet::of_paths(paths.iter().map(String::as_str));
    let routes = found.routes.as_ref().map_or(RouteSet::ALL, listed);
    InstanceSpec {
        models: if settings.models.is_empty() { found.model_names() } else { settings.models.clone() },
        kind: found.kind,
        ranks: found.dp_ranks,
        capacity_kv_tokens: settings.capacity_kv_tokens.or(told),
        context_tokens: found.context_tokens,
        role: found.pd_role.unwrap_or(LegRole::Unified),
        routes,
        ready: true,
    }
}
