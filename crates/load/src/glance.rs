//! What a choice reads of one rank, in one small record.

use crate::config::HealthConfig;
use crate::gate::Gate;
use crate::instance::Instance;
use crate::reconcile::ForeignLoad;
use plimsoll_core::{Nanos, Rank, Target};

/// Made from an instance and never changed by itself. Counts are floats, ready to be reckoned with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Glance {
    pub target: Target,
    pub gate: Gate,
    /// Others are preferred until then.
    pub refused_until: Nanos,
    /// Own load, from the ledger.
    pub requests: f64,
    pub uncached_prefill_tokens: f64,
    pub reserved_kv_tokens: f64,
    /// That of others, before it is weighted with trust.
    pub foreign: ForeignLoad,
    /// Inverse of the observed prefill rate; `None` before there is one.
    pub prefill_s_per_token: Option<f64>,
    /// KV tokens that one sequence can hold at most.
    pub sequence_limit_tokens: f64,
    /// KV tokens the rank can hold; infinite while nobody said.
    pub kv_limit_tokens: f64,
}

impl Glance {
    /// `rank` is one of the instance's.
    pub(crate) fn of(instance: &Instance, rank: usize, health: &HealthConfig) -> Glance {
        let state = &instance.ranks[rank];
        Glance {
            target: Target { instance: instance.id, rank: Rank(rank as u16) },
            gate: instance.gate().standing(&instance.health, health),
            refused_until: instance.refused_until,
            requests: f64::from(state.own.requests),
            uncached_prefill_tokens: real(state.own.uncached_prefill_tokens),
            reserved_kv_tokens: real(state.own.reserved_kv_tokens),
            foreign: state.reported.load(),
            prefill_s_per_token: instance.prefill_s_per_token,
            sequence_limit_tokens: real(instance.sequence_limit()),
            kv_limit_tokens: instance.capacity_kv_tokens(state).map_or(f64::INFINITY, |tokens| tokens as f64),
        }
    }

    #[inline]
    pub(crate) fn refusing(&self, now: Nanos) -> bool {
        now < self.refused_until
    }
}

/// Sums of bounded charges stay far below 2^53, so nothing is lost, and the signed conversion is one instruction.
#[inline(always)]
pub(crate) const fn real(tokens: u64) -> f64 {
    tokens as i64 as f64
}
