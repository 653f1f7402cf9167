//! What the operator can set about choosing and about health. The settings tree holds the documented defaults of the
//! program; those here are the same values, for tests and the simulator.

use plimsoll_core::Nanos;
use serde::{Deserialize, Serialize};

/// Placement policy by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// Least delay to all: the request's own expected wait, and what it puts on those that run already.
    #[default]
    LeastDelay,
    /// Least expected wait of the request itself.
    LeastWait,
    /// One after the other, per model.
    RoundRobin,
    /// The better of two drawn at random.
    PowerOfTwo,
}

/// When an instance is taken out and let back in. Every count is at least 1 in effect: 0 is read as 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// Failed probes in a row, with no stream moving between, that eject.
    pub probe_failures: u32,
    /// Failed or stalled requests in a row that eject.
    pub request_failures: u32,
    /// Failed connects in a row, with no sign of life between, that eject.
    pub connect_failures: u32,
    /// Trial requests in flight at once while half open, and while ejected if all are.
    pub half_open_requests: u32,
}

impl Default for HealthConfig {
    fn default() -> Self {
        HealthConfig { probe_failures: 2, request_failures: 5, connect_failures: 2, half_open_requests: 1 }
    }
}

/// All settings of a [`crate::Scheduler`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulerConfig {
    pub policy: PolicyKind,
    /// Seed of every draw: the same seed and the same calls give the same choices.
    pub seed: u64,
    /// Candidates within this fraction of the best score (plus 1 ms) are tied and drawn from.
    pub tie_fraction: f64,
    /// What a second of delay put on another request counts, against one of the request's own. 0 is selfish.
    pub others_weight: f64,
    /// How much more a prefill counts for each prompt of its size that is in front of it, where as much is in front of ranks in the mean; at most
    /// [`crate::place::price::MOST_PRESSURE`] times more in all.
    pub pressure_weight: f64,
    /// Prefill rate of an instance when neither it nor a peer has been observed, in tokens per second.
    pub assumed_prefill_tokens_per_s: f64,
    /// How fast cached KV is loaded from host memory, in tokens per second.
    pub assumed_kv_load_tokens_per_s: f64,
    /// Candidates kept in [`crate::Placed::candidates`], best first.
    pub record_candidates: usize,
    /// Age at which a load report is no longer believed at all; trust falls linearly until then.
    pub report_stale: Nanos,
    pub health: HealthConfig,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        SchedulerConfig {
            policy: PolicyKind::default(),
            seed: 0,
            tie_fraction: 0.05,
            others_weight: 0.05,
            pressure_weight: 2.0,
            assumed_prefill_tokens_per_s: 8_000.0,
            assumed_kv_load_tokens_per_s: 100_000.0,
            record_candidates: 8,
            report_stale: Nanos::from_secs(3),
            health: HealthConfig::default(),
        }
    }
}
