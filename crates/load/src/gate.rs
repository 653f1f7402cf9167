//! Whether an instance is meant at all, as one word: a choice asks it of a thousand ranks, and five comparisons in as many
//! places of memory would cost more than all of a candidate's arithmetic.

use crate::config::HealthConfig;
use crate::health::{Health, HealthState};
use crate::routes::RouteSet;
use plimsoll_core::{EngineKind, LegRole};

/// What an instance is and offers. [`RouteSet`] lies in the low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate(u16);

/// What an ask wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Bits that decide.
    looked_at: u16,
    /// What they have to be.
    must_be: u16,
}

/// Which instances a walk looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// In without panic: [`Health::open`].
    Open,
    /// In panic: [`Health::takes_last_resort`].
    Out,
    Unproven,
    /// Whatever its health.
    Any,
}

const IN_SERVICE: u16 = 1 << 7;

impl Gate {
    pub(crate) fn offered(role: LegRole, routes: RouteSet, kind: EngineKind, in_service: bool) -> Gate {
        Gate(role_bit(role) | routes.bits() as u16 | kind_bit(kind) | if in_service { IN_SERVICE } else { 0 })
    }

    /// With the standing that its health gives.
    pub(crate) fn standing(self, health: &Health, config: &HealthConfig) -> Gate {
        let open = if health.open(config) { Standing::Open.bit() } else { 0 };
        let state = match health.state() {
            HealthState::Unproven => Standing::Unproven.bit(),
            _ if health.takes_last_resort(config) => Standing::Out.bit(),
            HealthState::Ejected | HealthState::HalfOpen | HealthState::Healthy => 0,
        };
        Gate(self.0 | open | state)
    }

    /// Has answered a probe once.
    pub(crate) const fn has_lived(self) -> bool {
        self.0 & Standing::Unproven.bit() == 0
    }

    #[inline]
    pub(crate) const fn lets(self, wanted: Wanted) -> bool {
        self.0 & wanted.looked_at == wanted.must_be
    }
}

impl Wanted {
    /// An instance in service with the role, the route and the standing, of one of the kinds.
    pub(crate) fn new(role: LegRole, route: RouteSet, kinds: Option<&[EngineKind]>, standing: Standing) -> Wanted {
        let must_be = role_bit(role) | route.bits() as u16 | IN_SERVICE | standing.bit();
        let all = [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Openai];
        let other_kinds = all.into_iter().filter(|kind| kinds.is_some_and(|kinds| !kinds.contains(kind)));
        Wanted { looked_at: other_kinds.fold(must_be, |bits, kind| bits | kind_bit(kind)), must_be }
    }
}

impl Standing {
    const fn bit(self) -> u16 {
        match self {
            Standing::Open => 1 << 8,
            Standing::Out => 1 << 9,
            Standing::Unproven => 1 << 10,
            Standing::Any => 0,
        }
    }
}

const fn role_bit(role: LegRole) -> u16 {
    match role {
        LegRole::Unified => 1 << 4,
        LegRole::Prefill => 1 << 5,
        LegRole::Decode => 1 << 6,
    }
}

const fn kind_bit(kind: EngineKind) -> u16 {
    match kind {
        EngineKind::Sglang => 1 << 11,
        EngineKind::Vllm => 1 << 12,
        EngineKind::Openai => 1 << 13,
    }
}
