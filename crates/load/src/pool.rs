//! Which instances serve which model, as dense lists of slots: the choice walks indices and hashes no string per
//! candidate. Lists change only with membership.

use crate::instance::Instance;
use crate::prefill_rate::median;
use crate::reconcile::TrustClock;
use crate::roster::{Roster, Row};
use plimsoll_core::Nanos;
use std::collections::BTreeMap;

/// How long the means of a pool are kept before they are computed again.
const MEAN_FRESH: Nanos = Nanos::from_millis(100);

/// Instances of one model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    pub model: String,
    /// Slots in the order they joined.
    pub members: Vec<usize>,
    /// Their serving ranks, in the same order.
    pub rows: Vec<Row>,
    /// Computed last, and when.
    mean: Option<(Nanos, Mean)>,
}

/// What its members are like, taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Mean {
    /// Prefill rate to expect of a member that was never observed: the median of those that were, in tokens per second. Where no member
    /// ever said what was cached, the median of what they were charged for: the same for all, so that nobody looks fast for
    /// what it holds. `None` while nobody was observed at all.
    pub tokens_per_s: Option<f64>,
    /// Uncached prompt tokens in front of a rank, ours and what is believed of others'.
    pub front_tokens: f64,
}

impl Pool {
    /// Members with their slots.
    pub(crate) fn instances<'a>(&'a self, roster: &'a Roster) -> impl Iterator<Item = (usize, &'a Instance)> {
        self.members.iter().filter_map(|&slot| Some((slot, roster.get(slot)?)))
    }

    /// What [`Pool::rows`] should be.
    pub(crate) fn listed_rows<'a>(&'a self, roster: &'a Roster) -> impl Iterator<Item = Row> + 'a {
        self.members.iter().flat_map(|&slot| roster.rows(slot)).copied()
    }

    /// At most [`MEAN_FRESH`] old.
    pub(crate) fn mean(&mut self, roster: &Roster, clock: &TrustClock, now: Nanos) -> Mean {
        if let Some((at, mean)) = self.mean
            && now.since(at) < MEAN_FRESH
        {
            return mean;
        }
        let mean = Mean { tokens_per_s: self.peer_rate(roster), front_tokens: self.front_tokens(roster, clock) };
        self.mean = Some((now, mean));
        mean
    }

    fn peer_rate(&self, roster: &Roster) -> Option<f64> {
        let rates = |of: fn(&Instance) -> Option<f64>| -> Vec<f64> {
            self.instances(roster).filter_map(|(_, instance)| of(instance)).collect()
        };
        let mut known = rates(Instance::prefill_tokens_per_s);
        if known.is_empty() {
            known = rates(Instance::charged_tokens_per_s);
        }
        (!known.is_empty()).then(|| median(&mut known))
    }

    fn front_tokens(&self, roster: &Roster, clock: &TrustClock) -> f64 {
        let front = |row: &Row| {
            let rank = roster.glance(*row);
            rank.uncached_prefill_tokens + rank.foreign.at(clock).prefill_tokens
        };
        self.rows.iter().map(front).sum::<f64>() / self.rows.len().max(1) as f64
    }
}

/// All pools. A pool lives as long as it has members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    by_model: BTreeMap<String, usize>,
    list: Vec<Pool>,
    free: Vec<usize>,
}

impl Pools {
    pub(crate) fn join(&mut self, slot: usize, models: &[String]) {
        for model in models {
            let index = self.by_model.get(model).copied().unwrap_or_else(|| self.add(model));
            let pool = &mut self.list[index];
            if !pool.members.contains(&slot) {
                pool.members.push(slot);
            }
        }
    }

    pub(crate) fn leave(&mut self, slot: usize, models: &[String]) {
        for model in models {
            let Some(&index) = self.by_model.get(model) else { continue };
            let pool = &mut self.list[index];
            pool.members.retain(|&member| member != slot);
            if pool.members.is_empty() {
                *pool = Pool::default();
                self.by_model.remove(model);
                self.free.push(index);
            }
        }
    }

    /// Lists the rows of the pools of these models anew. To be called when members or their ranks have changed.
    pub(crate) fn list_rows(&mut self, models: &[String], roster: &Roster) {
        for model in models {
            let Some(&index) = self.by_model.get(model) else { continue };
            let pool = &mut self.list[index];
            pool.rows = pool.listed_rows(roster).collect();
        }
    }

    /// Index for [`Pools::at`]; valid until membership changes.
    pub(crate) fn find(&self, model: &str) -> Option<usize> {
        self.by_model.get(model).copied()
    }

    pub(crate) fn at(&self, index: usize) -> &Pool {
        &self.list[index]
    }

    pub(crate) fn at_mut(&mut self, index: usize) -> &mut Pool {
        &mut self.list[index]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_model.is_empty()
    }

    /// Pools with their indices, by model name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Pool)> {
        self.by_model.values().map(|&index| (index, &self.list[index]))
    }

    pub(crate) fn models(&self) -> Vec<String> {
        self.by_model.keys().cloned().collect()
    }

    fn add(&mut self, model: &str) -> usize {
        let pool = Pool { model: model.to_owned(), ..Pool::default() };
        let index = match self.free.pop() {
            Some(index) => {
                self.list[index] = pool;
                index
            }
            None => {
                self.list.push(pool);
                self.list.len() - 1
            }
        };
        self.by_model.insert(model.to_owned(), index);
        index
    }
}
