//! What operators, metrics and readiness see.

use super::Scheduler;
use crate::health::HealthState;
use crate::instance::Instance;
use crate::verdict::{InstanceView, ModelStatus, RankLoad, Totals};
use plimsoll_core::{InstanceId, LegRole, Nanos, Rank};

impl Scheduler {
    /// Every instance, by id.
    #[must_use]
    pub fn instances(&mut self, now: Nanos) -> Vec<InstanceView> {
        self.release_due(now);
        let known = self.index.values().filter_map(|&slot| self.roster.get(slot));
        known.map(|instance| self.instance_view(instance, now)).collect()
    }

    /// Taken out for its health. One that is not known is not.
    #[must_use]
    pub fn is_ejected(&self, id: InstanceId) -> bool {
        let instance = self.index.get(&id).and_then(|&slot| self.roster.get(slot));
        instance.is_some_and(|instance| instance.health.state() == HealthState::Ejected)
    }

    /// Whether whole requests for a model can be served now, and what keeps the others out.
    #[must_use]
    pub fn model_status(&self, model: &str) -> ModelStatus {
        let Some(pool) = self.pools.find(model) else { return ModelStatus::default() };
        let mut status = ModelStatus::default();
        for (_, instance) in self.pools.at(pool).instances(&self.roster) {
            // A half-open instance serves, even while its trials are taken.
            let obstacle = instance.obstacle(instance.health.state() == HealthState::HalfOpen);
            match instance.role_obstacle(LegRole::Unified).or(obstacle) {
                None => status.serving = true,
                Some(why) => status.reasons.push((instance.id, why)),
            }
        }
        status
    }

    /// Names of all models that some instance has, sorted.
    #[must_use]
    pub fn models(&self) -> Vec<String> {
        self.pools.models()
    }

    /// Sums over all ranks.
    #[must_use]
    pub fn totals(&mut self, now: Nanos) -> Totals {
        self.release_due(now);
        let mut totals =
            Totals { entries: self.ledger.len() as u64, orphans: self.ledger.orphans() as u64, ..Totals::default() };
        for rank in self.roster.iter().flat_map(|instance| &instance.ranks) {
            totals.requests += u64::from(rank.own.requests);
            totals.uncached_prefill_tokens =
                totals.uncached_prefill_tokens.saturating_add(rank.own.uncached_prefill_tokens);
            totals.reserved_kv_tokens = totals.reserved_kv_tokens.saturating_add(rank.own.reserved_kv_tokens);
        }
        totals
    }

    fn instance_view(&self, instance: &Instance, now: Nanos) -> InstanceView {
        let ranks = instance.ranks.iter().enumerate().map(|(index, rank)| {
            let foreign = rank.reported.foreign(&self.trust_clock(now));
            let known = rank.reported.known(now, self.config.report_stale);
            RankLoad {
                rank: Rank(index as u16),
                requests: rank.own.requests,
                uncached_prefill_tokens: rank.own.uncached_prefill_tokens,
                reserved_kv_tokens: rank.own.reserved_kv_tokens,
                foreign_requests: known.requests.then_some(foreign.requests),
                foreign_prefill_tokens: known.prefill_tokens.then_some(foreign.prefill_tokens),
                foreign_kv_tokens: known.kv_tokens.then_some(foreign.kv_tokens),
                capacity_kv_tokens: instance.capacity_kv_tokens(rank),
                report_age: rank.reported.age(now),
            }
        });
        InstanceView {
            id: instance.id,
            kind: instance.spec.kind,
            models: instance.spec.models.clone(),
            ready: instance.spec.ready,
            health: instance.health.state(),
            draining: instance.draining,
            refusing: instance.refusing(now),
            ranks: ranks.collect(),
            prefill_tokens_per_s: instance.prefill_tokens_per_s(),
        }
    }
}
