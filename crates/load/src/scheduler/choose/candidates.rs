//! Who may be chosen, with the numbers of each.

use super::resolve::misfit;
use crate::ask::{Ask, HeldTokens};
use crate::config::PolicyKind;
use crate::config::SchedulerConfig;
use crate::gate::Gate;
use crate::health::HealthState;
use crate::instance::{Instance, RankState};
use crate::place::Candidate;
use crate::place::price::Prices;
use crate::pool::Pool;
use crate::reconcile::TrustClock;
use plimsoll_core::{InstanceId, Nanos, Rank, Target};
use std::cell::Cell;

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
        let open = self.take(into, |instance| instance.health.open(health));
        if open.any {
            return Gathered { best_tier: bring_best_tier_forward(into, open.tiers), panic: false };
        }
        let out = |state| matches!(state, HealthState::Ejected | HealthState::HalfOpen);
        let mut taken = self.take(into, |instance| out(instance.health.state()));
        if into.is_empty() {
            taken = self.take(into, |instance| instance.health.state() == HealthState::Unproven);
        }
        Gathered { best_tier: bring_best_tier_forward(into, taken.tiers), panic: true }
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
        self.pool.instances(self.slots).map(|(_, instance)| (instance.id, why(instance))).collect()
    }

    fn take(&self, into: &mut Vec<Candidate>, fits: impl Fn(&Instance) -> bool) -> Taken {
        into.clear();
        let mut taken = Taken { any: false, tiers: 0 };
        let price = Price::new(self);
        let Ask { exclude, kinds, role, route, .. } = *self.ask;
        let asked = Gate::asked(role, route);
        for (slot, instance) in self.pool.instances(self.slots) {
            // Together the same as `misfit`, which also says why.
            let of_kind = kinds.is_none_or(|kinds| kinds.contains(&instance.spec.kind));
            if !instance.gate.lets(asked) || !of_kind || !fits(instance) {
                continue;
            }
            taken.any = true;
            if !exclude.is_empty() && exclude.contains(&instance.id) {
                continue;
            }
            // Nearly all engines have one rank; a loop in the loop costs them a third of the time.
            if let [rank] = instance.serving_ranks() {
                let candidate = price.candidate(slot, instance, Rank(0), rank);
                taken.tiers |= 1 << candidate.tier();
                into.push(candidate);
            } else {
                taken.tiers |= price.ranks(slot, instance, into);
            }
        }
        taken
    }
}

/// What one pass took.
struct Taken {
    /// An instance fitted, though the request may have excluded it.
    any: bool,
    /// Bit n: there is a candidate of tier n.
    tiers: u8,
}

/// All that a candidate's numbers depend on besides its rank, prepared once per pass.
struct Price<'a> {
    ask: &'a Ask<'a>,
    clock: TrustClock,
    now: Nanos,
    prices: Prices,
    /// Where the last hit was found; the walk and the hits are mostly in the same order.
    cursor: Cell<usize>,
    kv_tokens: f64,
    sequences: f64,
    /// For instances that were never observed.
    peer_s_per_token: f64,
}

impl<'a> Price<'a> {
    fn new(walk: &Walk<'a>) -> Self {
        let charge = walk.ask.charge.bounded();
        let peer_rate = walk.peer_rate.unwrap_or(walk.config.assumed_prefill_tokens_per_s);
        let (prompt, sequences) = (charge.uncached_prefill_tokens, real(charge.sequences));
        let growth = real(charge.reserved_kv_tokens.saturating_sub(prompt));
        let others_weight = match walk.config.policy {
            PolicyKind::LeastWait => 0.0,
            _ => walk.config.others_weight,
        };
        let load = walk.config.assumed_kv_load_tokens_per_s;
        Price {
            ask: walk.ask,
            clock: TrustClock::new(walk.now, walk.config.report_stale),
            now: walk.now,
            prices: Prices::new(real(prompt), growth, sequences, load, others_weight),
            cursor: Cell::new(0),
            kv_tokens: real(charge.reserved_kv_tokens),
            sequences,
            peer_s_per_token: 1.0 / peer_rate.max(1.0),
        }
    }

