//! The object that everything goes through: membership, choice and charge, settlement, feedback.
//!
//! One object and not several services, because a choice and its charge must be one step (design rule 3), and because
//! the gateway and the simulator can then share it as it is. Calls cost O(log n) in engines and tickets, except `place`
//! (one walk over the model's candidates), `remove_instance` and the views.

mod choose;
mod loads;
pub mod predict;
mod views;

pub use loads::PoolLoad;

use crate::ask::{AttemptEnd, InstanceSpec, Ticket};
use crate::config::SchedulerConfig;
use crate::health::{Change, HealthChange};
use crate::instance::Instance;
use crate::latency::{Coefficients, ENOUGH, Judged, LatencyModel};
use crate::ledger::Ledger;
use crate::place::{Candidate, Placement, make};
use crate::pool::Pools;
use crate::reconcile::TrustClock;
use crate::roster::{Edit, Roster};
use crate::verdict::Settled;
use plimsoll_core::{InstanceId, LoadReport, Nanos};
use std::collections::BTreeMap;

/// How long a refusal steers others away when the engine named no time.
const REFUSAL: Nanos = Nanos::from_secs(1);
/// Longest refusal that is believed.
const REFUSAL_MAX: Nanos = Nanos::from_secs(60);

/// Instances, ledger, health and placement policy.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) roster: Roster,
    pub(crate) index: BTreeMap<InstanceId, usize>,
    pub(crate) pools: Pools,
    pub(crate) ledger: Ledger,
    policy: Box<dyn Placement>,
    /// Reused between choices, so that a choice allocates nothing per candidate.
    scratch: Vec<Candidate>,
}

/// A prompt of which this part of what is charged is believed to be cached teaches nothing by itself: a quarter.
const MOST_GUESSED: u64 = 4;

impl Scheduler {
    #[must_use]
    pub fn new(config: SchedulerConfig) -> Self {
        Scheduler {
            policy: make(&config),
            roster: Roster::new(config.health),
            config,
            index: BTreeMap::new(),
            pools: Pools::default(),
            ledger: Ledger::default(),
            scratch: Vec::new(),
        }
    }

    /// Takes new settings. Ledger and health stay; the policy's own state (cursors, draws) stays too unless another
    /// policy or seed is named.
    pub fn reconfigure(&mut self, config: SchedulerConfig) {
        if config.policy != self.config.policy || config.seed != self.config.seed {
            self.policy = make(&config);
        }
        self.roster.reconfigure(config.health);
        self.config = config;
    }

    /// Replaces the placement rule by one that the configuration does not know, until the next `reconfigure` that
    /// names another policy or seed.
    pub fn set_placement(&mut self, policy: Box<dyn Placement>) {
        self.policy = policy;
    }

    /// A new instance starts unproven. A known id is updated instead.
    pub fn add_instance(&mut self, id: InstanceId, spec: InstanceSpec) {
        if self.index.contains_key(&id) {
            self.update_instance(id, spec);
            return;
        }
        let models = spec.models.clone();
        let assumed = Coefficients::assumed(self.config.assumed_prefill_tokens_per_s);
        let slot = self.roster.add(Instance::new(id, spec, &assumed));
        self.index.insert(id, slot);
        self.pools.join(slot, &models);
        self.pools.list_rows(&models, &self.roster);
    }

    /// What probing found out. Entries stay, also those on a rank that the new spec no longer has. An unknown id is
    /// ignored: it was removed while the probe ran.
    pub fn update_instance(&mut self, id: InstanceId, spec: InstanceSpec) {
        let Some(&slot) = self.index.get(&id) else { return };
        let Some(mut instance) = self.roster.edit(slot) else { return };
        let models = spec.models.clone();
        let before = std::mem::replace(&mut instance.spec, spec).models;
        drop(instance);
        if before != models {
            self.pools.leave(slot, &before);
            self.pools.join(slot, &models);
            self.pools.list_rows(&before, &self.roster);
        }
        self.pools.list_rows(&models, &self.roster);
    }

    /// Takes an instance out. Its in-flight entries become orphans: each is still settled exactly once and answers
    /// [`Settled::InstanceGone`]. Returns how many there are; an unknown id has none.
    pub fn remove_instance(&mut self, id: InstanceId) -> usize {
        let Some(slot) = self.index.remove(&id) else { return 0 };
        if let Some(instance) = self.roster.remove(slot) {
            self.pools.leave(slot, &instance.spec.models);
            self.pools.list_rows(&instance.spec.models, &self.roster);
        }
        self.ledger.orphan(id)
    }

    /// A draining instance gets no new requests and finishes those it has. False when the id is unknown.
    pub fn set_draining(&mut self, id: InstanceId, draining: bool) -> bool {
        self.edit(id).map(|mut instance| instance.draining = draining).is_some()
    }

