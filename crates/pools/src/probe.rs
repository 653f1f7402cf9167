//! Finds out what stands behind a URL.
//!
//! Rule: ask, look at the shape of the answer, tolerate everything that is missing. Only three things end a probe
//! without a record: nothing answers, the engine says that it is not ready (5xx), or what answers is no engine (HTML,
//! garbage, a key that does not fit); each is an error that says what to check. The order is the one of the reference
//! (`/openapi.json`, `/server_info`, `/model_info`), then `/version`, `/v1/models` and `/metrics` for the others.
//!
//! Traps: vLLM has a `/server_info` of its own in developer mode; SGLang's `/health` runs a request and takes a second,
//! so it is never asked; `/server_info` holds the engine's keys, so its text is neither kept nor logged; both engines
//! can be started without `/openapi.json`.

mod detect;
mod fetch;

use crate::capability::{Capability, ModelInfo, Product};
use crate::http::{CallError, Endpoint};
use crate::{openai, sglang, vllm};
use detect::Clues;
pub(crate) use fetch::{Answer, Asker};
use plimsoll_core::EngineKind;
use serde_json::Value;
use std::time::Duration;
use thiserror::Error;

/// Why an engine has no record.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// No connection, or one that breaks. Worth another try later.
    #[error("the engine cannot be reached: {0}")]
    Unreachable(#[source] CallError),
    /// It accepts connections and says nothing.
    #[error("the engine did not answer `{path}` in time")]
    Timeout { path: &'static str },
    /// 5xx everywhere: starting, stopping, or broken.
    #[error("the engine is not ready: `{path}` answered {status}")]
    NotReady { path: &'static str, status: u16 },
    #[error("the engine refuses the key ({status} on `{path}`): set `api_key` of this engine")]
    Denied { path: &'static str, status: u16 },
    /// Something answers, but no engine.
    #[error("this is no engine that is known here: {0}")]
    NotAnEngine(String),
}

impl ProbeError {
    /// A later probe may well succeed without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, ProbeError::Unreachable(_) | ProbeError::Timeout { .. } | ProbeError::NotReady { .. })
    }
}

/// Probes the engine. `hint` is the kind that the config names: it decides which questions are asked first and wins
/// over what the answers look like. `deadline` bounds all questions together.
///
/// # Errors
/// See [`ProbeError`].
pub async fn probe(
    endpoint: &Endpoint,
    hint: Option<EngineKind>,
    deadline: Duration,
) -> Result<Capability, ProbeError> {
    let asker = Asker::new(endpoint, deadline);
    let paths = asker.get("/openapi.json").await?.json().and_then(|v| listed_paths(&v));
    let models = asker.get("/v1/models").await?;
    let listed = models.as_json().map(detect::ListedModels::read);
    let is_list = listed.as_ref().is_some_and(|l| l.is_list);
    let mut clues = Clues {
        paths: paths.as_deref(),
        owner: listed.as_ref().and_then(|l| l.owner),
        foreign_owner: listed.as_ref().is_some_and(|l| l.foreign_owner),
        ..Clues::default()
    };

    let ask_sglang = match (hint, clues.verdict()) {
        (Some(kind), _) => kind == EngineKind::Sglang,
        (None, Some(product)) => product == Product::Sglang,
        (None, None) => true,
    };
    let mut info = None;
    if ask_sglang {
        info = sglang::ask_info(&asker, paths.as_deref()).await?;
        clues.sglang_info = info.as_ref().is_some_and(sglang::is_sglang);
    }
    let mut version = None;
    if !clues.sglang_info && clues.verdict() != Some(Product::LlamaCpp) {
        version = asker.get("/version").await?.json().and_then(|v| v.get("version")?.as_str().map(str::to_owned));
        clues.version = version.is_some();
    }
    let metrics = asker.get("/metrics").await?.text();
    clues.metrics_prefix = metrics.as_deref().and_then(detect::metrics_prefix);

    let found = clues.verdict().or_else(|| (is_list || clues.speaks_openai()).then_some(Product::Other));
    let Some(found) = found else { return Err(asker.no_engine(&models)) };
    // A named kind is believed.
    let product = match hint {
        Some(kind) if detect::kind_of(found) != kind => detect::default_product(kind),
        _ => found,
    };
    let mut capability = match product {
        Product::Sglang => sglang::describe(&asker, info.as_ref(), paths.as_deref()).await?,
        Product::Vllm => vllm::describe(&asker, version, paths.as_deref(), metrics.as_deref()).await?,
        Product::LlamaCpp => openai::describe_llama_cpp(&asker, metrics.as_deref()).await?,
        Product::Other => openai::describe_other(&asker).await?,
    };
    if product != found {
        let kind = capability.kind;
        capability
            .degrade(format!("the config says `kind = \"{kind}\"`, but the answers look like {}", detect::name(found)));
    }
    add_models(&mut capability, listed, &models);
    capability.routes = paths;
    capability.complete = asker.complete();
    Ok(capability)
}

fn add_models(capability: &mut Capability, listed: Option<detect::ListedModels>, answer: &Answer) {
    capability.models = listed.map(|l| l.models).unwrap_or_default();
    if capability.context_tokens.is_none() {
        capability.context_tokens = capability.models.iter().find_map(|m: &ModelInfo| m.context_tokens);
    }
    if capability.models.is_empty() {
        capability.degrade(format!(
            "GET /v1/models {}, so no model name is known: name the models of this engine in the config",
            answer.describe()
        ));
    }
}

/// The paths of an OpenAPI document, or `None` where it is none.
fn listed_paths(document: &Value) -> Option<Vec<String>> {
    let paths: Vec<String> = document.get("paths")?.as_object()?.keys().cloned().collect();
    (!paths.is_empty()).then_some(paths)
}

pub(crate) fn lists(paths: Option<&[String]>, path: &str) -> bool {
    paths.is_some_and(|paths| paths.iter().any(|p| p == path))
}

#[cfg(test)]
mod tests;
