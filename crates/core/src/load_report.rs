//! What an engine says about its own load, normalised over engine families.

use crate::{Nanos, Rank};
use serde::Serialize;

/// One DP rank's report. Every field an engine does not give is `None`, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoadReport {
    pub rank: Rank,
    /// When the gateway received it, on the gateway's clock.
    pub received: Nanos,
    pub running_requests: Option<u64>,
    pub waiting_requests: Option<u64>,
    /// Uncached prompt tokens that still wait for prefill.
    pub waiting_uncached_tokens: Option<u64>,
    /// KV tokens held by running and cached-but-pinned requests.
    pub used_kv_tokens: Option<u64>,
    /// KV tokens the rank can hold.
    pub capacity_kv_tokens: Option<u64>,
    pub max_running_requests: Option<u64>,
}
