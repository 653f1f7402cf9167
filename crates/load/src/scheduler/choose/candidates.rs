//! Who may be chosen, with the score of each.

use super::hits::Hits;
use super::resolve::misfit;
use super::terms::Price;
use crate::ask::Ask;
use crate::config::SchedulerConfig;
use crate::gate::{Standing, Wanted};
use crate::instance::Instance;
use crate::place::{Candidate, Tier};
use crate::pool::Pool;
use crate::roster::Roster;
use plimsoll_core::InstanceId;

/// One walk over a pool.
pub(super) struct Walk<'a> {
    pub roster: &'a Roster,
    pub pool: &'a Pool,
    pub ask: &'a Ask<'a>,
    pub config: &'a SchedulerConfig,
    pub price: &'a Price,
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
    /// included and ejected ones within as many, so that at least one engine always stays. An instance that was never proven is taken only
    /// when nothing else is left. When the request has excluded all that are in, there is no candidate: it has had its chance.
    pub(super) fn gather(&self, into: &mut Vec<Candidate>) -> Gathered {
        let open = self.take(into, Standing::Open);
        if open.any {
            return Gathered { best_tier: bring_best_tier_forward(into, open.tiers), panic: false };
        }
        let mut taken = self.take(into, Standing::Out);
        // Not where those that have lived are only full of trials: one that has never answered would be sent all the rest.
        if into.is_empty() && !self.any_has_lived() {
            taken = self.take(into, Standing::Unproven);
        }
        Gathered { best_tier: bring_best_tier_forward(into, taken.tiers), panic: true }
    }

    /// Somebody is left to this request that has answered a probe once.
    fn any_has_lived(&self) -> bool {
        let Ask { exclude, kinds, role, route, .. } = *self.ask;
        let wanted = Wanted::new(role, route, kinds, Standing::Any);
        self.pool
            .rows
            .iter()
            .map(|&row| self.roster.glance(row))
            .any(|rank| rank.gate.lets(wanted) && rank.gate.has_lived() && !exclude.contains(&rank.target.instance))
    }

    /// What keeps each member out.
    pub(super) fn reasons(&self) -> Vec<(InstanceId, &'static str)> {
        let health = &self.config.health;
        let why = |instance: &Instance| {
            if let Some(misfit) = misfit(instance, self.ask) {
                misfit
            } else if let Some(obstacle) = instance.obstacle(instance.health.open(health)) {
                obstacle
            } else if self.ask.exclude.contains(&instance.id) {
                "already tried by this request"
            } else {
                "not acceptable to the placement policy"
            }
        };
        self.pool.instances(self.roster).map(|(_, instance)| (instance.id, why(instance))).collect()
    }

    fn take(&self, into: &mut Vec<Candidate>, standing: Standing) -> Taken {
        let Ask { exclude, kinds, role, route, .. } = *self.ask;
        // Together the same as `misfit` and `obstacle`, which also say why.
        let wanted = Wanted::new(role, route, kinds, standing);
        let mut hits = Hits::new(self.ask);
        let mut taken = Taken { any: false, tiers: 0 };
        into.clear();
        for &row in &self.pool.rows {
            let rank = self.roster.glance(row);
            if !rank.gate.lets(wanted) {
                continue;
            }
            taken.any = true;
            if !exclude.is_empty() && exclude.contains(&rank.target.instance) {
                continue;
            }
            let terms = self.price.terms(rank, hits.at(rank.target));
            let tier = Tier::new(rank.refusing(self.price.now), terms.has_room);
            taken.tiers |= tier.bit();
            into.push(Candidate { target: rank.target, score_s: terms.seconds.score_s, row, tier });
        }
        taken
    }
}

/// What one pass took.
struct Taken {
    /// An instance fitted, though the request may have excluded it.
    any: bool,
    /// The tiers that there are, by their bits.
    tiers: u8,
}

/// Reorders so that the candidates of the best tier come first, and returns how many they are. With one tier the
/// order stays as it is.
fn bring_best_tier_forward(candidates: &mut [Candidate], tiers: u8) -> usize {
    if tiers.count_ones() < 2 {
        return candidates.len();
    }
    let best = Tier::best(tiers);
    let mut end = 0;
    for index in 0..candidates.len() {
        if candidates[index].tier == best {
            candidates.swap(index, end);
            end += 1;
        }
    }
    end
}