    /// All ranks of an instance. Returns the tiers as in [`Taken`].
    #[inline(never)]
    fn ranks(&self, slot: usize, instance: &Instance, into: &mut Vec<Candidate>) -> u8 {
        let mut tiers = 0;
        for (index, rank) in instance.serving_ranks().iter().enumerate() {
            let candidate = self.candidate(slot, instance, Rank(index as u16), rank);
            tiers |= 1 << candidate.tier();
            into.push(candidate);
        }
        tiers
    }

    /// One rank with its load: own plus trusted foreign.
    #[inline]
    fn candidate(&self, slot: usize, instance: &Instance, index: Rank, rank: &RankState) -> Candidate {
        let s_per_token = effective_s_per_token(instance.prefill_s_per_token, self.peer_s_per_token);
        let foreign = rank.reported.foreign(&self.clock);
        let requests = f64::from(rank.own.requests) + foreign.requests;
        let outstanding = real(rank.own.uncached_prefill_tokens) + foreign.prefill_tokens;
        let held = real(rank.own.reserved_kv_tokens) + foreign.kv_tokens;
        let target = Target { instance: instance.id, rank: index };
        let hit = self.held(target);
        // `Instance::limited` in floats.
        let kv_tokens = self.kv_tokens.min(self.sequences * instance.sequence_limit_tokens);
        let mut candidate = Candidate {
            target,
            requests,
            uncached_prefill_tokens: outstanding,
            reserved_kv_tokens: held,
            hit_tokens: real(hit.tokens()),
            host_tokens: real(hit.host_tokens),
            prefill_s_per_token: s_per_token,
            expected_wait_s: 0.0,
            score_s: 0.0,
            refusing: instance.refusing(self.now),
            has_room: held + kv_tokens <= rank.kv_limit_tokens,
            slot: slot as u32,
        };
        self.prices.fill(&mut candidate);
        candidate
    }

    /// [`Ask::held`] without its search where the next target is the next hit: a shared system prompt hits everywhere.
    #[inline]
    fn held(&self, target: Target) -> HeldTokens {
        let hits = self.ask.hits;
        if hits.is_empty() {
            return HeldTokens::default();
        }
        let at = self.cursor.get();
        let next = hits.get(at).map_or(u64::MAX, |(target, _)| order(*target));
        let sought = order(target);
        if sought == next {
            self.cursor.set(at + 1);
            return hits[at].1.within(self.ask.charge.uncached_prefill_tokens);
        }
        let last = at.checked_sub(1).map_or(0, |at| order(hits[at].0));
        // Between two hits there is none.
        if sought < next && (at == 0 || last < sought) { HeldTokens::default() } else { self.search(target) }
    }

    #[inline(never)]
    fn search(&self, target: Target) -> HeldTokens {
        let at = self.ask.hits.partition_point(|(held, _)| *held < target);
        self.cursor.set(at + usize::from(self.ask.hits.get(at).is_some_and(|(held, _)| *held == target)));
        self.ask.held(target)
    }
}

/// A target as one number of the same order.
#[inline]
const fn order(target: Target) -> u64 {
    (target.instance.0 as u64) << 16 | target.rank.0 as u64
}

/// Sums of bounded charges stay far below 2^63, and the signed conversion is one instruction.
#[inline]
const fn real(tokens: u64) -> f64 {
    tokens as i64 as f64
}

/// Reorders so that the candidates of the best tier come first, and returns how many they are. With one tier the
/// order stays as it is.
fn bring_best_tier_forward(candidates: &mut [Candidate], tiers: u8) -> usize {
    if tiers.count_ones() < 2 {
        return candidates.len();
    }
    let best = tiers.trailing_zeros() as u8;
    let mut end = 0;
    for index in 0..candidates.len() {
        if candidates[index].tier() == best {
            candidates.swap(index, end);
            end += 1;
        }
    }
    end
}

/// Equal engines are observed at different rates by chance, and an idle fleet would send everybody to the luckiest. An
/// own rate counts only where it differs from the peers' by more than this factor; generations of accelerators do.
const SAME_RATE_FACTOR: f64 = 1.5;

fn effective_s_per_token(own: Option<f64>, peers: f64) -> f64 {
    match own {
        Some(own) if own > peers * SAME_RATE_FACTOR || own * SAME_RATE_FACTOR < peers => own,
        _ => peers,
    }
}