    /// Prefill is over: releases the attempt's uncached tokens. Further calls for the same ticket, and calls for unknown
    /// tickets, change nothing. A half-open instance is healthy from its first token on.
    ///
    /// The first token of an attempt that does not stream comes with its last and says nothing about prefill rates.
    pub fn first_token(&mut self, ticket: Ticket, now: Nanos) -> Option<HealthChange> {
        let entry = *self.ledger.get(ticket)?;
        if entry.orphan || entry.first_token_seen {
            return None;
        }
        let slot = *self.index.get(&entry.target.instance)?;
        let mut edit = self.roster.edit(slot)?;
        let instance = &mut *edit;
        let rank = instance.ranks.get_mut(usize::from(entry.target.rank.0))?;
        self.ledger.end_prefill(ticket, &mut rank.own);
        let mut waited = None;
        if entry.prefill_until.is_none() {
            let others = rank.served_tokens.saturating_sub(entry.served_before).saturating_add(entry.unseen_before);
            waited = Some((now.since(entry.placed_at), others));
            rank.served_tokens = rank.served_tokens.saturating_add(entry.charge.uncached_prefill_tokens);
        }
        let beside = (rank.own.requests, rank.own.reserved_kv_tokens);
        self.ledger.note_first_token(ticket, waited, beside);
        instance.accepted(entry.placed_at);
        named(entry.target.instance, instance.health.first_token(entry.stamp))
    }

    /// The engine has said how many of the prompt's tokens it had to prefill. Call it before `settle`; only attempts
    /// with a first token teach, and engines that do not report cached tokens are taken to be as fast as their peers
    /// ([`Self::unreported`]): a guess would make the holder of many prefixes look like a fast engine and draw everybody to it.
    ///
    /// A prefill in front of which nothing else was prefilled teaches the latency model too; `cached_tokens` is the part of the prompt
    /// that it had to attend to and not to compute.
    pub fn prefilled(&mut self, ticket: Ticket, uncached_tokens: u64, cached_tokens: u64) {
        let Some(entry) = self.ledger.get(ticket).copied().filter(|entry| !entry.orphan) else { return };
        let Some((elapsed, others)) = entry.waited else { return };
        if let Some(mut instance) = self.edit(entry.target.instance) {
            instance.observe_prefill(elapsed, others, entry.charge.uncached_prefill_tokens, uncached_tokens);
        }
        if others == 0 {
            self.learn(entry.target.instance, |model| model.observe_prefill(uncached_tokens, cached_tokens, elapsed));
        }
    }

    /// A stream ended whose engine did not say what was cached, as most do not unless they are asked to. Call it before `settle`. Then
    /// what was believed and charged is all there is to learn from; tokens are then those charged, here as in the backlog. Only prompts of
    /// which little was believed to be cached teach: a belief in a cache that is gone would make the engine look slow, and with it
    /// promises impossible. It counts for a model as a whole, and for its rate only while no engine of it says more.
    pub fn unreported(&mut self, ticket: Ticket) {
        let Some(entry) = self.ledger.get(ticket).copied().filter(|entry| !entry.orphan) else { return };
        let Some((elapsed, others)) = entry.waited else { return };
        let charged = entry.charge.uncached_prefill_tokens;
        let Some(mut instance) = self.edit(entry.target.instance) else { return };
        let guessed = entry.hit_tokens.saturating_mul(MOST_GUESSED) > charged;
        if guessed || instance.prefill_tokens_per_s().is_some() {
            return;
        }
        instance.observe_unreported(elapsed, others, charged);
        drop(instance);
        if others == 0 {
            self.learn(entry.target.instance, |model| model.observe_prefill(charged, entry.hit_tokens, elapsed));
        }
    }

    /// A stream's mean time between tokens after its first. Call it before `settle`; teaches the latency model with the load of
    /// its rank, in the mean of both ends of the stream.
    pub fn decoded(&mut self, ticket: Ticket, step: Nanos) {
        let Some(entry) = self.ledger.get(ticket).copied().filter(|entry| !entry.orphan) else { return };
        let (Some((requests, kv_tokens)), Some(&slot)) = (entry.beside, self.index.get(&entry.target.instance)) else {
            return;
        };
        let rank = self.roster.get(slot).and_then(|i| i.ranks.get(usize::from(entry.target.rank.0)));
        let Some(now) = rank.map(|rank| rank.own) else { return };
        let batch = (f64::from(requests) + f64::from(now.requests)) / 2.0;
        let kv_tokens = (kv_tokens as f64 + now.reserved_kv_tokens as f64) / 2.0;
        self.learn(entry.target.instance, |model| model.observe_step(batch, kv_tokens, step));
    }

