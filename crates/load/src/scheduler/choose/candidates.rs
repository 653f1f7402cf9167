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
        let unobserved = self.peer_rate.unwrap_or(self.config.assumed_prefill_tokens_per_s).max(1.0);
        let per_stale = per_stale(self.config.report_stale);
        for (slot, instance) in self.pool.instances(self.slots) {
            if !instance.in_service() || !self.kind_fits(instance) || !fits(instance) {
                continue;
            }
            any = true;
            if self.ask.exclude.contains(&instance.id) {
                continue;
            }
            let rate = instance.rate.tokens_per_s().unwrap_or(unobserved);
            let refusing = instance.refusing(self.now);
            for (index, rank) in instance.serving_ranks().iter().enumerate() {
                let target = Target { instance: instance.id, rank: Rank(index as u16) };
                let (load, capacity) = (self.load(rank, per_stale), instance.capacity_kv_tokens(rank));
                into.push(self.candidate(target, slot, load, rate, refusing, capacity));
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
            rank.own.uncached_prefill_tokens as f64 + foreign.prefill_tokens,
            rank.own.reserved_kv_tokens as f64 + foreign.kv_tokens,
        )
    }

    #[inline]
    fn candidate(
        &self,
        target: Target,
        slot: usize,
        (requests, outstanding, held): (f64, f64, f64),
        rate: f64,
        refusing: bool,
        capacity: Option<u64>,
    ) -> Candidate {
        let charge = &self.ask.charge;
        Candidate {
            target,
            requests,
            uncached_prefill_tokens: outstanding,
            reserved_kv_tokens: held,
            prefill_tokens_per_s: rate,
            expected_wait_s: expected_wait_s(outstanding, charge.uncached_prefill_tokens as f64, rate, requests),
            refusing,
            has_room: capacity.is_none_or(|capacity| held + charge.reserved_kv_tokens as f64 <= capacity as f64),
            slot: slot as u32,
        }
    }

    #[inline]
    fn kind_fits(&self, instance: &Instance) -> bool {
        self.ask.kinds.is_none_or(|kinds| kinds.contains(&instance.spec.kind))
    }
}

/// Reorders so that the candidates of the best tier come first, and returns how many they are. With one tier the
/// order stays as it is.
fn bring_best_tier_forward(candidates: &mut [Candidate]) -> usize {
    let best = candidates.iter().map(Candidate::tier).min();
    let mut end = 0;
    for index in 0..candidates.len() {
        if Some(candidates[index].tier()) == best {
            if index != end {
                candidates.swap(index, end);
            }
            end += 1;
        }
    }
    end
}
