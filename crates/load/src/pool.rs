//! Which instances serve which model, as dense lists of slots: the choice walks indices and hashes no string per
//! candidate. Lists change only with membership.

use std::collections::BTreeMap;

/// Instances of one model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    /// Slots in the order they joined.
    pub members: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    by_model: BTreeMap<String, Pool>,
}

impl Pools {
    pub(crate) fn join(&mut self, slot: usize, models: &[String]) {
        for model in models {
            let pool = self.by_model.entry(model.clone()).or_default();
            if !pool.members.contains(&slot) {
                pool.members.push(slot);
            }
        }
    }

    pub(crate) fn leave(&mut self, slot: usize, models: &[String]) {
        for model in models {
            let Some(pool) = self.by_model.get_mut(model) else { continue };
            pool.members.retain(|&member| member != slot);
            if pool.members.is_empty() {
                self.by_model.remove(model);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_model.is_empty()
    }

    pub(crate) fn get(&self, model: &str) -> Option<(&str, &Pool)> {
        self.by_model.get_key_value(model).map(|(name, pool)| (name.as_str(), pool))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Pool)> {
        self.by_model.iter().map(|(name, pool)| (name.as_str(), pool))
    }

    pub(crate) fn models(&self) -> Vec<String> {
        self.by_model.keys().cloned().collect()
    }
}
