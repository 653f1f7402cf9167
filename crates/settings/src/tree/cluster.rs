//! Several gateways before the same engines.

use super::Secret;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Several gateways before the same engines: each takes its part of the quotas. Off unless `cluster.nats` names a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    /// NATS servers, `nats://host:4222` or `tls://host:4222`, any of which will do. JetStream is not needed.
    pub nats: Vec<String>,
    /// Gateways of the same name share quotas; fleets of different names on one NATS do not hear each other. Letters, digits, `-` and `_`.
    pub fleet: String,
    /// Token that NATS wants.
    pub token: Option<Secret>,
    /// User that NATS wants, with `cluster.password`. May publish and subscribe to `plimsoll.FLEET.demand`.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
    /// PEM file of the authority that signed the certificates of NATS; the system's when left out.
    pub ca_file: Option<PathBuf>,
    /// A gateway that is not heard for so long, in milliseconds, is given up and its part goes to the others. They report once a second.
    pub lease_ms: u64,
    /// How many gateways there are taken to be until NATS has told: the first part of each is one among so many.
    pub assumed_gateways: u32,
}

impl Default for Cluster {
    fn default() -> Self {
        Cluster {
            nats: Vec::new(),
            fleet: "default".into(),
            token: None,
            user: None,
            password: None,
            ca_file: None,
            lease_ms: 5_000,
            assumed_gateways: 2,
        }
    }
}
