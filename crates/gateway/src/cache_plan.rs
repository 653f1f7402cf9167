//! One request and the caches: who is believed to hold its prompt, which turn of its session it is, and what came of both.

use crate::funnel::{Place, Told};
use crate::state::Shared;
use plimsoll_cache::funnel::{Answer, CellKey, Reported};
use plimsoll_cache::session::{PromptEnd, Turn, TurnEnd, realm};
use plimsoll_cache::view::{Hit, Prompt};
use plimsoll_core::{Class, Outcome, RequestId, Target};
use plimsoll_load::HeldTokens;
use plimsoll_pools::chunk::Usage;
use plimsoll_protocol::request::PromptIds;
use std::sync::Arc;

/// What is known of a prompt whose token ids are known.
#[derive(Debug)]
pub struct CachePlan {
    model: String,
    prompt: Arc<Prompt>,
    turn: Turn,
    end: Option<PromptEnd>,
    /// What each target holds, in ascending order of targets.
    hits: Vec<(Target, HeldTokens)>,
    /// Where it went, and what was believed of that target.
    placed: Option<(Target, Hit)>,
}

/// The request that is placed.
#[derive(Clone, Debug)]
pub(crate) struct Whose {
    pub request: RequestId,
    pub attempt: u8,
    pub class: Class,
    pub tenant: Arc<str>,
}

impl CachePlan {
    /// `None` where no engine of the model tells what it holds.
    pub(crate) fn from_ids(shared: &Shared, ids: &PromptIds, model: Option<&str>, tenant: &str) -> Option<CachePlan> {
        let (model, prompt) = shared.kv_views.prompt(model, ids)?;
        let realm = realm(&model, tenant);
        let (turn, end) = prompt.chains().next().map_or((Turn::FIRST, None), |(family, names)| {
            let turn = shared.sessions.lock().find(shared.now(), realm, names, family.block_tokens, &ids.ids);
            (turn, PromptEnd::of(realm, names, family.block_tokens, &ids.ids, ids.opening_tokens))
        });
        let mut plan = CachePlan { model, prompt: Arc::new(prompt), turn, end, hits: Vec::new(), placed: None };
        plan.look(shared);
        Some(plan)
    }

    /// Asks again who has how much.
    pub(crate) fn look(&mut self, shared: &Shared) {
        let hits = shared.kv_views.hits(shared.now(), &self.model, &self.prompt);
        let held = |hit: Hit| HeldTokens { device_tokens: hit.device_tokens, host_tokens: hit.host_tokens };
        self.hits = hits.into_iter().map(|(target, hit)| (target, held(hit))).collect();
    }

    #[must_use]
    pub fn hits(&self) -> &[(Target, HeldTokens)] {
        &self.hits
    }

    /// Tokens of the longest match anywhere.
    #[must_use]
    pub fn best_tokens(&self) -> u64 {
        self.hits.iter().map(|(_, held)| held.tokens()).max().unwrap_or(0)
    }

    /// Which turn of its session it is.
    #[must_use]
    pub fn turn(&self) -> &Turn {
        &self.turn
    }

    /// It goes there now: its blocks will be there soon.
    pub(crate) fn placed(&mut self, shared: &Shared, target: Target, whose: Whose) {
        let now = shared.now();
        if let Some((failed, _)) = self.placed {
            shared.kv_views.withdrawn(&self.model, failed, &self.prompt);
        }
        let (hit, told) = shared.kv_views.routed(now, &self.model, target, &self.prompt);
        self.placed = Some((target, hit));
        let believed = told.then_some(hit);
        let answer = self.turn.previous.and_then(|previous| {
            // Where thoughts were taken out the answer stands elsewhere, and is other tokens.
            let output_tokens = previous.output_tokens.filter(|_| previous.whole)?;
            Some(Answer { prompt_tokens: previous.prompt_tokens, output_tokens, target: previous.target })
        });
        shared.funnel.tell(|| {
            Told::Placed(Box::new(Place {
                model: self.model.clone(),
                at: now,
                prompt: self.prompt.clone(),
                request: whose.request,
                attempt: whose.attempt,
                key: CellKey { class: whose.class, tenant: whose.tenant },
                target,
                believed,
                answer,
            }))
        });
    }

    /// The request is over, and this is what the engine said of it.
    pub(crate) fn ended(&self, shared: &Shared, request: RequestId, outcome: Outcome, usage: Option<Usage>) {
        let Some((target, believed)) = self.placed else { return };
        let now = shared.now();
        if outcome != Outcome::Completed {
            shared.kv_views.withdrawn(&self.model, target, &self.prompt);
            shared.funnel.tell(|| Told::Failed { model: self.model.clone(), request });
            return;
        }
        let cached_tokens = usage.and_then(|usage| usage.cached_tokens);
        if let Some(cached) = cached_tokens {
            shared.kv_views.reported(now, &self.model, target, &self.prompt, believed, cached);
        }
        if let Some(end) = self.end {
            let output_tokens = usage.map(|usage| usage.completion_tokens);
            shared.sessions.lock().ended(now, end, &self.turn, TurnEnd { cached_tokens, output_tokens, target });
        }
        shared.funnel.tell(|| {
            let reported =
                cached_tokens.map(|tokens| Reported { tokens, tiers: usage.and_then(|usage| usage.cached_by_tier) });
            Told::Ended { model: self.model.clone(), at: now, request, reported }
        });
    }
}
