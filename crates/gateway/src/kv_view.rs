//! What the engines hold, per model, as far as they say so: the gateway's side of [`plimsoll_cache::view`].
//!
//! One lock per process, held for microseconds: a prompt's names are computed outside it.

use parking_lot::Mutex;
use plimsoll_cache::chain::Namespace;
use plimsoll_cache::view::{FleetView, Hit, Prompt, PublisherView, ViewConfig, Want};
use plimsoll_core::{EngineKind, InstanceId, KvBatch, Nanos, Target};
use plimsoll_protocol::request::PromptIds;
use std::collections::BTreeMap;

/// The views of all models.
#[derive(Debug, Default)]
pub struct KvViews {
    views: Mutex<Views>,
}

#[derive(Debug, Default)]
struct Views {
    by_model: BTreeMap<String, FleetView>,
    /// Whose word counts for a target.
    entitled: BTreeMap<(String, Target), Entry>,
    entries: u64,
}

/// The right to speak for a target. The one that entered last has it, however late those before it end: a task that is told
/// to stop may still have a word to say, or its leave to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u64);

impl Views {
    fn view(&mut self, model: &str, target: Target, entry: Entry) -> Option<&mut FleetView> {
        let entitled = self.entitled.get(&(model.to_owned(), target)) == Some(&entry);
        self.by_model.get_mut(model).filter(|_| entitled)
    }
}

/// What an engine's stream said.
#[derive(Debug)]
pub(crate) enum Said {
    Live {
        seq: u64,
        batch: KvBatch,
    },
    Replayed {
        seq: u64,
        batch: KvBatch,
    },
    ReplayEnded,
    /// The engine's process has ended.
    Gone,
}

impl KvViews {
    /// A target of which nothing is known yet; what was believed of it before is forgotten.
    pub(crate) fn add(&self, model: &str, target: Target, kind: EngineKind, block_tokens: Option<u32>) -> Entry {
        self.enter(model, target, |view| {
            view.remove(target);
            view.add(target, kind, block_tokens);
        })
    }

    /// An engine that tells nothing: what it holds is taken from what is sent there.
    pub(crate) fn add_approximate(
        &self,
        model: &str,
        target: Target,
        kind: EngineKind,
        page_tokens: Option<u32>,
        capacity_tokens: u64,
    ) -> Entry {
        self.enter(model, target, |view| view.add_approximate(target, kind, page_tokens, capacity_tokens))
    }

    fn enter(&self, model: &str, target: Target, change: impl FnOnce(&mut FleetView)) -> Entry {
        let mut views = self.views.lock();
        views.entries += 1;
        let entry = Entry(views.entries);
        views.entitled.insert((model.to_owned(), target), entry);
        change(views.by_model.entry(model.to_owned()).or_insert_with(|| FleetView::new(ViewConfig::default())));
        entry
    }

    /// The engine may have lost its cache.
    pub(crate) fn lost(&self, model: &str, target: Target) {
        if let Some(view) = self.views.lock().by_model.get_mut(model) {
            view.lost(target);
        }
    }

    pub(crate) fn remove(&self, model: &str, target: Target, entry: Entry) {
        let mut views = self.views.lock();
        if let Some(view) = views.view(model, target, entry) {
            view.remove(target);
            if view.publishers(Nanos::ZERO).next().is_none() {
                views.by_model.remove(model);
            }
            views.entitled.remove(&(model.to_owned(), target));
        }
    }

    /// Returns the number to ask a replay from, if there is one to ask for.
    pub(crate) fn said(&self, now: Nanos, model: &str, target: Target, entry: Entry, said: Said) -> Option<u64> {
        let mut views = self.views.lock();
        let view = views.view(model, target, entry)?;
        let wants = match said {
            Said::Live { seq, batch } => view.live(now, target, seq, batch),
            Said::Replayed { seq, batch } => view.replayed(now, target, seq, batch),
            Said::ReplayEnded => view.replay_ended(now, target),
            Said::Gone => {
                view.gone(now, target);
                return None;
            }
        };
        wants.into_iter().map(|Want::Replay { from, .. }| from).next_back()
    }

