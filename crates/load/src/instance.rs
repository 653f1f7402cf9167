//! One instance as the scheduler holds it. A choice reads [`crate::glance`] of it.

use crate::ask::{Charge, InstanceSpec};
use crate::gate::Gate;
use crate::health::{Health, HealthState};
use crate::latency::{Coefficients, LatencyModel};
use crate::ledger::Counters;
use crate::prefill_rate::PrefillRate;
use crate::reconcile::Reported;
use plimsoll_core::{InstanceId, LegRole, Nanos};
use smallvec::SmallVec;

/// One DP rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankState {
    pub own: Counters,
    pub reported: Reported,
    /// Prefill tokens of streams served since the instance was added, as charged.
    pub served_tokens: u64,
}

impl RankState {
    pub(crate) const EMPTY: RankState = RankState {
        own: Counters { requests: 0, uncached_prefill_tokens: 0, unseen_prefill_tokens: 0, reserved_kv_tokens: 0 },
        reported: Reported::NONE,
        served_tokens: 0,
    };
}

/// What one sequence can hold at most where the engine does not tell its context. No served model's is longer.
const UNKNOWN_CONTEXT_TOKENS: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub id: InstanceId,
    pub spec: InstanceSpec,
    pub draining: bool,
    pub health: Health,
    /// When it last answered 429 or 503, and until when others are preferred.
    pub refused_at: Nanos,
    pub refused_until: Nanos,
    /// No fewer than `spec.ranks` once in the roster; more where a rank that vanished keeps its counters until its entries are settled.
    pub ranks: SmallVec<[RankState; 1]>,
    rate: PrefillRate,
    /// Of streams that did not say what was cached, as if what they were charged were true.
    as_charged: PrefillRate,
    /// Inverse of what `rate` estimates; `None` until it does.
    pub prefill_s_per_token: Option<f64>,
    /// Boxed: a choice does not look into it.
    pub latency: Box<LatencyModel>,
}

impl Instance {
    pub(crate) fn new(id: InstanceId, spec: InstanceSpec, assumed: &Coefficients) -> Self {
        Instance {
            id,
            spec,
            draining: false,
            health: Health::new(),
            refused_at: Nanos::ZERO,
            refused_until: Nanos::ZERO,
            ranks: SmallVec::new(),
            rate: PrefillRate::default(),
            as_charged: PrefillRate::default(),
            prefill_s_per_token: None,
            latency: Box::new(LatencyModel::new(assumed)),
        }
    }

    /// Learns from an attempt whose prefill is known: it waited `elapsed` while `others_tokens` (as charged) and its own
    /// `uncached_tokens` of `charged_tokens` were prefilled on its rank.
    pub(crate) fn observe_prefill(
        &mut self,
        elapsed: Nanos,
        others_tokens: u64,
        charged_tokens: u64,
        uncached_tokens: u64,
    ) {
        self.rate.observe(elapsed, others_tokens, charged_tokens, uncached_tokens);
        self.prefill_s_per_token = self.rate.tokens_per_s().map(|rate| 1.0 / rate);
    }

    /// Learns from one whose engine did not say how much was cached.
    pub(crate) fn observe_unreported(&mut self, elapsed: Nanos, others_tokens: u64, charged_tokens: u64) {
        self.as_charged.observe(elapsed, others_tokens, charged_tokens, charged_tokens);
    }

    /// Tokens charged a second. It is the pool's to use, and nobody's own.
    pub(crate) fn charged_tokens_per_s(&self) -> Option<f64> {
        self.as_charged.tokens_per_s()
    }

    pub(crate) fn prefill_tokens_per_s(&self) -> Option<f64> {
        self.rate.tokens_per_s()
    }

    /// Share of the tokens charged that it really had to compute of late; `None` while nobody said.
    pub(crate) fn uncached_share(&self) -> Option<f64> {
        self.rate.uncached_share()
    }

    /// A charge as this instance can feel it. A client may ask for four billion tokens; a sequence ends at the context.
    pub(crate) fn limited(&self, charge: Charge) -> Charge {
        let charge = charge.bounded();
        let limit = charge.sequences.saturating_mul(self.sequence_limit());
        Charge { reserved_kv_tokens: charge.reserved_kv_tokens.min(limit), ..charge }
    }

    /// KV tokens that one sequence can hold at most.
    pub(crate) fn sequence_limit(&self) -> u64 {
        self.spec.context_tokens.filter(|&tokens| tokens > 0).unwrap_or(UNKNOWN_CONTEXT_TOKENS)
    }

    /// What it is and offers, whatever its health.
    pub(crate) fn gate(&self) -> Gate {
        Gate::offered(self.spec.role, self.spec.routes, self.spec.kind, self.in_service())
    }

    /// Ranks that may be chosen.
    pub(crate) fn rank_count(&self) -> usize {
        usize::from(self.spec.ranks.max(1))
    }

    /// Takes part in choices if its health allows.
    pub(crate) fn in_service(&self) -> bool {
        self.spec.ready && !self.draining
    }

    pub(crate) fn refusing(&self, now: Nanos) -> bool {
        now < self.refused_until
    }

    /// KV tokens a rank can hold, if anybody said.
    pub(crate) fn capacity_kv_tokens(&self, rank: &RankState) -> Option<u64> {
        rank.reported
            .capacity_kv_tokens()
            .or_else(|| self.spec.capacity_kv_tokens.map(|c| c / u64::from(self.spec.ranks.max(1))))
    }

    /// Why it takes no leg of a role, `None` when it does.
    pub(crate) fn role_obstacle(&self, asked: LegRole) -> Option<&'static str> {
        match self.spec.role {
            role if role == asked => None,
            LegRole::Unified => Some("takes whole requests only"),
            LegRole::Prefill => Some("takes prefill legs only"),
            LegRole::Decode => Some("takes decode legs only"),
        }
    }

    /// What keeps it from being chosen, `None` when nothing does.
    pub(crate) fn obstacle(&self, open: bool) -> Option<&'static str> {
        if self.draining {
            return Some("draining");
        }
        if !self.spec.ready {
            return Some("not ready");
        }
        match self.health.state() {
            HealthState::Unproven => Some("has not answered a probe yet"),
            HealthState::Ejected => Some("ejected"),
            HealthState::HalfOpen if !open => Some("half open, its trials are taken"),
            HealthState::HalfOpen | HealthState::Healthy => None,
        }
    }
}
