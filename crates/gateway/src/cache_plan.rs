//! One request and the caches: who is believed to hold its prompt, which turn of its session it is, and what came of both.

use crate::funnel::{Place, Told};
use crate::kv_view::{Basis, Routed, ViewName};
use crate::state::Shared;
use plimsoll_cache::funnel::{Answer, CellKey, Reported};
use plimsoll_cache::session::{PromptEnd, Turn, TurnEnd, realm};
use plimsoll_cache::view::{Hit, Prompt};
use plimsoll_core::{Class, Nanos, Outcome, RequestId, Target};
use plimsoll_load::HeldTokens;
use plimsoll_pools::chunk::Usage;
use plimsoll_protocol::request::{PromptIds, RequestFacts};
use plimsoll_settings::Policy;
use plimsoll_traffic::class::Past;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A shorter text is not compared: some 250 tokens.
const SHORT_TEXT_BYTES: usize = 1_024;

/// Hits that are older are asked for again before a choice.
const STALE: Nanos = Nanos::from_millis(1);

/// Sessions are told apart by blocks of so many tokens at least.
const FEWEST_BLOCK_TOKENS: u32 = 16;

/// What is known of a prompt whose token ids are known, or its text at least.
#[derive(Debug)]
pub struct CachePlan {
    basis: Basis,
    model: String,
    prompt: Arc<Prompt>,
    /// What it is taken to have; for a text it is an estimate, and not the number of its grams.
    prompt_tokens: u64,
    turn: Turn,
    end: Option<PromptEnd>,
    /// What each target holds, in ascending order of targets.
    hits: Vec<(Target, HeldTokens)>,
    /// When that was asked.
    looked: Nanos,
    placed: Option<Placement>,
}

/// Where it went.
#[derive(Clone, Copy, Debug)]
struct Placement {
    target: Target,
    at: Nanos,
    /// What was believed of that target, in the view's units; `None` where there was no belief.
    believed: Option<Hit>,
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
    /// `None` where nothing can be said of what any engine of the model holds.
    pub(crate) fn from_ids(shared: &Shared, ids: &PromptIds, model: Option<&str>, tenant: &str) -> Option<CachePlan> {
        CachePlan::new(shared, Basis::Ids, ids, ids.ids.len() as u64, model, tenant)
    }

    /// By the text as it stands in the body, for a prompt that is taken to have so many tokens. `None` also for a short one, which is
    /// computed before it is worth a detour.
    pub(crate) fn from_text(
        shared: &Shared,
        facts: &RequestFacts,
        body: &[u8],
        prompt_tokens: u64,
        model: Option<&str>,
        tenant: &str,
    ) -> Option<CachePlan> {
        let text = facts.text.as_ref()?;
        let bytes: usize = text.spans.iter().flatten().map(Range::len).sum();
        if bytes < SHORT_TEXT_BYTES || shared.kv_views.is_empty(Basis::Text) {
            return None;
        }
        CachePlan::new(shared, Basis::Text, &text.grams(body), prompt_tokens, model, tenant)
    }

    fn new(
        shared: &Shared,
        basis: Basis,
        ids: &PromptIds,
        prompt_tokens: u64,
        model: Option<&str>,
        tenant: &str,
    ) -> Option<CachePlan> {
        let (model, prompt) = shared.kv_views.prompt(basis, model, ids)?;
        let realm = realm(&model, tenant);
        let (turn, end) = prompt.chains().next().map_or((Turn::FIRST, None), |(family, names)| {
            let (names, block_tokens) = coarse(names, family.block_tokens);
            let turn = shared.sessions.lock().find(shared.now(), realm, &names, block_tokens, &ids.ids);
            (turn, PromptEnd::of(realm, &names, block_tokens, &ids.ids, ids.opening_tokens))
        });
        let (prompt, hits) = (Arc::new(prompt), Vec::new());
        let mut plan =
            CachePlan { basis, model, prompt, prompt_tokens, turn, end, hits, looked: Nanos::ZERO, placed: None };
        plan.look(shared);
        Some(plan)
    }

    /// Asks again who has how much.
    pub(crate) fn look(&mut self, shared: &Shared) {
        self.looked = shared.now();
        let hits = shared.kv_views.hits(self.looked, self.view(), &self.prompt);
        let (tokens, units) = (self.prompt_tokens, self.prompt.tokens());
        let held = |hit: Hit| HeldTokens {
            device_tokens: scaled(hit.device_tokens, tokens, units),
            host_tokens: scaled(hit.host_tokens, tokens, units),
            shared_tokens: scaled(hit.shared_tokens, tokens, units),
        };
        self.hits = hits.into_iter().map(|(target, hit)| (target, held(hit))).collect();
    }

    /// It has waited since: others have been placed meanwhile, and caches have changed.
    pub(crate) fn is_stale(&self, shared: &Shared) -> bool {
        shared.now().since(self.looked) > STALE
    }

