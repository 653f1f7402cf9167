//! Polls an engine's load, and by the same request whether it lives.
//!
//! Rule for a sign of life: a 2xx or 4xx answer is one, because a process that reads requests and routes them answers
//! so whatever it thinks of the path. 5xx is none (503 is how engines say that they start or stop), nor is a time-out,
//! a broken connection or garbage. An answer that cannot be read is a sign of life without a report: unknown, never
//! zero. A frozen engine accepts connections and answers nothing, so it shows as a time-out here.
//!
//! Rule for age: SGLang stamps each rank's snapshot. A snapshot that has not moved since the last poll, neither in stamp
//! nor in value, keeps the time at which it was first seen, so the ledger trusts it less and less although the HTTP
//! process goes on serving it. (An idle engine hardly moves either; then there is nothing to trust but zeros.)
//!
//! SGLang's `/get_load` passes through its scheduler and may wait for a whole prefill chunk; it gets a part of the
//! deadline, then a cheap path is asked for the sign of life alone.

use crate::capability::{Capability, LoadsForm, Product};
use crate::http::{CallError, Endpoint, Key};
use crate::sglang::loads::RankLoad;
use crate::{openai, sglang, vllm};
use http::Method;
use plimsoll_core::{LoadReport, Nanos};
use serde_json::Value;
use std::time::{Duration, Instant};

/// A scrape of vLLM with one model is 60 kB, with many models and DP ranks some MB.
const MAX_ANSWER_BYTES: usize = 8 << 20;
/// Part of the deadline that a load endpoint behind the scheduler may use before the cheap path is asked.
const SLOW_SHARE: f64 = 0.6;

/// What one poll found.
#[derive(Debug)]
pub struct Poll {
    /// One per DP rank; empty where nothing could be read.
    pub reports: Vec<LoadReport>,
    /// See the rule above. A poll without it counts as a failed probe.
    pub sign_of_life: bool,
    /// The status of the answer that decided about the sign of life.
    pub status: u16,
    /// What is behind the URL is not what was probed (another version, another start, an endpoint gone): probe again.
    pub changed: bool,
    pub state: PollState,
}

/// What one poll must know of the one before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PollState {
    version: Option<String>,
    started: Option<u64>,
    /// The engine's stamp and what was reported, with the time of first receipt.
    snapshots: Vec<(String, LoadReport)>,
}

/// Asks once. `now` becomes the time of receipt of the reports; `deadline` bounds everything.
///
/// # Errors
/// No answer: no connection, none in time, or none that is HTTP. It is no sign of life.
pub async fn poll(
    endpoint: &Endpoint,
    capability: &Capability,
    previous: Option<&PollState>,
    now: Nanos,
    deadline: Duration,
) -> Result<Poll, CallError> {
    let end = Instant::now() + deadline;
    endpoint.reap_idle();
    let path = match capability.loads {
        LoadsForm::V1Loads => "/v1/loads",
        LoadsForm::GetLoad => "/get_load",
        LoadsForm::Metrics => "/metrics",
        LoadsForm::Slots => "/slots",
        LoadsForm::None => return alive_only(endpoint, capability, previous, deadline).await,
    };
    let limit = if capability.loads == LoadsForm::GetLoad { deadline.mul_f64(SLOW_SHARE) } else { deadline };
    let answer = match endpoint.call(Method::GET, path, None, Key::Inference, limit, MAX_ANSWER_BYTES).await {
        Ok(answer) => answer,
        Err(CallError::TooLarge(_)) => {
            return alive_only(endpoint, capability, previous, end.saturating_duration_since(Instant::now())).await;
        }
        Err(CallError::Timeout) if capability.loads == LoadsForm::GetLoad => {
            return alive_only(endpoint, capability, previous, end.saturating_duration_since(Instant::now())).await;
        }
        Err(error) => return Err(error),
    };
    let mut poll = Poll {
        reports: Vec::new(),
        sign_of_life: is_sign_of_life(answer.status.as_u16()),
        status: answer.status.as_u16(),
        // The endpoint was there when it was probed.
        changed: matches!(answer.status.as_u16(), 404 | 405),
        state: previous.cloned().unwrap_or_default(),
    };
    if answer.status.is_success() {
        read(&answer.body, capability, previous, now, &mut poll);
    }
    Ok(poll)
}

