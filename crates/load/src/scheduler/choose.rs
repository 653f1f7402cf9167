//! Choice and charge, the critical section.
//!
//! One walk over the pool gathers candidates into a reused vector, a policy picks one, the ledger is charged before
//! anybody else can look. With 1,024 engines this must stay under 10 us, so nothing is allocated or hashed per candidate.

mod candidates;
mod hits;
mod record;
mod resolve;
mod terms;

pub(super) use terms::effective_s_per_token;

use super::Scheduler;
use crate::ask::Ask;
use crate::instance::Instance;
use crate::ledger::Entry;
use crate::place::{Candidate, Load, Loads, View};
use crate::replay::Basis;
use crate::roster::Roster;
use crate::verdict::{PlaceError, Placed};
use candidates::Walk;
use plimsoll_core::{InstanceId, Nanos};
use std::fmt;
use terms::{Price, Terms};

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
        self.release_due(now);
        let pool = resolve::pool(&self.pools, &self.roster, ask)?;
        let clock = self.trust_clock(now);
        let mean = self.pools.at_mut(pool).mean(&self.roster, &clock, now);
        let pool = self.pools.at(pool);
        let price = Price::new(ask, &self.config, now, &mean);
        let walk = Walk { roster: &self.roster, pool, ask, config: &self.config, price: &price };
        let gathered = walk.gather(&mut self.scratch);
        if self.scratch.is_empty() {
            return Err(PlaceError::NoCandidate { reasons: walk.reasons() });
        }
        let offered = if self.policy.minds_tiers() { gathered.best_tier } else { self.scratch.len() };
        let candidates = &self.scratch[..offered];
        let loads = Numbers { roster: &self.roster, price: &price, ask };
        let view = View { model: &pool.model, candidates, tie_fraction: self.config.tie_fraction, loads: &loads };
        let recorded = self.config.record_candidates;
        let state = if recorded > 0 { self.policy.state(&pool.model, ask.role) } else { None };
        let choice = self.policy.place(now, &view, ask);
        let Some((choice, &candidate)) = choice.and_then(|c| Some((c, candidates.get(c.index)?))) else {
            return Err(PlaceError::NoCandidate { reasons: walk.reasons() });
        };
        let all = &self.scratch;
        let best = record::best(all, gathered.best_tier, choice.index, recorded);
        let scored = |&index: &usize| self.terms(&all[index], &price, ask).scored(all[index].target, index);
        let candidates = best.iter().map(scored).collect();
        let basis = state.map(|state| Basis::new(&self.config, price.asked, state, offered));
        let terms = self.terms(&candidate, &price, ask);
        let (half_open, prefill_until) = self.charge(now, ask, &candidate, &terms)?;
        Ok(Placed {
            target: candidate.target,
            ticket,
            reason: choice.reason,
            expected_wait: Some(Nanos::from_secs_f64(terms.seconds.expected_wait_s)),
            hit_tokens: ask.hit_tokens(candidate.target),
            candidates,
            basis,
            considered: self.scratch.len(),
            panic: gathered.panic,
            half_open,
            prefill_until,
        })
    }

    /// The numbers behind a candidate's score.
    fn terms(&self, candidate: &Candidate, price: &Price, ask: &Ask<'_>) -> Terms {
        price.terms(self.roster.glance(candidate.row), ask.held(candidate.target))
    }

    /// True when no instance that a request could still go to would take it: each is excluded, out, or refused a
    /// moment ago. A retry would then only add to the overload. Without a model name that stands for one pool, any
    /// instance counts; of either only those that take whole requests.
    #[must_use]
    pub fn all_refusing(&self, model: Option<&str>, now: Nanos, exclude: &[InstanceId]) -> bool {
        let ask = Ask { model, exclude, ..Ask::default() };
        let takes = |instance: &Instance| {
            instance.in_service()
                && resolve::misfit(instance, &ask).is_none()
                && instance.health.open(&self.config.health)
                && !instance.refusing(now)
                && !exclude.contains(&instance.id)
        };
        match resolve::pool(&self.pools, &self.roster, &ask) {
            Ok(pool) => !self.pools.at(pool).instances(&self.roster).any(|(_, instance)| takes(instance)),
            Err(PlaceError::ModelRequired) => !self.roster.iter().any(takes),
            Err(_) => true,
        }
    }

    /// Whether it is a trial, and when its prefill stops to count if that is not seen: once the tokens in front and its
    /// own should be through, at the rate that the choice reckoned with.
    fn charge(
        &mut self,
        now: Nanos,
        ask: &Ask<'_>,
        candidate: &Candidate,
        terms: &Terms,
    ) -> Result<(bool, Option<Nanos>), PlaceError> {
        let clock = self.trust_clock(now);
        let slot = self.index.get(&candidate.target.instance).copied();
        let mut edit = slot.and_then(|slot| self.roster.edit(slot)).ok_or_else(nobody)?;
        let instance = &mut *edit;
        let mut charge = instance.limited(ask.charge);
        let held = ask.held(candidate.target);
        charge.uncached_prefill_tokens = charge.uncached_prefill_tokens.saturating_sub(held.tokens());
        charge.reserved_kv_tokens = charge.reserved_kv_tokens.saturating_sub(held.shared_tokens);
        let rank = instance.ranks.get_mut(usize::from(candidate.target.rank.0)).ok_or_else(nobody)?;
        let stamp = instance.health.placed();
        let tokens = terms.load.uncached_prefill_tokens + charge.uncached_prefill_tokens as f64;
        let prefill = Nanos::from_secs_f64(tokens * terms.load.prefill_s_per_token);
        let prefill_until = (!ask.streams).then(|| now + prefill);
        let foreign = rank.reported.foreign(&clock).prefill_tokens as u64;
        let entry = Entry {
            target: candidate.target,
            charge,
            hit_tokens: held.tokens(),
            prefilling: true,
            prefill_until,
            first_token_seen: false,
            orphan: false,
            placed_at: now,
            served_before: rank.served_tokens,
            unseen_before: foreign.saturating_add(rank.own.unseen_prefill_tokens),
            waited: None,
            beside: None,
            stamp,
        };
        self.ledger.charge(ask.ticket(), entry, &mut rank.own);
        Ok((stamp.is_trial(), prefill_until))
    }
}

/// What a policy may ask of a candidate.
struct Numbers<'a> {
    roster: &'a Roster,
    price: &'a Price,
    ask: &'a Ask<'a>,
}

impl fmt::Debug for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Numbers")
    }
}

impl Loads for Numbers<'_> {
    fn of(&self, candidate: &Candidate) -> Load {
        let terms = self.price.terms(self.roster.glance(candidate.row), self.ask.held(candidate.target));
        Load {
            requests: terms.load.requests,
            uncached_prefill_tokens: terms.load.uncached_prefill_tokens,
            reserved_kv_tokens: terms.reserved_kv_tokens,
            hit_tokens: terms.load.hit_tokens,
        }
    }
}

/// For what cannot be: a candidate that is no rank.
fn nobody() -> PlaceError {
    PlaceError::NoCandidate { reasons: Vec::new() }
}
