//! Choice and charge, the critical section.
//!
//! One walk over the pool gathers candidates into a reused vector, a policy picks one, the ledger is charged before
//! anybody else can look. With 1,024 engines this must stay under 10 us, so nothing is allocated or hashed per candidate.

use super::Scheduler;
use crate::ask::Ask;
use crate::config::SchedulerConfig;
use crate::health::HealthState;
use crate::instance::Instance;
use crate::ledger::Entry;
use crate::place::{Candidate, View, expected_wait_s};
use crate::pool::{Pool, Pools};
use crate::prefill_rate::median;
use crate::verdict::{PlaceError, Placed, Scored};
use plimsoll_core::{EngineKind, InstanceId, Nanos, Rank, Target};
use smallvec::SmallVec;

/// Most candidates ever recorded, whatever the settings say.
const MAX_RECORDED: usize = 64;
const WRONG_FAMILY: &str = "its engine family does not serve this endpoint";

impl Scheduler {
    /// Chooses a target and charges it.
    ///
    /// # Errors
    /// See [`PlaceError`]; nothing is charged then.
    pub fn place(&mut self, now: Nanos, ask: &Ask<'_>) -> Result<Placed, PlaceError> {
        let ticket = ask.ticket();
        if self.ledger.contains(ticket) {
            return Err(PlaceError::AlreadyCharged);
        }
        let (model, pool) = resolve(&self.pools, &self.slots, ask.model, ask.kinds)?;
        let walk = Walk { slots: &self.slots, pool, ask, config: &self.config, now };
        let panic = walk.gather(&mut self.scratch);
        if self.scratch.is_empty() {
            return Err(PlaceError::NoCandidate { reasons: walk.reasons() });
        }
        let considered = self.scratch.len();
        let best_tier = bring_best_tier_forward(&mut self.scratch);
        let view = View { model, candidates: &self.scratch[..best_tier], tie_fraction: self.config.tie_fraction };
        let chosen = self.policy.place(now, &view, ask).and_then(|c| Some((view.candidates.get(c.index)?, c)));
        let Some((candidate, choice)) = chosen else {
            return Err(PlaceError::NoCandidate { reasons: walk.reasons() });
        };
        let candidate = *candidate;
        let candidates = record(&self.scratch, choice.index, self.config.record_candidates);
        let half_open = self.charge(now, ask, &candidate)?;
        Ok(Placed {
            target: candidate.target,
            ticket,
            reason: choice.reason,
            expected_wait: Some(Nanos::from_secs_f64(candidate.expected_wait_s)),
            candidates,
            considered,
            panic,
            half_open,
        })
    }

    /// True when no instance that a request could still go to would take it: each is excluded, out, or refused a
    /// moment ago. A retry would then only add to the overload.
    #[must_use]
    pub fn all_refusing(&self, model: Option<&str>, now: Nanos, exclude: &[InstanceId]) -> bool {
        let Ok((_, pool)) = resolve(&self.pools, &self.slots, model, None) else { return true };
        let config = &self.config.health;
        !pool.members.iter().filter_map(|&slot| self.slots[slot].as_ref()).any(|instance| {
            instance.in_service()
                && instance.health.open(config)
                && !instance.refusing(now)
                && !exclude.contains(&instance.id)
        })
    }

    fn charge(&mut self, now: Nanos, ask: &Ask<'_>, candidate: &Candidate) -> Result<bool, PlaceError> {
        let nobody = || PlaceError::NoCandidate { reasons: Vec::new() };
        let instance = self.slots[candidate.slot].as_mut().ok_or_else(nobody)?;
        let stale = self.config.report_stale;
        let rank = instance.ranks.get_mut(usize::from(candidate.target.rank.0)).ok_or_else(nobody)?;
        let stamp = instance.health.placed();
        let entry = Entry {
            target: candidate.target,
            charge: ask.charge,
            prefilling: true,
            orphan: false,
            placed_at: now,
            served_before: rank.served_tokens,
            foreign_before: rank.reported.foreign(now, stale).prefill_tokens.unwrap_or(0.0) as u64,
            stamp,
        };
        self.ledger.charge(ask.ticket(), entry, &mut rank.own);
        Ok(stamp.is_trial())
    }
}