/// 2xx to 4xx.
#[must_use]
pub fn is_sign_of_life(status: u16) -> bool {
    (200..500).contains(&status)
}

async fn alive_only(
    endpoint: &Endpoint,
    capability: &Capability,
    previous: Option<&PollState>,
    deadline: Duration,
) -> Result<Poll, CallError> {
    let state = previous.cloned().unwrap_or_default();
    let path = capability.health_path.as_str();
    let status = match endpoint.call(Method::GET, path, None, Key::Inference, deadline, MAX_ANSWER_BYTES).await {
        Ok(answer) => answer.status.as_u16(),
        // It does answer, at length.
        Err(CallError::TooLarge(_)) => 200,
        Err(error) => return Err(error),
    };
    Ok(Poll { reports: Vec::new(), sign_of_life: is_sign_of_life(status), status, changed: false, state })
}

fn read(body: &[u8], capability: &Capability, previous: Option<&PollState>, now: Nanos, poll: &mut Poll) {
    let capacity = capability.kv_capacity_tokens;
    let json = || serde_json::from_slice::<Value>(body).ok();
    match (capability.loads, capability.product) {
        (LoadsForm::V1Loads, _) => {
            let Some(answer) = json() else { return };
            let loads = sglang::loads::read_v1_loads(&answer, now).unwrap_or_default();
            poll.reports = age(loads, previous, &mut poll.state);
            let version = answer.get("version").and_then(Value::as_str).map(str::to_owned);
            let known = previous.and_then(|p| p.version.as_ref()).or(capability.version.as_ref());
            poll.changed |= version.as_ref().zip(known).is_some_and(|(new, old)| new != old);
            poll.state.version = version;
        }
        (LoadsForm::GetLoad, _) => {
            let loads = json().and_then(|v| sglang::loads::read_get_load(&v, capacity, now)).unwrap_or_default();
            poll.reports = age(loads, previous, &mut poll.state);
        }
        (LoadsForm::Slots, _) => poll.reports.extend(json().and_then(|v| openai::read_slots(&v, now))),
        (LoadsForm::Metrics, product) => {
            let Ok(text) = std::str::from_utf8(body) else { return };
            match product {
                Product::Sglang => poll.reports = sglang::metrics::reports(text, now).unwrap_or_default(),
                Product::Vllm => poll.reports = vllm::metrics::reports(text, capacity, now).unwrap_or_default(),
                Product::LlamaCpp => {
                    poll.reports.extend(
                        openai::read_metrics(text, now).map(|report| LoadReport {
                            max_running_requests: capability.max_running_requests,
                            ..report
                        }),
                    );
                }
                Product::Other => {}
            }
            let started = process_start(text);
            let known = previous.and_then(|p| p.started);
            poll.changed |= started.zip(known).is_some_and(|(new, old)| new != old);
            poll.state.started = started;
        }
        (LoadsForm::None, _) => {}
    }
}

/// Gives a snapshot that has not moved the time at which it was first seen.
fn age(loads: Vec<RankLoad>, previous: Option<&PollState>, state: &mut PollState) -> Vec<LoadReport> {
    let before = previous.map_or(&[][..], |p| p.snapshots.as_slice());
    state.snapshots.clear();
    let date = |RankLoad { mut report, stamp }: RankLoad| {
        if let Some(stamp) = stamp {
            let same = |(old, seen): &&(String, LoadReport)| {
                *old == stamp && LoadReport { received: report.received, ..*seen } == report
            };
            if let Some((_, seen)) = before.iter().find(same) {
                report.received = seen.received;
            }
            state.snapshots.push((stamp, report));
        }
        report
    };
    loads.into_iter().map(date).collect()
}

/// Milliseconds since the epoch at which the process began, as the Python client library writes it.
fn process_start(text: &str) -> Option<u64> {
    let sample = crate::prometheus::samples(text).find(|s| s.name == "process_start_time_seconds")?;
    (sample.value > 0.0).then_some((sample.value * 1e3) as u64)
}

#[cfg(test)]
mod tests;
