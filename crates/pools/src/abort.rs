//! Takes requests back from an engine.
//!
//! SGLang 0.5.23 notices a closed streaming connection at once, but one without a stream only at its next look, every
//! four seconds; so it is told by `/abort_request`, one call per rid: it matches by prefix, but drops a rid that its
//! tokenizer process does not know, so a parent's rid does not reach the children of a batch. Several samples of one
//! prompt (`n`) run under random ids, which nobody can name: without a stream they end up to four seconds late. vLLM
//! notices a closed connection within 0.2 s; with `--enable-scale-out` it is told as well, by its *internal* ids,
//! because other ids are answered with 200 and ignored.
//! Everywhere the caller closes the connection too; this module never decides that a request is gone.

use crate::capability::{AbortForm, Capability};
use crate::http::{CallError, Endpoint, Key};
use bytes::Bytes;
use futures_util::future::join_all;
use http::Method;
use serde::Serialize;
use serde_json::json;
use std::time::{Duration, Instant};

/// Calls in flight at once for one abort.
const PARALLEL: usize = 16;
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// How the engine was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AbortedBy {
    /// Each id by a call.
    Call,
    /// By nothing but the connection that the caller closes.
    Disconnect,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AbortReport {
    pub by: AbortedBy,
    pub asked: usize,
    /// Ids whose call was answered with 2xx. An engine answers so for ids that it does not know.
    pub accepted: usize,
    /// The first failure, if any.
    pub failure: Option<String>,
}

/// Aborts `rids` within `deadline`, all of them together. Never fails as a whole: the report says what could be done.
pub async fn abort(endpoint: &Endpoint, capability: &Capability, rids: &[String], deadline: Duration) -> AbortReport {
    let mut report = AbortReport { by: AbortedBy::Call, asked: rids.len(), accepted: 0, failure: None };
    match capability.abort {
        AbortForm::Disconnect => report.by = AbortedBy::Disconnect,
        AbortForm::SglangRid => {
            let end = Instant::now() + deadline;
            // An empty rid is a prefix of every other.
            let rids: Vec<&String> = rids.iter().filter(|rid| !rid.is_empty()).collect();
            for batch in rids.chunks(PARALLEL) {
                let left = end.saturating_duration_since(Instant::now());
                let calls =
                    batch.iter().map(|rid| post(endpoint, "/abort_request", bytes(&json!({ "rid": rid })), left));
                for outcome in join_all(calls).await {
                    note(&mut report, outcome, 1);
                }
            }
        }
        AbortForm::VllmInternalId => {
            let ids: Vec<String> = rids.iter().flat_map(|rid| vllm_internal_ids(rid)).collect();
            let body = bytes(&json!({ "request_ids": ids }));
            let outcome = post(endpoint, crate::vllm::ABORT_PATH, body, deadline).await;
            note(&mut report, outcome, rids.len());
        }
    }
    report
}

/// The ids under which vLLM may run a request that was sent with `X-Request-Id: rid`, as seen to work on 0.32.0:
/// completions are numbered by prompt, a chat is not, and either takes all its samples with it. Unknown ids are harmless.
fn vllm_internal_ids(rid: &str) -> Vec<String> {
    match rid.split_once('_') {
        // The child of a batch, see `adapter::child_rids`: only completions have several prompts.
        Some((parent, prompt)) => vec![format!("cmpl-{parent}-{prompt}")],
        None => vec![format!("cmpl-{rid}-0"), format!("chatcmpl-{rid}")],
    }
}

fn bytes(body: &serde_json::Value) -> Bytes {
    Bytes::from(body.to_string())
}

async fn post(endpoint: &Endpoint, path: &str, body: Bytes, deadline: Duration) -> Result<u16, CallError> {
    let answer = endpoint.call(Method::POST, path, Some(body), Key::Admin, deadline, MAX_ANSWER_BYTES).await?;
    Ok(answer.status.as_u16())
}

fn note(report: &mut AbortReport, outcome: Result<u16, CallError>, ids: usize) {
    let failure = match outcome {
        Ok(200..=299) => {
            report.accepted += ids;
            return;
        }
        Ok(status @ (401 | 403)) => format!("the abort was refused with {status}: set `admin_api_key` of this engine"),
        Ok(status) => format!("the abort was answered with {status}"),
        Err(error) => error.to_string(),
    };
    report.failure.get_or_insert(failure);
}

#[cfg(test)]
mod tests;
