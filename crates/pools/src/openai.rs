//! Every other server that speaks OpenAI's HTTP API. llama.cpp is known by name, because it tells more.
//!
//! A generic server tells no load, has no abort but the closed connection, and shows its life by answering at all.

use crate::capability::{Capability, LoadsForm, Product};
use crate::probe::{Answer, Asker, ProbeError};
use crate::prometheus;
use plimsoll_core::{EngineKind, LoadReport, Nanos};
use serde_json::Value;

pub(crate) async fn describe_llama_cpp(asker: &Asker<'_>, scrape: Option<&str>) -> Result<Capability, ProbeError> {
    let mut capability = Capability::unknown(EngineKind::Openai, Product::LlamaCpp);
    let props = asker.get("/props").await?;
    if let Some(props) = props.as_json() {
        capability.version = props.get("build_info").and_then(Value::as_str).map(str::to_owned);
        capability.context_tokens = props.pointer("/default_generation_settings/n_ctx").and_then(Value::as_u64);
        capability.max_running_requests = props.get("total_slots").and_then(Value::as_u64).filter(|n| *n > 0);
    }
    if scrape.is_some_and(|text| read_metrics(text, Nanos::ZERO).is_some()) {
        capability.loads = LoadsForm::Metrics;
    } else if let Answer::Json(Value::Array(_)) = asker.get("/slots").await? {
        capability.loads = LoadsForm::Slots;
        capability.degrade("has /slots only, which does not tell waiting requests; start with --metrics");
    } else {
        capability.degrade("tells no load: only the gateway's own ledger counts; start with --metrics");
    }
    Ok(capability)
}

pub(crate) async fn describe_other(asker: &Asker<'_>) -> Result<Capability, ProbeError> {
    let mut capability = Capability::unknown(EngineKind::Openai, Product::Other);
    // A site may answer any path with a page; then `/health` proves nothing.
    capability.health_path = match asker.get("/health").await? {
        Answer::Json(_) => "/health",
        Answer::Text(text) if text.trim_ascii_start().first() != Some(&b'<') => "/health",
        _ => "/v1/models",
    }
    .to_owned();
    capability.degrade("tells no load and publishes no KV events: only the gateway's own ledger counts");
    Ok(capability)
}

/// llama.cpp's gauges: slots at work and requests that wait for one.
pub(crate) fn read_metrics(text: &str, now: Nanos) -> Option<LoadReport> {
    let mut report = LoadReport { received: now, ..LoadReport::default() };
    for sample in prometheus::samples(text) {
        match sample.name {
            "llamacpp:requests_processing" => report.running_requests = sample.count(),
            "llamacpp:requests_deferred" => report.waiting_requests = sample.count(),
            _ => {}
        }
    }
    report.running_requests.map(|_| report)
}

/// llama.cpp's slots. A slot that does not say whether it works makes the whole count unknown.
pub(crate) fn read_slots(answer: &Value, now: Nanos) -> Option<LoadReport> {
    let slots = answer.as_array()?;
    let busy = slots.iter().map(|slot| slot.get("is_processing").and_then(Value::as_bool));
    let running = busy.collect::<Option<Vec<_>>>().map(|busy| busy.iter().filter(|b| **b).count() as u64);
    Some(LoadReport {
        received: now,
        running_requests: running,
        max_running_requests: Some(slots.len() as u64).filter(|n| *n > 0),
        ..LoadReport::default()
    })
}
