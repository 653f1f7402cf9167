//! Requests whose tokens the gateway owns: the prompt goes to the engine as ids, ids come back, and the text a client sees is made
//! here, as the engine's own chat route would have made it.
//!
//! Who owns the tokens can move a running request, and engines are spared the tokenising. What cannot be shown to come out the same
//! (log-probabilities, several choices, tools, grammars, fields that are not known here) goes to the engine as it is, and is counted
//! by reason.

use crate::fleet::EngineHandle;
use crate::flow::Flow;
use bytes::Bytes;
use plimsoll_core::EngineKind;
use plimsoll_pools::adapter::{Route, adapter};
use plimsoll_pools::capability::{Capability, TokenApi};
use plimsoll_pools::chunk::StreamDialect;
use plimsoll_protocol::tokenizer::Tokenizer;
use plimsoll_settings::TokenMode;
use std::sync::Arc;

pub(crate) mod ask;
mod body;
mod engine_event;
pub(crate) mod reasoning;
pub(crate) mod shape;

use ask::Ask;
use reasoning::ReasoningRule;
use shape::{Identity, Shaper};

/// Who makes a request's tokens.
#[derive(Clone, Debug, Default)]
pub(crate) enum Ownership {
    /// The model's `token_mode` is `passthrough`.
    #[default]
    Off,
    /// It is not, but the engine has to: why.
    Engine(&'static str),
    Gateway(Arc<Owned>),
}

/// A request that can be sent as token ids.
#[derive(Debug)]
pub(crate) struct Owned {
    pub ask: Ask,
    pub ids: Vec<u32>,
    pub tokenizer: Tokenizer,
    pub mode: TokenMode,
    /// Of the model.
    pub reasoning: Option<ReasoningRule>,
}

/// Where token ids go in and come out of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenRoute {
    /// SGLang's `/generate`.
    Generate,
    /// vLLM's `/v1/completions`.
    Completions,
}

impl TokenRoute {
    pub(crate) fn path(self) -> &'static str {
        match self {
            TokenRoute::Generate => Route::Generate.path(),
            TokenRoute::Completions => Route::Completions.path(),
        }
    }

    pub(crate) fn dialect(self) -> StreamDialect {
        match self {
            TokenRoute::Generate => StreamDialect::SglangNative,
            TokenRoute::Completions => StreamDialect::Openai,
        }
    }
}

/// vLLM returns token ids since this release.
const VLLM_IDS_SINCE: [u64; 3] = [0, 10, 2];

/// A token takes four bytes, and in an engine's body up to seven.
const TOKEN_BYTES: usize = 11;

impl Owned {
    /// Memory beside the client's own body.
    pub(crate) fn bytes(&self) -> usize {
        self.ids.len() * TOKEN_BYTES
    }

    /// How this engine takes the ids, or why the request goes there as it is.
    pub(crate) fn route(&self, engine: &EngineHandle) -> Result<TokenRoute, &'static str> {
        let capability = engine.capability.load_full();
        let route = match (&capability, self.mode) {
            (Some(capability), _) => offered(capability),
            // Not probed yet: the operator has said what it is.
            (None, TokenMode::Owned) => match engine.kind() {
                EngineKind::Sglang => Some(TokenRoute::Generate),
                EngineKind::Vllm => Some(TokenRoute::Completions),
                EngineKind::Openai => None,
            },
            (None, _) => None,
        };
        let route = route.ok_or("engine")?;
        let chat = !self.ask.plain && self.reasoning.is_none();
        if chat && capability.as_ref().is_some_and(|capability| capability.parses_reasoning) {
            return Err("reasoning_parser");
        }
        if self.defaults(route, capability.as_deref()).is_none() {
            return Err("sampling_defaults");
        }
        Ok(route)
    }

    /// Whether the model's recommended sampling has to be sent along: SGLang uses it on its chat route only. `None`: it cannot
    /// be known what the engine would do.
    fn defaults(&self, route: TokenRoute, capability: Option<&Capability>) -> Option<bool> {
        if route == TokenRoute::Completions || self.ask.recommended.is_empty() {
            return Some(false);
        }
        match capability.and_then(|capability| capability.model_sampling) {
            Some(uses) => Some(uses),
            None => (self.mode == TokenMode::Owned).then_some(true),
        }
    }

    /// The engine's body. `rank` is given where it must be pinned.
    pub(crate) fn body(
        &self,
        engine: &EngineHandle,
        route: TokenRoute,
        model: Option<&str>,
        rid: &str,
        rank: Option<u16>,
        priority: Option<i64>,
    ) -> Bytes {
        let capability = engine.capability.load();
        match route {
            TokenRoute::Generate => {
                let recommended = self.defaults(route, capability.as_deref()).unwrap_or(false);
                let keys = adapter(EngineKind::Sglang).rank_keys;
                body::generate(&self.ask, &self.ids, recommended, rid, keys, rank, priority)
            }
            TokenRoute::Completions => body::completions(&self.ask, &self.ids, model, priority),
        }
    }
}

fn offered(capability: &Capability) -> Option<TokenRoute> {
    match capability.token_api {
        TokenApi::SglangGenerate => {
            adapter(EngineKind::Sglang).serves(Route::Generate, Some(capability)).then_some(TokenRoute::Generate)
        }
        TokenApi::CompletionsIds => {
            let version = capability.version.as_deref().map(numbers)?;
            (version >= VLLM_IDS_SINCE).then_some(TokenRoute::Completions)
        }
        TokenApi::None => None,
    }
}

/// The first three numbers of a version.
fn numbers(version: &str) -> [u64; 3] {
    let mut numbers = [0; 3];
    for (number, part) in numbers.iter_mut().zip(version.trim_start_matches('v').split(['.', '+', '-'])) {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        *number = part[..digits].parse().unwrap_or(0);
    }
    numbers
}

/// What turns the engine's events into the client's, for a request that went there as ids.
pub(crate) fn shaper(flow: &Flow, route: Option<TokenRoute>) -> Option<Box<Shaper>> {
    let (Ownership::Gateway(owned), Some(route)) = (&flow.ownership, route) else { return None };
    let identity = Identity {
        id: format!("{}-{:032x}", if owned.ask.plain { "cmpl" } else { "chatcmpl" }, flow.id.0),
        created_s: flow.started_wall.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        model: flow.model.clone().unwrap_or_else(|| flow.shared.model_label(None)),
    };
    Some(Box::new(Shaper::new(route, owned, &identity)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert!(numbers("0.10.1.1") < VLLM_IDS_SINCE);
        assert!(numbers("0.32.0rc1") > VLLM_IDS_SINCE);
        assert!(numbers("v0.10.2") >= VLLM_IDS_SINCE);
        assert_eq!(numbers("unknown"), [0; 3]);
    }
}