    /// Lets an instance's latency model learn. One that knows little is first told what its peers know.
    fn learn(&mut self, id: InstanceId, sample: impl FnOnce(&mut LatencyModel) -> Option<Judged>) {
        let Some(instance) = self.index.get(&id).and_then(|&slot| self.roster.get(slot)) else { return };
        let (prefills, steps) = instance.latency.samples();
        let prior = (prefills.min(steps) < ENOUGH).then(|| self.prior_for(instance));
        if let Some(mut instance) = self.edit(id) {
            if let Some(prior) = prior {
                instance.latency.set_prior(&prior);
            }
            sample(&mut instance.latency);
        }
    }

    /// The attempt is over, whatever happened. Exactly once per ticket; further calls answer [`Settled::Already`].
    pub fn settle(&mut self, ticket: Ticket, now: Nanos, verdict: AttemptEnd) -> Settled {
        let Some(entry) = self.ledger.get(ticket).copied() else { return Settled::Already };
        if entry.orphan {
            self.ledger.remove(ticket, None);
            return Settled::InstanceGone;
        }
        let id = entry.target.instance;
        let slot = self.index.get(&id).copied();
        let Some(mut edit) = slot.and_then(|slot| self.roster.edit(slot)) else {
            self.ledger.remove(ticket, None);
            return Settled::InstanceGone;
        };
        let instance = &mut *edit;
        let health = instance.health.ended(entry.stamp, verdict, &self.config.health);
        match verdict {
            AttemptEnd::Ok => instance.accepted(entry.placed_at),
            AttemptEnd::Refused { retry_after } => instance.refused(now, retry_after),
            _ => {}
        }
        let rank = instance.ranks.get_mut(usize::from(entry.target.rank.0));
        let counters = rank.map(|rank| {
            if entry.prefilling && entry.prefill_until.is_none() && verdict == AttemptEnd::Ok {
                rank.served_tokens = rank.served_tokens.saturating_add(entry.charge.uncached_prefill_tokens);
            }
            &mut rank.own
        });
        self.ledger.remove(ticket, counters);
        Settled::Released { health: named(id, health) }
    }

    /// An engine's own view of one rank. Reports of unknown instances and ranks are ignored.
    pub fn report(&mut self, id: InstanceId, report: LoadReport, now: Nanos) {
        self.release_due(now);
        let Some(mut instance) = self.edit(id) else { return };
        if let Some(rank) = instance.ranks.get_mut(usize::from(report.rank.0)) {
            let own = rank.own;
            rank.reported.take(&report, &own, now);
        }
    }

    /// A cheap endpoint of the instance answered.
    pub fn probe_ok(&mut self, id: InstanceId, _now: Nanos) -> Option<HealthChange> {
        let change = self.edit(id)?.health.probe_ok();
        named(id, change)
    }

    /// A cheap endpoint of the instance did not answer in time.
    pub fn probe_failed(&mut self, id: InstanceId, _now: Nanos) -> Option<HealthChange> {
        let config = self.config.health;
        let change = self.edit(id)?.health.probe_failed(&config);
        named(id, change)
    }

    /// Some stream of the instance moved: it is not frozen, whatever its probes say.
    pub fn progress(&mut self, id: InstanceId, _now: Nanos) {
        if let Some(mut instance) = self.edit(id) {
            instance.health.progress();
        }
    }

    /// Releases the prefill of every attempt that does not stream and should have been prefilled by now.
    fn release_due(&mut self, now: Nanos) {
        while let Some((ticket, target)) = self.ledger.pop_due(now) {
            let Some(mut instance) = self.index.get(&target.instance).and_then(|&slot| self.roster.edit(slot)) else {
                continue;
            };
            if let Some(rank) = instance.ranks.get_mut(usize::from(target.rank.0)) {
                self.ledger.end_prefill(ticket, &mut rank.own);
            }
        }
    }

    fn trust_clock(&self, now: Nanos) -> TrustClock {
        TrustClock::new(now, self.config.report_stale)
    }

    fn edit(&mut self, id: InstanceId) -> Option<Edit<'_>> {
        let slot = *self.index.get(&id)?;
        self.roster.edit(slot)
    }
}

impl Instance {
    /// It refused: others are preferred for a while. The longer of two refusals counts.
    fn refused(&mut self, now: Nanos, retry_after: Option<Nanos>) {
        self.refused_at = now;
        self.refused_until = self.refused_until.max(now + retry_after.unwrap_or(REFUSAL).min(REFUSAL_MAX));
    }

    /// It served what was placed after its refusal, so the refusal is over.
    fn accepted(&mut self, placed_at: Nanos) {
        if placed_at > self.refused_at {
            self.refused_until = Nanos::ZERO;
        }
    }
}

fn named(instance: InstanceId, change: Option<Change>) -> Option<HealthChange> {
    change.map(|(from, to, why)| HealthChange { instance, from, to, why })
}
