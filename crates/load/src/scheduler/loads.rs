//! One model's ranks as traffic scheduling sees them: how much is in front of each, how fast it goes, what memory is left.
//!
//! Only ranks that a whole request could go to now. One that has just refused is left out while another has not. What is unknown stays
//! `None`: a rate that neither the instance nor a peer has shown, and memory of which no report that is still believed tells
//! the use; the ledger alone knows only what clients asked for at most.

use super::Scheduler;
use super::choose::effective_s_per_token;
use crate::instance::{Instance, RankState};
use crate::reconcile::TrustClock;
use plimsoll_core::{InstanceLoad, LegRole, Nanos, Rank, Target};
use serde::Serialize;

/// Load of one rank, own plus trusted foreign.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PoolLoad {
    pub target: Target,
    /// Its backlog counts of prompts whose cache hits nobody knew the share that was missing there of late; its rate is as observed, there
    /// or on its peers.
    pub load: InstanceLoad,
    /// Share of the tokens charged that it really had to compute, 0 to 1.
    pub uncached_share: Option<f64>,
}

impl Scheduler {
    /// Fills `into` with the ranks of `model` that may be chosen now, by slot. Where health keeps all out, with all of them, marked so. Empty
    /// where none is in service; then placement says why.
    pub fn pool_loads(&mut self, model: &str, now: Nanos, into: &mut Vec<PoolLoad>) {
        into.clear();
        self.release_due(now);
        let Some(pool) = self.pools.find(model) else { return };
        let clock = self.trust_clock(now);
        let mean = self.pools.at_mut(pool).mean(&self.roster, &clock, now);
        let peers = mean.tokens_per_s.map(|rate| 1.0 / rate.max(1.0));
        let serves = |one: &Instance| one.in_service() && one.role_obstacle(LegRole::Unified).is_none();
        let open = |one: &Instance| one.health.open(&self.config.health);
        let serving = || self.pools.at(pool).instances(&self.roster).map(|(_, one)| one).filter(|one| serves(one));
        let out = !serving().any(open);
        let members = || serving().filter(|one| out || open(one));
        let all_refuse = members().all(|instance| instance.refusing(now));
        for instance in members().filter(|instance| all_refuse || !instance.refusing(now)) {
            for (index, rank) in instance.ranks.iter().take(instance.rank_count()).enumerate() {
                let target = Target { instance: instance.id, rank: Rank(index as u16) };
                let s_per_token = peers.map(|peers| effective_s_per_token(instance.prefill_s_per_token, peers));
                let load = load(instance, rank, &clock, s_per_token, now, self.config.report_stale);
                let load = InstanceLoad { out, ..load };
                into.push(PoolLoad { target, load, uncached_share: instance.uncached_share() });
            }
        }
    }
}

fn load(
    instance: &Instance,
    rank: &RankState,
    clock: &TrustClock,
    s_per_token: Option<f64>,
    now: Nanos,
    stale: Nanos,
) -> InstanceLoad {
    let foreign = rank.reported.foreign(clock);
    let own = rank.own.uncached_prefill_tokens as f64 * instance.uncached_share().unwrap_or(1.0);
    let backlog_tokens = (own + foreign.prefill_tokens).ceil() as u64;
    let reported = rank.reported.used_kv_tokens(now, stale);
    InstanceLoad {
        backlog_tokens,
        prefill_tokens_per_s: s_per_token.map(|s| 1.0 / s),
        reserved_kv_tokens: reported.map_or(rank.own.reserved_kv_tokens, |used| used.saturating_add(backlog_tokens)),
        kv_capacity_tokens: instance.capacity_kv_tokens(rank).filter(|_| reported.is_some()),
        running: rank.own.requests.saturating_add(foreign.requests.round() as u32),
        out: false,
    }
}
