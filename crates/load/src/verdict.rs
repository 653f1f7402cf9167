//! What comes out of the scheduler: choices with their numbers, and views for operators.

use crate::ask::Ticket;
use crate::health::{HealthChange, HealthState};
use crate::place::Reason;
use crate::replay::Basis;
use plimsoll_core::{EngineKind, InstanceId, Nanos, Rank, Target};
use serde::{Deserialize, Serialize};

/// A choice that is already charged to the ledger. Settle its ticket exactly once.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    pub target: Target,
    pub ticket: Ticket,
    pub reason: Reason,
    /// Expected time to first token on the target, this request's own prefill included.
    pub expected_wait: Option<Nanos>,
    /// Prompt tokens that the target was believed to hold, and that it was not charged for.
    pub hit_tokens: u64,
    /// The best candidates (never more than `record_candidates`), best first; the target is always among them
    /// unless none are recorded.
    pub candidates: Vec<Scored>,
    /// What the choice followed from besides its candidates; `None` where none are recorded, and for a rule that does not say.
    pub basis: Option<Basis>,
    /// How many candidates there were.
    pub considered: usize,
    /// Every instance of the model was out, so those that are out were candidates.
    pub panic: bool,
    /// This is a trial request of an instance that is half open.
    pub half_open: bool,
    /// When its prefill tokens stop to count unless its end comes first; `None` for a stream, whose first token tells.
    pub prefill_until: Option<Nanos>,
}

/// One candidate as it stood at the moment of the choice, before the charge; own plus trusted foreign load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    pub target: Target,
    /// Its place in the order in which the rule saw the candidates.
    pub at: u32,
    pub expected_wait_s: f64,
    /// What was compared: the wait, and with `least_delay` the delay put on others.
    pub score_s: f64,
    pub requests: f64,
    pub uncached_prefill_tokens: f64,
    /// What a token's prefill was taken to need.
    pub prefill_s_per_token: f64,
    pub reserved_kv_tokens: u64,
    /// Of this request's prompt.
    pub hit_tokens: u64,
    /// The part of `hit_tokens` that lies in host memory.
    pub host_tokens: u64,
}

/// Why no target could be named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    #[error("no engine serves this model; list the models to see those that are served")]
    UnknownModel,
    #[error("several models are served; name one")]
    ModelRequired,
    #[error("no engine of this model can take a request now; repeat later")]
    NoCandidate {
        /// Each instance that was looked at, and what keeps it out.
        reasons: Vec<(InstanceId, &'static str)>,
    },
    #[error("this attempt is already charged; settle it or use a new attempt number")]
    AlreadyCharged,
}

/// What a settlement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Released {
        health: Option<HealthChange>,
    },
    /// The instance was removed in the meantime; the entry is gone now.
    InstanceGone,
    /// Settled before, or never charged. Nothing changed.
    Already,
}

/// One rank's load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RankLoad {
    pub rank: Rank,
    /// From the ledger: what this gateway has in flight there.
    pub requests: u32,
    pub uncached_prefill_tokens: u64,
    pub reserved_kv_tokens: u64,
    /// What the engine reported beyond the ledger, weighted with trust; `None` where nothing trusted is known.
    pub foreign_requests: Option<f64>,
    pub foreign_prefill_tokens: Option<f64>,
    pub foreign_kv_tokens: Option<f64>,
    pub capacity_kv_tokens: Option<u64>,
    /// Age of the last report.
    #[serde(rename = "report_age_ns")]
    pub report_age: Option<Nanos>,
}

/// One instance for people and metrics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InstanceView {
    pub id: InstanceId,
    pub kind: EngineKind,
    pub models: Vec<String>,
    pub ready: bool,
    pub health: HealthState,
    pub draining: bool,
    /// It answered 429 or 503 a moment ago and others are preferred.
    pub refusing: bool,
    pub ranks: Vec<RankLoad>,
    /// Observed prefill rate of one rank in tokens per second; `None` until enough first tokens were seen.
    pub prefill_tokens_per_s: Option<f64>,
}

/// Can a model be served now?
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelStatus {
    /// At least one instance takes requests for it.
    pub serving: bool,
    /// Instances that do not, and why. Empty with `serving` false: nobody knows the model.
    pub reasons: Vec<(InstanceId, &'static str)>,
}

/// Sums over the ledger. All zero at rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    pub requests: u64,
    pub uncached_prefill_tokens: u64,
    pub reserved_kv_tokens: u64,
    /// Tickets not yet settled, orphans included.
    pub entries: u64,
    /// Tickets whose instance was removed.
    pub orphans: u64,
}
