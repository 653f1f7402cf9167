//! Who may be chosen, with the numbers of each.

use super::resolve::WRONG_FAMILY;
use crate::ask::Ask;
use crate::config::SchedulerConfig;
use crate::health::HealthState;
use crate::instance::{Instance, RankState};
use crate::place::{Candidate, expected_wait_s};
use crate::pool::Pool;
use crate::reconcile::per_stale;
use plimsoll_core::{InstanceId, Nanos, Rank, Target};

/// One walk over a pool.
pub(super) struct Walk<'a> {
    pub slots: &'a [Option<Instance>],
    pub pool: &'a Pool,
    pub ask: &'a Ask<'a>,
    pub config: &'a SchedulerConfig,
    pub now: Nanos,
    /// For instances that were never observed.
    pub peer_rate: Option<f64>,
}

/// What a walk found.
pub(super) struct Gathered {
    /// So many candidates, at the front, are of the best tier.
    pub best_tier: usize,
    /// Nobody is in, so those that are out were gathered.
    pub panic: bool,
}

impl Walk<'_> {
    /// Fills `into` with everybody who may be chosen.
    ///
    /// Panic threshold: when nobody is in, those that are out are candidates, half-open ones beyond their trials
    /// included, so that at least one engine always stays. An instance that was never proven is taken only when nothing
    /// else is left. When the request has excluded all that are in, there is no candidate: it has had its chance.
    pub(super) fn gather(&self, into: &mut Vec<Candidate>) -> Gathered {
        let health = &self.config.health;
        if self.take(into, |instance| instance.health.open(health)) {
            return Gathered { best_tier: bring_best_tier_forward(into), panic: false };
        }
        self.take(into, |instance| matches!(instance.health.state(), HealthState::Ejected | HealthState::HalfOpen));
        if into.is_empty() {
            self.take(into, |instance| instance.health.state() == HealthState::Unproven);
        }
        Gathered { best_tier: bring_best_tier_forward(into), panic: true }
    }

    /// What keeps each member out.
    pub(super) fn reasons(&self) -> Vec<(InstanceId, &'static str)> {
        let health = &self.config.health;
        let why = |instance: &Instance| {
            if !self.kind_fits(instance) {
                WRONG_FAMILY
            } else if let Some(obstacle) = instance.obstacle(instance.health.open(health)) {
                obstacle
            } else if self.ask.exclude.contains(&instance.id) {
                "already tried by this request"
            } else {
                "not acceptable to the placement policy"
            }
        };
        self.pool.instances(self.slots).map(|(_, instance)| (instance.id, why(instance))).collect()
    }

    /// Returns whether any instance fitted, excluded ones included.
    fn take(&self, into: &mut Vec<Candidate>, fits: impl Fn(&Instance) -> bool) -> bool {
        into.clear();
        let mut any = false;
        let unobserved = 1.0 / self.peer_rate.unwrap_or(self.config.assumed_prefill_tokens_per_s).max(1.0);
        let per_stale = per_stale(self.config.report_stale);
        for (slot, instance) in self.pool.instances(self.slots) {
            if !instance.in_service() || !self.kind_fits(instance) || !fits(instance) {
                continue;
            }
            any = true;
            if self.ask.exclude.contains(&instance.id) {
                continue;
            }
            let s_per_token = instance.prefill_s_per_token.unwrap_or(unobserved);
            let refusing = instance.refusing(self.now);
            for (index, rank) in instance.serving_ranks().iter().enumerate() {
                let target = Target { instance: instance.id, rank: Rank(index as u16) };
                let load = self.load(rank, per_stale);
                into.push(self.candidate(target, slot, load, s_per_token, refusing, rank.kv_limit_tokens));
            }
        }
        any
    }

    /// Requests, uncached prefill tokens and KV tokens of a rank: own plus trusted foreign.
    #[inline]
    fn load(&self, rank: &RankState, per_stale: f64) -> (f64, f64, f64) {
        let foreign = rank.reported.foreign(self.now, per_stale);
        (
            f64::from(rank.own.requests) + foreign.requests,
            real(rank.own.uncached_prefill_tokens) + foreign.prefill_tokens,
            real(rank.own.reserved_kv_tokens) + foreign.kv_tokens,
        )
    }

    #[inline]
    fn candidate(
        &self,
        target: Target,
        slot: usize,
        (requests, outstanding, held): (f64, f64, f64),
        s_per_token: f64,
        refusing: bool,
        kv_limit_tokens: f64,
    ) -> Candidate {
        let charge = &self.ask.charge;
        Candidate {
            target,
            requests,
            uncached_prefill_tokens: outstanding,
            reserved_kv_tokens: held,
            prefill_s_per_token: s_per_token,
            expected_wait_s: expected_wait_s(outstanding, charge.uncached_prefill_tokens as f64, s_per_token, requests),
            refusing,
            has_room: held + charge.reserved_kv_tokens as f64 <= kv_limit_tokens,
            slot: slot as u32,
        }
    }

    #[inline]
    fn kind_fits(&self, instance: &Instance) -> bool {
        self.ask.kinds.is_none_or(|kinds| kinds.contains(&instance.spec.kind))
    }
}

/// Sums of bounded charges stay far below 2^63, and the signed conversion is one instruction.
#[inline]
const fn real(tokens: u64) -> f64 {
    tokens as i64 as f64
}

/// Reorders so that the candidates of the best tier come first, and returns how many they are. With one tier the
/// order stays as it is.
fn bring_best_tier_forward(candidates: &mut [Candidate]) -> usize {
    let Some(first) = candidates.first().map(Candidate::tier) else { return 0 };
    if candidates.iter().all(|c| c.tier() == first) {
        return candidates.len();
    }
    let best = candidates.iter().map(Candidate::tier).fold(first, u8::min);
    let mut end = 0;
    for index in 0..candidates.len() {
        if candidates[index].tier() == best {
            candidates.swap(index, end);
            end += 1;
        }
    }
    end
}
