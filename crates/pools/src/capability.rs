//! What one engine can do, found out by asking it.
//!
//! Fleets mix releases: SGLang from 0.5.6 to 0.5.23 changed its load endpoint, its event encoding and its body keys;
//! vLLM hides half of its features behind flags. So nothing is assumed from a version number where an answer can be
//! looked at, whatever is missing is `None`, and [`Capability::degraded`] says in sentences what the gateway has to do
//! without and which flag would bring it (design rule 6: stock engines first, say what is degraded).
//!
//! Source: reference on SGLang, 0, 1 and 9; recorded engine behaviour.

use plimsoll_core::{EngineKind, LegRole};
use serde::Serialize;

/// The program behind the URL, finer than the adapter family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Product {
    #[serde(rename = "sglang")]
    Sglang,
    #[serde(rename = "vllm")]
    Vllm,
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    #[serde(rename = "other")]
    Other,
}

/// The record of one probe. Served as it is by the admin API.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Capability {
    pub kind: EngineKind,
    pub product: Product,
    pub version: Option<String>,
    pub models: Vec<ModelInfo>,
    /// Tokens in a KV page (SGLang) or block (vLLM): the grain of prefix hits.
    pub page_size_tokens: Option<u32>,
    /// Longest prompt plus output of the main model.
    pub context_tokens: Option<u64>,
    /// KV tokens that one DP rank can hold.
    pub kv_capacity_tokens: Option<u64>,
    /// Requests that one DP rank decodes at once.
    pub max_running_requests: Option<u64>,
    /// At least 1.
    pub dp_ranks: u16,
    /// Where token ids go in and come out.
    pub token_api: TokenApi,
    /// The chat route takes reasoning out of answers, which the token route does not.
    pub parses_reasoning: bool,
    /// Whether its chat route takes sampling defaults from the model's `generation_config.json`. `None`: it does not say.
    pub model_sampling: Option<bool>,
    pub kv_events: Option<KvEvents>,
    pub loads: LoadsForm,
    pub abort: AbortForm,
    pub priority: PriorityOrder,
    /// Do OpenAI answers say how many prompt tokens were cached? `None`: cannot be seen from outside.
    pub reports_cached_tokens: Option<bool>,
    /// `None`: the engine does not say.
    pub pd_role: Option<LegRole>,
    /// Cheap path whose 2xx answer means that the process answers. Never SGLang's `/health`, which runs a request.
    pub health_path: String,
    /// Which of the gateway's routes the engine lists; `None` where it lists nothing.
    pub routes: Option<Vec<String>>,
    /// What is missing, what that costs, and what would bring it. One sentence each.
    pub degraded: Vec<String>,
    /// Every question of the probe got an answer. Else "unknown" may only mean "too busy to say".
    pub complete: bool,
}

/// One name that requests may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelInfo {
    pub id: String,
    /// The model an adapter (LoRA) is laid on.
    pub parent: Option<String>,
    pub context_tokens: Option<u64>,
}

/// Token-level interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenApi {
    /// SGLang's `/generate` with `input_ids`.
    SglangGenerate,
    /// `/v1/completions` with an id list as prompt and `return_token_ids`.
    CompletionsIds,
    None,
}

/// Where an engine publishes what enters and leaves its KV cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KvEvents {
    /// One per DP rank, rank 0 first; wild-card hosts already replaced by the engine's own.
    pub endpoints: Vec<String>,
    /// Where missed events can be asked for again; empty where the engine keeps none.
    pub replay_endpoints: Vec<String>,
    pub topic: String,
    pub block_size_tokens: Option<u32>,
}

/// How the engine tells its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadsForm {
    /// SGLang 0.5.10 and later: `GET /v1/loads`.
    V1Loads,
    /// SGLang up to 0.5.20: `GET /get_load`.
    GetLoad,
    /// Prometheus gauges at `/metrics`.
    Metrics,
    /// llama.cpp: `GET /slots`.
    Slots,
    /// It does not: the gateway's own ledger is all there is.
    None,
}

/// How a request is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AbortForm {
    /// `POST /abort_request {"rid"}`. Matches by prefix, so rids must have one fixed length.
    SglangRid,
    /// Closing the connection is the abort.
    Disconnect,
    /// `POST /inference/v1/abort_requests` with vLLM's internal ids, on top of closing the connection.
    VllmInternalId,
}

/// Which priority value is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PriorityOrder {
    HigherFirst,
    LowerFirst,
    /// The engine has no priorities, or they are switched off.
    None,
    /// Cannot be seen from outside; a `priority` that the engine does not expect may be refused.
    Unknown,
}

impl Capability {
    /// A record that promises nothing, for an adapter to fill in.
    #[must_use]
    pub fn unknown(kind: EngineKind, product: Product) -> Self {
        Capability {
            kind,
            product,
            version: None,
            models: Vec::new(),
            page_size_tokens: None,
            context_tokens: None,
            kv_capacity_tokens: None,
            max_running_requests: None,
            dp_ranks: 1,
            token_api: TokenApi::None,
            parses_reasoning: false,
            model_sampling: None,
            kv_events: None,
            loads: LoadsForm::None,
            abort: AbortForm::Disconnect,
            priority: PriorityOrder::Unknown,
            reports_cached_tokens: None,
            pd_role: None,
            health_path: "/health".to_owned(),
            routes: None,
            degraded: Vec::new(),
            complete: true,
        }
    }

    /// This record after a probe of an engine known as `old`. A probe that got all its answers stands as it is. A busy
    /// engine keeps silent on some questions: as far as it can still be the same engine, what it did not say now is
    /// what it said before.
    #[must_use]
    pub fn after(self, old: &Capability) -> Capability {
        if self.complete || !self.may_be(old) {
            return self;
        }
        let (models, old) = (self.models, old.clone());
        Capability {
            version: self.version.or(old.version),
            models: if models.is_empty() { old.models } else { models },
            page_size_tokens: self.page_size_tokens.or(old.page_size_tokens),
            context_tokens: self.context_tokens.or(old.context_tokens),
            kv_capacity_tokens: self.kv_capacity_tokens.or(old.kv_capacity_tokens),
            max_running_requests: self.max_running_requests.or(old.max_running_requests),
            dp_ranks: if self.dp_ranks > 1 { self.dp_ranks } else { old.dp_ranks },
            kv_events: self.kv_events.or(old.kv_events),
            reports_cached_tokens: self.reports_cached_tokens.or(old.reports_cached_tokens),
            pd_role: self.pd_role.or(old.pd_role),
            routes: self.routes.or(old.routes),
            complete: false,
            ..old
        }
    }

    /// Nothing in this record says that it is another engine than `old`.
    fn may_be(&self, old: &Capability) -> bool {
        let base = |c: &Capability| -> Vec<String> {
            c.models.iter().filter(|m| m.parent.is_none()).map(|m| m.id.clone()).collect()
        };
        let version = self.version.as_ref().zip(old.version.as_ref());
        (self.product == old.product || self.product == Product::Other)
            && version.is_none_or(|(new, old)| new == old)
            && (self.models.is_empty() || base(self) == base(old))
    }

    /// Does SGLang's `/generate` work here?
    #[must_use]
    pub fn native_generate(&self) -> bool {
        self.token_api == TokenApi::SglangGenerate
    }

    /// Model names in the engine's order.
    #[must_use]
    pub fn model_names(&self) -> Vec<String> {
        self.models.iter().map(|m| m.id.clone()).collect()
    }

    pub(crate) fn degrade(&mut self, sentence: impl Into<String>) {
        self.degraded.push(sentence.into());
    }
}

#[cfg(test)]
mod tests;
