//! Moving a running request to another engine while its tokens keep flowing.
//!
//! Three phases, as the article describes them under cross-bucket hot migration: *prepare* (the target reserves, the
//! source ships the blocks it has while it goes on emitting), *freeze* (the source stops between two steps and ships what
//! is left, which is little however long the context), *commit* (the request goes on at the target with the next token).
//! Whoever drives it sends the verbs over HTTP (`server/migrations.rs`) and carries the client's stream across; blocks go
//! from engine to engine.
//!
//! - [`protocol`]: who may emit, as two pure state machines with the diagram.
//! - `outgoing`, `incoming`: one migration at its source and at its target.
//! - `desk`: all migrations of an engine, on the step thread: verbs in, reports out, expiry.
//! - `notes`: what the two engines say to each other besides pages.
//! - `carrier`: the connections.

pub(crate) mod carrier;
pub(crate) mod desk;
mod incoming;
pub(crate) mod notes;
mod outgoing;
pub(crate) mod protocol;
pub(crate) mod report;

use crate::transfer::Secret;
use std::net::SocketAddr;
use std::time::Duration;

/// Settings of an engine that gives running requests to others and takes theirs.
#[derive(Clone, Debug)]
pub struct MigrationConfig {
    /// Where sources connect; port 0 takes a free one, `reserve` tells which. `None`: no migrations.
    pub listen: Option<SocketAddr>,
    /// What both engines must know. `None`: nothing.
    pub secret: Option<Secret>,
    /// Longest silence of the other engine.
    pub deadline: Duration,
    /// Buffers of about a megabyte for pages on their way, all migrations together.
    pub buffers: usize,
}

impl Default for MigrationConfig {
    fn default() -> Self {
        MigrationConfig { listen: None, secret: None, deadline: Duration::from_secs(5), buffers: 16 }
    }
}
