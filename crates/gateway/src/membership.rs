//! Adding and removing engines while everything runs.

use crate::clock::millis;
use crate::fleet::{EngineHandle, Origin};
use crate::prober;
use crate::state::Shared;
use plimsoll_core::InstanceId;
use plimsoll_pools::http::{Endpoint, EndpointError, EndpointOptions};
use plimsoll_settings::{Engine, Upstream};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Adds an engine and starts its prober. It serves once it has answered.
///
/// # Errors
/// A URL or certificate file that cannot be used.
pub fn add(shared: &Arc<Shared>, settings: Engine, origin: Origin) -> Result<InstanceId, EndpointError> {
    let options = endpoint_options(&settings, &shared.settings.load().upstream);
    let endpoint = Endpoint::new(&settings.url, options)?;
    let id = shared.fleet.next_id();
    shared.with_scheduler(|s| s.add_instance(id, prober::first_spec(&settings)));
    let engine = Arc::new(EngineHandle::new(id, settings, origin, endpoint));
    shared.fleet.insert(&engine);
    shared.refresh_models();
    tokio::spawn(prober::run(shared.clone(), engine));
    Ok(id)
}

/// Takes an engine out for good. Its running streams go on; new requests do not reach it. False: not known.
pub fn remove(shared: &Arc<Shared>, id: InstanceId) -> bool {
    let Some(engine) = shared.fleet.remove(id) else { return false };
    engine.stop();
    let running = shared.with_scheduler(|s| s.remove_instance(id));
    shared.refresh_models();
    tracing::info!(engine = %id, url = engine.endpoint.url(), running, "engine removed");
    true
}

/// Makes the config's engines be those of `wanted`: new URLs are added, missing ones removed, changed ones replaced.
/// Engines added through the admin API stay.
///
/// # Errors
/// The first engine that cannot be used; those before it are in.
pub fn reconcile(shared: &Arc<Shared>, wanted: &[Engine]) -> Result<(), EndpointError> {
    let present: BTreeMap<String, Arc<EngineHandle>> = shared
        .fleet
        .all()
        .values()
        .filter(|e| e.origin == Origin::Config)
        .map(|e| (e.settings.url.clone(), e.clone()))
        .collect();
    for engine in present.values() {
        if !wanted.contains(&engine.settings) {
            remove(shared, engine.id);
        }
    }
    for engine in wanted {
        if present.get(&engine.url).is_none_or(|have| have.settings != *engine) {
            add(shared, engine.clone(), Origin::Config)?;
        }
    }
    Ok(())
}

fn endpoint_options(engine: &Engine, upstream: &Upstream) -> EndpointOptions {
    EndpointOptions {
        connect_timeout: millis(upstream.connect_timeout_ms),
        idle_timeout: millis(upstream.idle_timeout_ms),
        max_idle: upstream.max_idle_per_engine,
        header_bytes: upstream.header_bytes,
        api_key: engine.api_key.as_ref().map(|key| key.0.clone()),
        admin_api_key: engine.admin_api_key.as_ref().map(|key| key.0.clone()),
        ca_file: engine.ca_file.clone(),
    }
}
