//! What must hold after every call. Used by property tests, the soak test and the simulator.

use crate::ledger::Counters;
use crate::scheduler::Scheduler;
use plimsoll_core::Target;
use std::collections::{BTreeMap, BTreeSet};

impl Scheduler {
    /// Counters are the sums of the live entries, none was ever taken below zero, orphans and trials are counted
    /// right, exactly the entries whose prefill ends by time are queued for it, what choices
    /// read of each rank is current, and every pool names exactly the instances that serve its model, and their ranks.
    ///
    /// # Errors
    /// A sentence that names the first thing that does not hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        if self.ledger.mismatches() > 0 {
            return Err(format!("{} ledger entries did not match their counters", self.ledger.mismatches()));
        }
        self.check_counters()?;
        self.check_glances()?;
        self.check_pools()
    }

    fn check_counters(&self) -> Result<(), String> {
        let mut sums: BTreeMap<Target, Counters> = BTreeMap::new();
        let mut trials = BTreeMap::new();
        let mut last_resorts = BTreeMap::new();
        let mut orphans = 0;
        let mut due = BTreeSet::new();
        for (ticket, entry) in self.ledger.iter() {
            if entry.orphan {
                orphans += 1;
                continue;
            }
            due.extend(entry.due().map(|at| (at, *ticket)));
            let held = entry.held();
            let sum = sums.entry(entry.target).or_default();
            sum.requests += held.requests;
            sum.uncached_prefill_tokens = sum.uncached_prefill_tokens.saturating_add(held.uncached_prefill_tokens);
            sum.unseen_prefill_tokens = sum.unseen_prefill_tokens.saturating_add(held.unseen_prefill_tokens);
            sum.reserved_kv_tokens = sum.reserved_kv_tokens.saturating_add(held.reserved_kv_tokens);
            let id = entry.target.instance;
            let instance = self.index.get(&id).and_then(|&slot| self.roster.get(slot));
            let Some(instance) = instance else {
                return Err(format!("{ticket:?} is charged to instance {id}, which does not exist"));
            };
            *trials.entry(id).or_insert(0) += u32::from(instance.health.holds_trial(entry.stamp));
            *last_resorts.entry(id).or_insert(0) += u32::from(instance.health.holds_last_resort(entry.stamp));
        }
        if orphans != self.ledger.orphans() {
            return Err(format!("{orphans} orphans in the ledger, {} counted", self.ledger.orphans()));
        }
        if due != *self.ledger.due() {
            return Err(format!("{due:?} wait for the end of their prefill, {:?} are queued", self.ledger.due()));
        }
        for instance in self.roster.iter() {
            for (rank, state) in instance.ranks.iter().enumerate() {
                let target = Target { instance: instance.id, rank: plimsoll_core::Rank(rank as u16) };
                let sum = sums.remove(&target).unwrap_or_default();
                if sum != state.own {
                    return Err(format!("{target:?}: entries sum to {sum:?}, counters say {:?}", state.own));
                }
            }
            let held = trials.remove(&instance.id).unwrap_or(0);
            if held != instance.health.trials() {
                let counted = instance.health.trials();
                return Err(format!("instance {}: {held} trials in flight, {counted} counted", instance.id));
            }
            let held = last_resorts.remove(&instance.id).unwrap_or(0);
            let counted = instance.health.last_resorts();
            if held != counted {
                return Err(format!("instance {}: {held} sent while it was out, {counted} counted", instance.id));
            }
        }
        match sums.pop_first() {
            Some((target, sum)) => Err(format!("{target:?} holds {sum:?} and does not exist")),
            None => Ok(()),
        }
    }

    fn check_glances(&self) -> Result<(), String> {
        match self.roster.out_of_line() {
            Some(instance) => Err(format!("instance {}: what choices read of it is not what it is", instance.id)),
            None => Ok(()),
        }
    }

    fn check_pools(&self) -> Result<(), String> {
        for (_, pool) in self.pools.iter() {
            let model = &pool.model;
            if !pool.listed_rows(&self.roster).eq(pool.rows.iter().copied()) {
                return Err(format!("the pool of {model} does not list its members' ranks"));
            }
            for &slot in &pool.members {
                let serves = |i: &crate::instance::Instance| i.spec.models.iter().any(|m| m == model);
                if !self.roster.get(slot).is_some_and(serves) {
                    return Err(format!("the pool of {model} names slot {slot}, which does not serve it"));
                }
            }
        }
        for (id, &slot) in &self.index {
            let Some(instance) = self.roster.get(slot).filter(|i| i.id == *id) else {
                return Err(format!("instance {id} is indexed at slot {slot}, which holds another"));
            };
            for model in &instance.spec.models {
                let members = self
                    .pools
                    .find(model)
                    .map_or(0, |p| self.pools.at(p).members.iter().filter(|&&s| s == slot).count());
                if members != 1 {
                    return Err(format!("instance {id} is {members} times in the pool of {model}"));
                }
            }
        }
        Ok(())
    }
}
