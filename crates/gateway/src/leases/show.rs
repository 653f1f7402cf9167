//! What operators see of the other gateways.

use super::{LeaseBoard, On};
use crate::metrics::{FleetLabel, ModelClass};
use crate::state::Shared;
use plimsoll_core::{Class, Nanos};
use plimsoll_traffic::lease::Standing;
use serde_json::{Value, json};
use std::time::Duration;

impl LeaseBoard {
    /// Sets the gauges as of now.
    pub(crate) fn render(&self, shared: &Shared) {
        let Some(on) = &self.on else { return };
        let metrics = &shared.metrics;
        let fleet = FleetLabel { fleet: on.fleet.clone() };
        let (standing, gateways) = {
            let state = on.state.lock();
            (state.leases.standing(shared.now()), state.leases.gateways())
        };
        let contact = matches!(standing, Standing::Held | Standing::Joining);
        metrics.cluster_contact.get_or_create(&fleet).set(i64::from(contact));
        metrics.cluster_gateways.get_or_create(&fleet).set(i64::try_from(gateways).unwrap_or(i64::MAX));
        metrics.traffic_lease.clear();
        for lane in shared.traffic.lanes().values() {
            let Some(lease) = self.lease(shared, &lane.model) else { continue };
            for class in Class::ALL {
                let labels = ModelClass { model: lane.model.clone(), class: class.as_str() };
                metrics.traffic_lease.get_or_create(&labels).set(lease.share[class as usize]);
            }
        }
    }

    /// For `GET /admin/traffic`; nothing where it is off.
    pub(crate) fn report(&self, shared: &Shared) -> Option<Value> {
        let on = self.on.as_ref()?;
        let now = shared.now();
        let state = on.state.lock();
        let peers: Vec<Value> = state
            .leases
            .peers(now)
            .map(|(gateway, age)| json!({ "gateway": gateway, "heard_ms_ago": age.as_millis_f64() as u64 }))
            .collect();
        let standing = state.leases.standing(now);
        let state_word = match standing {
            Standing::Unknown => "unknown",
            Standing::Joining => "joining",
            Standing::Held => "held",
            Standing::Kept { .. } => "kept",
        };
        Some(json!({
            "fleet": on.fleet,
            "gateway": on.own,
            "state": state_word,
            "without_contact_since": since(standing, now),
            "gateways": state.leases.gateways(),
            "peers": peers,
            "trouble": state.trouble,
        }))
    }

    /// For `/readyz`: what is not as it should be. No reason not to be ready.
    pub(crate) fn degraded(&self, shared: &Shared) -> Option<String> {
        let on: &On = self.on.as_ref()?;
        let now = shared.now();
        let standing = on.state.lock().leases.standing(now);
        match standing {
            Standing::Held | Standing::Joining => None,
            Standing::Unknown => {
                Some("quota share assumed: there was no contact with the other gateways yet".to_owned())
            }
            Standing::Kept { .. } => {
                let since = since(standing, now).unwrap_or_default();
                Some(format!("quota share kept without contact since {since}"))
            }
        }
    }
}

/// The moment, in UTC, at which contact was proved last.
fn since(standing: Standing, now: Nanos) -> Option<String> {
    let Standing::Kept { since } = standing else { return None };
    let age = Duration::from_nanos(now.since(since).0);
    let at = jiff::Timestamp::now().checked_sub(age).ok()?;
    Some(at.round(jiff::Unit::Second).ok()?.to_string())
}