/// One walk over a pool.
struct Walk<'a> {
    slots: &'a [Option<Instance>],
    pool: &'a Pool,
    ask: &'a Ask<'a>,
    config: &'a SchedulerConfig,
    now: Nanos,
}

impl Walk<'_> {
    /// Fills `into` with everybody who may be chosen. True: nobody is in, so those that are out were taken (panic). An
    /// instance that was never proven is taken only when nothing else is left.
    fn gather(&self, into: &mut Vec<Candidate>) -> bool {
        let health = &self.config.health;
        if self.take(into, |instance| instance.health.open(health)) {
            return false;
        }
        self.take(into, |instance| matches!(instance.health.state(), HealthState::Ejected | HealthState::HalfOpen));
        if into.is_empty() {
            self.take(into, |instance| instance.health.state() == HealthState::Unproven);
        }
        true
    }

    /// Returns whether any instance fitted, excluded ones included.
    fn take(&self, into: &mut Vec<Candidate>, fits: impl Fn(&Instance) -> bool) -> bool {
        into.clear();
        let mut any = false;
        let mut peers: Option<f64> = None;
        let own_tokens = self.ask.charge.uncached_prefill_tokens as f64;
        for (slot, instance) in self.members() {
            if !instance.in_service() || !self.kind_fits(instance) || !fits(instance) {
                continue;
            }
            any = true;
            if self.ask.exclude.contains(&instance.id) {
                continue;
            }
            let rate = match instance.rate.tokens_per_s() {
                Some(rate) => rate,
                None => *peers.get_or_insert_with(|| self.peer_rate()),
            };
            let refusing = instance.refusing(self.now);
            for (index, rank) in instance.ranks[..instance.rank_count()].iter().enumerate() {
                let foreign = rank.reported.foreign(self.now, self.config.report_stale);
                let requests = f64::from(rank.own.requests) + foreign.requests.unwrap_or(0.0);
                let outstanding = rank.own.uncached_prefill_tokens as f64 + foreign.prefill_tokens.unwrap_or(0.0);
                let held = rank.own.reserved_kv_tokens as f64 + foreign.kv_tokens.unwrap_or(0.0);
                let needed = held + self.ask.charge.reserved_kv_tokens as f64;
                into.push(Candidate {
                    target: Target { instance: instance.id, rank: Rank(index as u16) },
                    requests,
                    uncached_prefill_tokens: outstanding,
                    reserved_kv_tokens: held,
                    prefill_tokens_per_s: rate,
                    expected_wait_s: expected_wait_s(outstanding, own_tokens, rate, requests),
                    refusing,
                    has_room: instance.capacity_kv_tokens(rank).is_none_or(|capacity| needed <= capacity as f64),
                    slot,
                });
            }
        }
        any
    }

    fn members(&self) -> impl Iterator<Item = (usize, &Instance)> {
        self.pool.members.iter().filter_map(|&slot| Some((slot, self.slots[slot].as_ref()?)))
    }

    fn kind_fits(&self, instance: &Instance) -> bool {
        self.ask.kinds.is_none_or(|kinds| kinds.contains(&instance.spec.kind))
    }

    /// Rate for an instance that was never observed: what its peers do, else the assumption.
    fn peer_rate(&self) -> f64 {
        let mut known: SmallVec<[f64; 64]> = self.members().filter_map(|(_, i)| i.rate.tokens_per_s()).collect();
        if known.is_empty() { self.config.assumed_prefill_tokens_per_s.max(1.0) } else { median(&mut known) }
    }

    fn reasons(&self) -> Vec<(InstanceId, &'static str)> {
        let health = &self.config.health;
        self.members()
            .map(|(_, instance)| {
                let why = if !self.kind_fits(instance) {
                    WRONG_FAMILY
                } else if let Some(obstacle) = instance.obstacle(instance.health.open(health)) {
                    obstacle
                } else if self.ask.exclude.contains(&instance.id) {
                    "already tried by this request"
                } else {
                    "not acceptable to the placement policy"
                };
                (instance.id, why)
            })
            .collect()
    }
}