    /// Time passes in all views. Replays that are due are asked for by the streams' next message.
    pub(crate) fn tick(&self, now: Nanos) {
        for view in self.views.lock().by_model.values_mut() {
            let _ = view.tick(now);
        }
    }

    /// A prompt's block names in the families of a model's engines; `None` where no engine tells what it holds.
    #[must_use]
    pub fn prompt(&self, model: Option<&str>, ids: &PromptIds) -> Option<(String, Prompt)> {
        let views = self.views.lock();
        let (model, view) = match model {
            Some(model) => views.by_model.get_key_value(model)?,
            None if views.by_model.len() == 1 => views.by_model.first_key_value()?,
            None => return None,
        };
        let families = view.families();
        let model = model.clone();
        drop(views);
        let namespace = Namespace {
            cache_salt: ids.cache_salt.as_deref(),
            lora: ids.lora.as_deref(),
            extra_key: ids.extra_key.as_deref(),
        };
        let prompt = Prompt::new(&families, namespace, &ids.ids);
        (!families.is_empty()).then_some((model, prompt))
    }

    /// No engine tells what it holds.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.views.lock().by_model.is_empty()
    }

    /// How much of it each target has, by target.
    #[must_use]
    pub fn hits(&self, now: Nanos, model: &str, prompt: &Prompt) -> BTreeMap<Target, Hit> {
        self.views.lock().by_model.get(model).map(|view| view.hits(now, prompt)).unwrap_or_default()
    }

    /// The request goes there now. What is believed of that target, and whether that is the target's own word.
    pub(crate) fn routed(&self, now: Nanos, model: &str, target: Target, prompt: &Prompt) -> (Hit, bool) {
        let mut views = self.views.lock();
        let Some(view) = views.by_model.get_mut(model) else { return (Hit::default(), false) };
        let hit = view.routed(now, target, prompt);
        (hit, view.told(now, target))
    }

    /// The request did not run there, or not to its end.
    pub(crate) fn withdrawn(&self, model: &str, target: Target, prompt: &Prompt) {
        if let Some(view) = self.views.lock().by_model.get_mut(model) {
            view.withdrawn(target, prompt);
        }
    }

    pub(crate) fn reported(
        &self,
        now: Nanos,
        model: &str,
        target: Target,
        prompt: &Prompt,
        believed: Hit,
        cached: u64,
    ) {
        if let Some(view) = self.views.lock().by_model.get_mut(model) {
            view.reported(now, target, prompt, believed, cached);
        }
    }

    /// Every publisher, for operators.
    #[must_use]
    pub fn publishers(&self, now: Nanos) -> Vec<(String, Target, PublisherView)> {
        let views = self.views.lock();
        let all = views
            .by_model
            .iter()
            .flat_map(|(model, view)| view.publishers(now).map(move |(t, state)| (model.clone(), t, state)));
        all.collect()
    }

    /// Blocks and bytes of all indexes.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let views = self.views.lock();
        let views = views.by_model.values();
        (views.clone().map(FleetView::blocks).sum(), views.map(FleetView::bytes).sum())
    }

    /// Belief and reports of one engine, all ranks: tokens believed, tokens reported, mean error as a share of the prompt.
    #[must_use]
    pub fn belief(&self, now: Nanos, id: InstanceId) -> Option<(u64, u64, f64)> {
        let all = self.publishers(now);
        let own: Vec<_> =
            all.iter().filter(|(_, target, state)| target.instance == id && state.belief.reports > 0).collect();
        let sum = |f: fn(&PublisherView) -> u64| own.iter().map(|(.., state)| f(state)).sum::<u64>();
        let error = own.iter().map(|(.., state)| state.belief.error).fold(0.0, f64::max);
        (!own.is_empty()).then(|| (sum(|s| s.belief.believed_tokens), sum(|s| s.belief.reported_tokens), error))
    }
}

#[cfg(test)]
mod tests;
