//! What the fake has seen: the judge of most tests. Read with `GET /_ctl` or [`crate::FakeEngine::snapshot`].

use crate::Dialect;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counters since the start or the last reset, and the last generation request byte for byte.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    pub dialect: Dialect,
    /// Requests by path, control requests left out.
    pub requests: BTreeMap<String, u64>,
    /// Generation requests that were taken up (not refused by a status fault, a full queue or bad input).
    pub generations: u64,
    /// Generations whose answer was written to its end.
    pub finished: u64,
    /// Generations that a lost client ended, counted when this family notices.
    pub aborted_by_disconnect: u64,
    /// Generations that `/abort_request` ended.
    pub aborted_by_rid: u64,
    /// Clients that went away under a generation, counted at once.
    pub clients_lost: u64,
    /// Requests refused because the queue was full.
    pub queue_full: u64,
    /// Taken up and not over, waiting ones included.
    pub in_flight: u64,
    /// Of these, past the queue.
    pub running: u64,
    /// Largest `in_flight` seen.
    pub peak_in_flight: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections open now.
    pub open_connections: u64,
    /// Requests that came on a connection which had carried one before.
    pub reused: u64,
    /// Connections closed on purpose when a second request came.
    pub closed_on_reuse: u64,
    /// Bytes written to sockets.
    pub bytes_sent: u64,
    /// Events written in streams.
    pub events_sent: u64,
    /// The last rids that `/abort_request` named, oldest first, at most 256.
    pub abort_rids: Vec<String>,
    /// The last rids or request ids of generations, oldest first, at most 256.
    pub rids: Vec<String>,
    /// Path of the last generation request.
    pub last_path: String,
    /// Headers of the last generation request in order, names as sent.
    pub last_headers: Vec<(String, String)>,
    /// Body of the last generation request, exactly, in base64.
    pub last_body_base64: String,
}

impl Snapshot {
    /// Body of the last generation request; empty when the base64 is broken.
    #[must_use]
    pub fn last_body(&self) -> Vec<u8> {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.decode(&self.last_body_base64).unwrap_or_default()
    }

    /// First header of the last generation request with this name, whatever its case.
    #[must_use]
    pub fn last_header(&self, name: &str) -> Option<&str> {
        self.last_headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Requests on this path.
    #[must_use]
    pub fn requests_on(&self, path: &str) -> u64 {
        self.requests.get(path).copied().unwrap_or(0)
    }
}