    fn view(&self) -> ViewName<'_> {
        ViewName { basis: self.basis, model: &self.model }
    }

    #[must_use]
    pub fn basis(&self) -> Basis {
        self.basis
    }

    #[must_use]
    pub fn hits(&self) -> &[(Target, HeldTokens)] {
        &self.hits
    }

    /// Tokens that the best engine which is not out need not compute; those in host memory less what loading them takes.
    #[must_use]
    pub fn best_tokens(&self, shared: &Shared, policy: &Policy) -> u64 {
        let is_in = |target: Target| shared.fleet.get(target.instance).is_some_and(|engine| !engine.is_ejected());
        let worth = |held: &HeldTokens| {
            held.worth_tokens(policy.assumed_prefill_tokens_per_s, policy.assumed_kv_load_tokens_per_s)
        };
        self.hits.iter().filter(|(target, _)| is_in(*target)).map(|(_, held)| worth(held)).max().unwrap_or(0)
    }

    /// What is known of its session.
    #[must_use]
    pub fn past(&self) -> Past {
        let known_tokens = self.turn.known_tokens(self.prompt_tokens, self.prompt.tokens());
        Past { hit_rounds: self.turn.hit_rounds, known_tokens }
    }

    /// Which turn of its session it is.
    #[must_use]
    pub fn turn(&self) -> &Turn {
        &self.turn
    }

    /// It goes there now: its blocks will be there soon.
    pub(crate) fn placed(&mut self, shared: &Shared, target: Target, whose: Whose) {
        let now = shared.now();
        if let Some(failed) = self.placed {
            shared.kv_views.withdrawn(failed.at, self.view(), failed.target, &self.prompt);
            shared.kv_views.left(self.view(), failed.target, &self.prompt);
        }
        let Routed { hit, heard, told } = shared.kv_views.routed(now, self.view(), target, &self.prompt);
        self.placed = Some(Placement { target, at: now, believed: heard.then_some(hit) });
        if self.basis == Basis::Text {
            return;
        }
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

    /// The request is over, and this is what the engine said of it. `began`: there was output.
    pub(crate) fn ended(
        &self,
        shared: &Shared,
        request: RequestId,
        outcome: Outcome,
        began: bool,
        usage: Option<Usage>,
    ) {
        if self.basis == Basis::Text {
            shared.funnel.tell(|| Told::Unnamed { model: self.model.clone() });
        }
        let Some(Placement { target, at, believed }) = self.placed else { return };
        let now = shared.now();
        shared.kv_views.left(self.view(), target, &self.prompt);
        if began || outcome == Outcome::Completed {
            shared.kv_views.ran(at, now, self.view(), target, &self.prompt);
        }
        if outcome != Outcome::Completed {
            shared.kv_views.withdrawn(at, self.view(), target, &self.prompt);
            if self.basis == Basis::Ids {
                shared.funnel.tell(|| Told::Failed { model: self.model.clone(), request });
            }
            return;
        }
        let cached_tokens = usage.and_then(|usage| usage.cached_tokens);
        let prompt_tokens = match (self.basis, usage) {
            (Basis::Text, Some(usage)) if usage.prompt_tokens > 0 => usage.prompt_tokens,
            _ => self.prompt_tokens,
        };
        let cached = cached_tokens.map(|cached| scaled(cached, self.prompt.tokens(), prompt_tokens));
        if let (Some(cached), Some(believed)) = (cached, believed) {
            shared.kv_views.reported(now, self.view(), target, &self.prompt, believed, cached);
        }
        if let Some(end) = self.end {
            let output_tokens = usage.map(|usage| usage.completion_tokens);
            let end_of_turn = TurnEnd { cached_tokens: cached, output_tokens, target };
            shared.sessions.lock().ended(now, end, &self.turn, end_of_turn);
        }
        if self.basis == Basis::Text {
            return;
        }
        shared.funnel.tell(|| {
            let reported =
                cached_tokens.map(|tokens| Reported { tokens, tiers: usage.and_then(|usage| usage.cached_by_tier) });
            Told::Ended { model: self.model.clone(), at: now, request, reported }
        });
    }
}

/// Names of blocks of at least sixteen tokens: with pages of one token a session would be looked for at every token.
fn coarse(names: &[u64], block_tokens: u32) -> (Cow<'_, [u64]>, u32) {
    match FEWEST_BLOCK_TOKENS.div_ceil(block_tokens.max(1)) {
        0 | 1 => (Cow::Borrowed(names), block_tokens),
        stride => {
            let every = stride as usize;
            let names: Vec<u64> = names.iter().skip(every - 1).step_by(every).copied().collect();
            (names.into(), block_tokens.max(1) * stride)
        }
    }
}

/// The same share of `whole` as `part` is of `of`, at most all of it.
fn scaled(part: u64, whole: u64, of: u64) -> u64 {
    if whole == of {
        return part;
    }
    let share = u128::from(part) * u128::from(whole) / u128::from(of.max(1));
    u64::try_from(share).unwrap_or(u64::MAX).min(whole)
}
