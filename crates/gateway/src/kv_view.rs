//! What the engines hold, per model, as far as they say so or it can be told from what is sent there: the gateway's side of
//! [`plimsoll_cache::view`].
//!
//! One lock per process, held for microseconds: a prompt's names are computed outside it.

use parking_lot::Mutex;
use plimsoll_cache::chain::Namespace;
use plimsoll_cache::view::{FleetView, Hit, Prompt, PublisherView, ViewConfig, Want};
use plimsoll_core::{EngineKind, KvBatch, Nanos, Target};
use plimsoll_protocol::request::PromptIds;
use std::collections::BTreeMap;

/// The views of all models.
#[derive(Debug, Default)]
pub struct KvViews {
    views: Mutex<Views>,
}

/// What prompts are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// Token ids, as in engines' events.
    Ids,
    /// The text as it stands in the body, in grams (`PromptText`): for prompts that cannot be tokenised here. What engines hold of
    /// those is always assumed, from what was sent there.
    Text,
}

impl Basis {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Basis::Ids => "token_ids",
            Basis::Text => "text",
        }
    }
}

/// One of the views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewName<'a> {
    pub basis: Basis,
    pub model: &'a str,
}

/// What another name of a model stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alias {
    /// The model whose KV it uses.
    pub model: String,
    /// The adapter on it.
    pub adapter: Option<String>,
}

/// Grams of a block of text: 256 bytes, about 64 tokens.
pub(crate) const TEXT_BLOCK_GRAMS: u32 = 64;

#[derive(Debug, Default)]
struct Views {
    by_ids: BTreeMap<String, FleetView>,
    by_text: BTreeMap<String, FleetView>,
    /// Other names of models, and what they stand for.
    aliases: BTreeMap<String, Alias>,
    /// Whose word counts for a target.
    entitled: BTreeMap<(Basis, String, Target), Entry>,
    entries: u64,
}

/// The right to speak for a target. The one that entered last has it, however late those before it end: a task that is told
/// to stop may still have a word to say, or its leave to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u64);

impl Views {
    fn of(&self, basis: Basis) -> &BTreeMap<String, FleetView> {
        match basis {
            Basis::Ids => &self.by_ids,
            Basis::Text => &self.by_text,
        }
    }

    fn of_mut(&mut self, basis: Basis) -> &mut BTreeMap<String, FleetView> {
        match basis {
            Basis::Ids => &mut self.by_ids,
            Basis::Text => &mut self.by_text,
        }
    }

    fn get(&mut self, name: ViewName<'_>) -> Option<&mut FleetView> {
        self.of_mut(name.basis).get_mut(name.model)
    }

    fn view(&mut self, name: ViewName<'_>, target: Target, entry: Entry) -> Option<&mut FleetView> {
        let entitled = self.entitled.get(&(name.basis, name.model.to_owned(), target)) == Some(&entry);
        self.get(name).filter(|_| entitled)
    }

    fn all(&self) -> impl Iterator<Item = (Basis, &String, &FleetView)> + Clone {
        let ids = self.by_ids.iter().map(|(model, view)| (Basis::Ids, model, view));
        ids.chain(self.by_text.iter().map(|(model, view)| (Basis::Text, model, view)))
    }
}

