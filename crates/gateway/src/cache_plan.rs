//! One request and the caches: who is believed to hold its prompt, and whether that was so.

use crate::state::Shared;
use plimsoll_cache::view::{Hit, Prompt};
use plimsoll_core::Target;
use plimsoll_protocol::request::PromptIds;

/// What is known of a prompt whose token ids are known.
#[derive(Debug)]
pub struct CachePlan {
    model: String,
    prompt: Prompt,
    /// Tokens per target, in ascending order of targets.
    hits: Vec<(Target, u64)>,
    /// Where it went, and what was believed of that target.
    placed: Option<(Target, Hit)>,
}

impl CachePlan {
    /// `None` where no engine of the model tells what it holds.
    pub(crate) fn from_ids(shared: &Shared, ids: &PromptIds, model: Option<&str>) -> Option<CachePlan> {
        let (model, prompt) = shared.kv_views.prompt(model, ids)?;
        let mut plan = CachePlan { model, prompt, hits: Vec::new(), placed: None };
        plan.look(shared);
        Some(plan)
    }

    /// Asks again who has how much.
    pub(crate) fn look(&mut self, shared: &Shared) {
        let hits = shared.kv_views.hits(shared.now(), &self.model, &self.prompt);
        self.hits = hits.into_iter().map(|(target, hit)| (target, hit.tokens())).collect();
    }

    #[must_use]
    pub fn hits(&self) -> &[(Target, u64)] {
        &self.hits
    }

    /// Tokens of the longest match anywhere.
    #[must_use]
    pub fn best_tokens(&self) -> u64 {
        self.hits.iter().map(|(_, tokens)| *tokens).max().unwrap_or(0)
    }

    /// It goes there now: its blocks will be there soon.
    pub(crate) fn placed(&mut self, shared: &Shared, target: Target) {
        let now = shared.now();
        let hit = shared.kv_views.hits(now, &self.model, &self.prompt).get(&target).copied().unwrap_or_default();
        shared.kv_views.routed(now, &self.model, target, &self.prompt);
        self.placed = Some((target, hit));
    }

    /// The engine has said how many tokens it had.
    pub(crate) fn reported(&self, shared: &Shared, cached_tokens: u64) {
        if let Some((target, believed)) = self.placed {
            shared.kv_views.reported(shared.now(), &self.model, target, &self.prompt, believed, cached_tokens);
        }
    }
}