/// The pool that an ask means.
///
/// Without a model name there must be one pool, or several names for the same instances. While no model name is known
/// at all but instances are, the model may yet turn up: that is lack of capacity, not an unknown model.
fn resolve<'a>(
    pools: &'a Pools,
    slots: &[Option<Instance>],
    model: Option<&str>,
    kinds: Option<&[EngineKind]>,
) -> Result<(&'a str, &'a Pool), PlaceError> {
    let unprobed =
        || PlaceError::NoCandidate { reasons: slots.iter().flatten().map(|i| (i.id, why_no_pool(i))).collect() };
    if let Some(model) = model {
        return match pools.get(model) {
            Some(found) => Ok(found),
            None if pools.is_empty() && slots.iter().any(Option::is_some) => Err(unprobed()),
            None => Err(PlaceError::UnknownModel),
        };
    }
    let fits =
        |slot: usize| slots[slot].as_ref().is_some_and(|i| kinds.is_none_or(|kinds| kinds.contains(&i.spec.kind)));
    let mut fitting = pools.iter().filter(|(_, pool)| pool.members.iter().any(|&slot| fits(slot)));
    let Some(first) = fitting.next() else { return Err(unprobed()) };
    let same = |pool: &Pool| {
        let of = |p: &Pool| p.members.iter().copied().filter(|&s| fits(s)).collect::<SmallVec<[usize; 16]>>();
        let (mut a, mut b) = (of(first.1), of(pool));
        a.sort_unstable();
        b.sort_unstable();
        a == b
    };
    if fitting.all(|(_, pool)| same(pool)) { Ok(first) } else { Err(PlaceError::ModelRequired) }
}

fn why_no_pool(instance: &Instance) -> &'static str {
    if instance.spec.models.is_empty() { "its models are not known yet" } else { WRONG_FAMILY }
}

/// Reorders so that the candidates of the best tier come first, and returns how many they are. Their order among
/// themselves does not change when all are of one tier.
fn bring_best_tier_forward(candidates: &mut [Candidate]) -> usize {
    let Some(best) = candidates.iter().map(Candidate::tier).min() else { return 0 };
    let mut end = 0;
    for index in 0..candidates.len() {
        if candidates[index].tier() == best {
            candidates.swap(index, end);
            end += 1;
        }
    }
    end
}

/// The best candidates by tier, then wait; the chosen one always among them.
fn record(all: &[Candidate], chosen: usize, limit: usize) -> Vec<Scored> {
    let limit = limit.min(MAX_RECORDED).min(all.len());
    if limit == 0 {
        return Vec::new();
    }
    let key = |index: usize| (all[index].tier(), all[index].expected_wait_s);
    let before = |a: usize, b: usize| key(a).0.cmp(&key(b).0).then(key(a).1.total_cmp(&key(b).1)).is_lt();
    let mut best: SmallVec<[usize; 16]> = SmallVec::new();
    for index in 0..all.len() {
        if best.len() == limit {
            if !before(index, best[limit - 1]) {
                continue;
            }
            best.pop();
        }
        let at = best.iter().position(|&held| before(index, held)).unwrap_or(best.len());
        best.insert(at, index);
    }
    if !best.contains(&chosen) {
        best.pop();
        best.push(chosen);
    }
    best.iter().map(|&index| scored(&all[index])).collect()
}

fn scored(candidate: &Candidate) -> Scored {
    Scored {
        target: candidate.target,
        expected_wait_s: candidate.expected_wait_s,
        requests: candidate.requests.round() as u32,
        uncached_prefill_tokens: candidate.uncached_prefill_tokens.round() as u64,
        reserved_kv_tokens: candidate.reserved_kv_tokens.round() as u64,
    }
}