/// What is believed of a target that a request goes to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Routed {
    pub hit: Hit,
    /// It is a belief, which the report can be held against.
    pub heard: bool,
    /// It is the target's own word, and counts.
    pub told: bool,
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
    /// Names by which an engine's model and its adapters are asked for. The last engine that says so is right.
    pub(crate) fn name(&self, aliases: &BTreeMap<String, Alias>) {
        self.views.lock().aliases.extend(aliases.iter().map(|(name, alias)| (name.clone(), alias.clone())));
    }

    /// A target of which nothing is known yet; what was believed of it before is forgotten.
    pub(crate) fn add(&self, model: &str, target: Target, kind: EngineKind, block_tokens: Option<u32>) -> Entry {
        self.enter(Basis::Ids, model, target, |view| {
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
        let add = |view: &mut FleetView| view.add_approximate(target, kind, page_tokens, capacity_tokens);
        self.enter(Basis::Ids, model, target, add)
    }

    /// What any engine holds of texts, as far as that can be told from what is sent there.
    pub(crate) fn add_text(&self, model: &str, target: Target, kind: EngineKind, capacity_grams: u64) -> Entry {
        let add = |view: &mut FleetView| view.add_approximate(target, kind, Some(TEXT_BLOCK_GRAMS), capacity_grams);
        self.enter(Basis::Text, model, target, add)
    }

    /// A token has more or fewer bytes than was thought, and a cache room for more or less text.
    pub(crate) fn resize_text(&self, model: &str, target: Target, entry: Entry, capacity_grams: u64) {
        let name = ViewName { basis: Basis::Text, model };
        if let Some(view) = self.views.lock().view(name, target, entry) {
            view.resize(target, capacity_grams);
        }
    }

    fn enter(&self, basis: Basis, model: &str, target: Target, change: impl FnOnce(&mut FleetView)) -> Entry {
        let mut views = self.views.lock();
        views.entries += 1;
        let entry = Entry(views.entries);
        views.entitled.insert((basis, model.to_owned(), target), entry);
        let views = views.of_mut(basis);
        change(views.entry(model.to_owned()).or_insert_with(|| FleetView::new(ViewConfig::default())));
        entry
    }

    /// The engine may have lost its cache.
    pub(crate) fn lost(&self, name: ViewName<'_>, target: Target) {
        if let Some(view) = self.views.lock().get(name) {
            view.lost(target);
        }
    }

    pub(crate) fn remove(&self, name: ViewName<'_>, target: Target, entry: Entry) {
        let mut views = self.views.lock();
        if let Some(view) = views.view(name, target, entry) {
            view.remove(target);
            if view.publishers(Nanos::ZERO).next().is_none() {
                views.of_mut(name.basis).remove(name.model);
                if !views.by_ids.contains_key(name.model) && !views.by_text.contains_key(name.model) {
                    views.aliases.retain(|_, alias| alias.model != name.model);
                }
            }
            views.entitled.remove(&(name.basis, name.model.to_owned(), target));
        }
    }

    /// Returns the number to ask a replay from, if there is one to ask for.
    pub(crate) fn said(&self, now: Nanos, model: &str, target: Target, entry: Entry, said: Said) -> Option<u64> {
        let mut views = self.views.lock();
        let view = views.view(ViewName { basis: Basis::Ids, model }, target, entry)?;
        let emptied = view.emptied(target);
        let wants = match said {
            Said::Live { seq, batch } => view.live(now, target, seq, batch),
            Said::Replayed { seq, batch } => view.replayed(now, target, seq, batch),
            Said::ReplayEnded => view.replay_ended(now, target),
            Said::Gone => {
                view.gone(now, target);
                Vec::new()
            }
        };
        if view.emptied(target) != emptied
            && let Some(texts) = views.by_text.get_mut(model)
        {
            texts.lost(target);
        }
        wants.into_iter().map(|Want::Replay { from, .. }| from).next_back()
    }

    /// Time passes for a target. Replays that are due are asked for by its stream's next message.
    pub(crate) fn tick(&self, now: Nanos, model: &str, target: Target, entry: Entry) {
        if let Some(view) = self.views.lock().view(ViewName { basis: Basis::Ids, model }, target, entry) {
            let _ = view.tick_one(now, target);
        }
    }

    /// A prompt's block names in the families of a model's engines; `None` where nothing can be said of what any engine holds.
    #[must_use]
    pub fn prompt(&self, basis: Basis, model: Option<&str>, ids: &PromptIds) -> Option<(String, Prompt)> {
        let views = self.views.lock();
        let by_model = views.of(basis);
        let alias = model.filter(|model| !by_model.contains_key(*model)).and_then(|model| views.aliases.get(model));
        let (model, view) = match alias.map(|alias| alias.model.as_str()).or(model) {
            Some(model) => by_model.get_key_value(model)?,
            None if by_model.len() == 1 => by_model.first_key_value()?,
            None => return None,
        };
        let families = view.families();
        let (model, adapter) = (model.clone(), alias.and_then(|alias| alias.adapter.clone()));
        drop(views);
        let namespace = Namespace {
            cache_salt: ids.cache_salt.as_deref(),
            lora: ids.lora.as_deref().or(adapter.as_deref()),
            extra_key: ids.extra_key.as_deref(),
        };
        let prompt = Prompt::new(&families, namespace, &ids.ids);
        (!families.is_empty()).then_some((model, prompt))
    }

    /// Nothing can be said of what any engine holds.
    #[must_use]
    pub fn is_empty(&self, basis: Basis) -> bool {
        self.views.lock().of(basis).is_empty()
    }

    /// How much of it each target has, by target.
    #[must_use]
    pub fn hits(&self, now: Nanos, name: ViewName<'_>, prompt: &Prompt) -> BTreeMap<Target, Hit> {
        self.views.lock().get(name).map(|view| view.hits(now, prompt)).unwrap_or_default()
    }

    /// The request goes there now.
    pub(crate) fn routed(&self, now: Nanos, name: ViewName<'_>, target: Target, prompt: &Prompt) -> Routed {
        let mut views = self.views.lock();
        let Some(view) = views.get(name) else { return Routed::default() };
        let (heard, hit) = (view.heard(target), view.routed(now, target, prompt));
        Routed { hit, heard, told: view.told(now, target) }
    }

    /// The request runs there no more. Once for every [`KvViews::routed`].
    pub(crate) fn left(&self, name: ViewName<'_>, target: Target, prompt: &Prompt) {
        if let Some(view) = self.views.lock().get(name) {
            view.left(target, prompt);
        }
    }

    /// The request that went there at `routed` has run, at least as far as its first output.
    pub(crate) fn ran(&self, routed: Nanos, now: Nanos, name: ViewName<'_>, target: Target, prompt: &Prompt) {
        if let Some(view) = self.views.lock().get(name) {
            view.ran(routed, now, target, prompt);
        }
    }

    /// The request did not run there, or not to its end.
    pub(crate) fn withdrawn(&self, routed: Nanos, name: ViewName<'_>, target: Target, prompt: &Prompt) {
        if let Some(view) = self.views.lock().get(name) {
            view.withdrawn(routed, target, prompt);
        }
    }

    pub(crate) fn reported(
        &self,
        now: Nanos,
        name: ViewName<'_>,
        target: Target,
        prompt: &Prompt,
        believed: Hit,
        cached: u64,
    ) {
        if let Some(view) = self.views.lock().get(name) {
            view.reported(now, target, prompt, believed, cached);
        }
    }

    /// Every publisher, for operators.
    #[must_use]
    pub fn publishers(&self, now: Nanos) -> Vec<(Basis, String, Target, PublisherView)> {
        let views = self.views.lock();
        let all = views.all().flat_map(|(basis, model, view)| {
            view.publishers(now).map(move |(target, state)| (basis, model.clone(), target, state))
        });
        all.collect()
    }

    /// Blocks of all indexes, and about their bytes.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let views = self.views.lock();
        let views = views.all().map(|(.., view)| view);
        (views.clone().map(FleetView::blocks).sum(), views.map(FleetView::about_bytes).sum())
    }
}

#[cfg(test)]
mod tests;
