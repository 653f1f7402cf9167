//! Adding, changing and removing engines while everything runs.
//!
//! An engine is its URL: a new key or capacity for the same URL changes the entry, and the engine keeps its id, its
//! ledger and its health. A reload is planned first, with everything that can fail, and then carried out.

use crate::clock::millis;
use crate::fleet::{EngineHandle, Origin};
use crate::prober;
use crate::state::Shared;
use plimsoll_core::InstanceId;
use plimsoll_pools::http::{Endpoint, EndpointError, EndpointOptions};
use plimsoll_settings::{Engine, Settings, Upstream};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Adds an engine and starts its prober. It serves once it has answered.
///
/// # Errors
/// A URL or certificate file that cannot be used.
pub fn add(shared: &Arc<Shared>, settings: Engine, origin: Origin) -> Result<InstanceId, EndpointError> {
    let endpoint = endpoint(&settings, &shared.settings.load().upstream)?;
    Ok(insert(shared, settings, origin, endpoint))
}

fn insert(shared: &Arc<Shared>, settings: Engine, origin: Origin, endpoint: Endpoint) -> InstanceId {
    let id = shared.fleet.next_id();
    let engine = Arc::new(EngineHandle::new(id, settings, origin, endpoint));
    // What the scheduler can choose must be in the fleet.
    shared.fleet.insert(&engine);
    shared.with_scheduler(|s| s.add_instance(id, prober::current_spec(&engine)));
    shared.refresh_models();
    tokio::spawn(prober::run(shared.clone(), engine));
    id
}

/// Takes an engine out for good. Its running requests go on; new ones do not reach it. False: not known.
pub fn remove(shared: &Arc<Shared>, id: InstanceId) -> bool {
    let running = shared.with_scheduler(|s| s.remove_instance(id));
    let Some(engine) = shared.fleet.remove(id) else { return false };
    engine.stop();
    shared.refresh_models();
    tracing::info!(engine = %id, url = engine.endpoint().url(), running, "engine removed");
    true
}

/// What a reload does to the engines. Nothing in it can fail any more.
pub struct Plan {
    add: Vec<(Engine, Endpoint)>,
    change: Vec<(Arc<EngineHandle>, Engine, Endpoint)>,
    remove: Vec<InstanceId>,
}

/// Finds out how to make the config's engines those of `wanted`: new URLs are added, missing ones removed, and where the
/// entry or `upstream` has changed it is replaced. Engines added through the admin API stay.
///
/// # Errors
/// The first engine that cannot be used, with its URL.
pub fn plan(shared: &Shared, wanted: &Settings) -> Result<Plan, (String, EndpointError)> {
    let build = |engine: &Engine| endpoint(engine, &wanted.upstream).map_err(|error| (engine.url.clone(), error));
    let upstream_changed = shared.settings.load().upstream != wanted.upstream;
    let mut entries: BTreeMap<&str, &Engine> = wanted.engines.iter().map(|e| (same_url(&e.url), e)).collect();
    let mut plan = Plan { add: Vec::new(), change: Vec::new(), remove: Vec::new() };
    for engine in shared.fleet.all().values() {
        let settings = engine.settings();
        let entry = match (entries.remove(same_url(&settings.url)), engine.origin) {
            (Some(entry), _) => entry,
            (None, Origin::Admin) => &settings,
            (None, Origin::Config) => {
                plan.remove.push(engine.id);
                continue;
            }
        };
        // A certificate file may have new content under its old name.
        if upstream_changed || *entry != settings || entry.ca_file.is_some() {
            plan.change.push((engine.clone(), entry.clone(), build(entry)?));
        }
    }
    for entry in entries.into_values() {
        plan.add.push((entry.clone(), build(entry)?));
    }
    Ok(plan)
}

/// Carries a plan out.
pub fn carry_out(shared: &Arc<Shared>, plan: Plan) {
    for (settings, endpoint) in plan.add {
        insert(shared, settings, Origin::Config, endpoint);
    }
    for (engine, settings, endpoint) in plan.change {
        engine.swap_reach(settings, endpoint);
        shared.with_scheduler(|s| s.update_instance(engine.id, prober::current_spec(&engine)));
        tracing::info!(engine = %engine.id, url = engine.endpoint().url(), "engine settings changed");
    }
    for id in plan.remove {
        remove(shared, id);
    }
    shared.refresh_models();
}

fn same_url(url: &str) -> &str {
    url.trim_end_matches('/')
}

fn endpoint(engine: &Engine, upstream: &Upstream) -> Result<Endpoint, EndpointError> {
    let options = EndpointOptions {
        connect_timeout: millis(upstream.connect_timeout_ms),
        idle_timeout: millis(upstream.idle_timeout_ms),
        max_idle: upstream.max_idle_per_engine,
        header_bytes: upstream.header_bytes,
        api_key: engine.api_key.as_ref().map(|key| key.0.clone()),
        admin_api_key: engine.admin_api_key.as_ref().map(|key| key.0.clone()),
        ca_file: engine.ca_file.clone(),
    };
    Endpoint::new(&engine.url, options)
}
