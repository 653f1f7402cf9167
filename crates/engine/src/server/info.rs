//! What the engine says about itself: health, models, `/server_info`, `/v1/loads`, in SGLang's shapes.

use super::State;
use super::bootstrap::mode;
use super::errors::ApiError;
use super::params::fresh_id;
use crate::SchedulePolicy;
use crate::disagg::Role;
use crate::mailbox::Ticket;
use crate::request::{Request, Task};
use crate::sampling::SamplingParams;
use crate::stats::Stats;
use crate::timing::Timing;
use axum::Json;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The SGLang release whose interfaces these are, then our own version.
pub(crate) const VERSION: &str = concat!("0.5.23+plimsoll.", env!("CARGO_PKG_VERSION"));

/// SGLANG_HEALTH_CHECK_TIMEOUT.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(20);

/// How often an engine is asked whether it has computed a step.
const HEALTH_POLL: Duration = Duration::from_millis(10);
/// How long a busy engine may compute nothing before it is probed.
const HEALTH_QUIET: Duration = Duration::from_secs(1);

/// Routes by name, for clients that look here for what an engine can do. Bodies are described by the stock engines.
const PATHS: &[(&str, &str)] = &[
    ("/generate", "post"),
    ("/v1/chat/completions", "post"),
    ("/v1/completions", "post"),
    ("/v1/embeddings", "post"),
    ("/v1/models", "get"),
    ("/v1/loads", "get"),
    ("/server_info", "get"),
    ("/get_server_info", "get"),
    ("/model_info", "get"),
    ("/get_model_info", "get"),
    ("/tokenize", "post"),
    ("/detokenize", "post"),
    ("/v1/tokenize", "post"),
    ("/v1/detokenize", "post"),
    ("/abort_request", "post"),
    ("/flush_cache", "post"),
    ("/health", "get"),
    ("/health_generate", "get"),
    ("/ready", "get"),
    ("/ping", "get"),
    ("/metrics", "get"),
    ("/openapi.json", "get"),
    ("/admin/faults", "post"),
];

pub(crate) fn openapi(state: &State) -> Json<Value> {
    let migrations = state.carrier.is_some().then_some(&("/plimsoll/v1/migrations", "get"));
    let paths: serde_json::Map<String, Value> = PATHS
        .iter()
        .chain(migrations)
        .map(|(path, method)| ((*path).to_owned(), json!({*method: {"responses": {"200": {"description": "OK"}}}})))
        .collect();
    Json(json!({"openapi": "3.1.0", "info": {"title": "plimsoll engine", "version": VERSION}, "paths": paths}))
}

/// Cheap: the step loop lives and the engine is not stopping.
pub(crate) fn health(state: &State) -> StatusCode {
    if state.is_serving() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Real: one token through the whole engine. While it is busy, that it goes on: as in SGLang, no probe waits behind the
/// others then, and a full queue is no illness.
pub(crate) async fn health_generate(state: Arc<State>) -> StatusCode {
    match tokio::time::timeout(HEALTH_TIMEOUT, computes(&state)).await {
        Ok(true) => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Waits for a step, and sees to it that there is something to compute. False when the engine stops.
async fn computes(state: &State) -> bool {
    let handle = state.engine.handle();
    let steps = || handle.stats().iter().map(|rank| rank.joint_steps).max();
    let (began, before) = (Instant::now(), steps());
    let mut probe: Option<Ticket> = None;
    while state.is_serving() {
        if steps() > before {
            return true;
        }
        // What is in flight may wait for another engine, and compute nothing.
        let is_quiet = handle.in_flight() == 0 || began.elapsed() >= HEALTH_QUIET;
        if is_quiet && probe.is_none() {
            let params = SamplingParams { max_new_tokens: 1, temperature: 0.0, ..SamplingParams::default() };
            let request = Request::new(format!("HEALTH_CHECK_{}", fresh_id()), vec![0], Task::Generate(params));
            probe = handle.submit(request).ok();
        }
        tokio::time::sleep(HEALTH_POLL).await;
        let news = probe.as_mut().and_then(|ticket| ticket.next().now_or_never().flatten());
        if news.is_some_and(|news| news.finish.is_some()) {
            // It was turned away: a step would have been seen.
            probe = None;
        }
    }
    false
}

pub(crate) fn models(state: &State) -> Json<Value> {
    Json(json!({"object": "list", "data": [{
        "id": state.config.model_name,
        "object": "model",
        "created": state.started_s.saturating_add_signed(state.faults.current().clock_skew_ms / 1000),
        "owned_by": "plimsoll",
        "root": state.config.model_name,
        "parent": null,
        "max_model_len": state.context_tokens,
    }]}))
}

/// The folder of a model that has one; the tiny one has only its name.
fn model_path(state: &State) -> String {
    state
        .config
        .folder
        .as_ref()
        .map_or_else(|| state.config.model_name.clone(), |folder| folder.path.display().to_string())
}

pub(crate) fn model_info(state: &State) -> Json<Value> {
    Json(json!({
        "model_path": model_path(state),
        "served_model_name": state.config.model_name,
        "tokenizer_path": model_path(state),
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": "default",
        "load_format": if state.config.folder.is_some() { "safetensors" } else { "seeded" },
        "reasoning_parser": null,
        "tool_call_parser": null,
        "disaggregation_mode": mode(state),
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": state.config.model.family.model_type(),
        "architectures": [state.config.model.family.architecture()],
    }))
}

pub(crate) fn server_info(state: &State) -> Json<Value> {
    let size = state.engine.size();
    Json(json!({
        "status": "ready",
        "version": VERSION,
        "engine": "plimsoll",
        // Never from a folder's generation_config.json.
        "sampling_defaults": "openai",
        "model_path": model_path(state),
        "served_model_name": state.config.model_name,
        "page_size": size.page_tokens,
        "context_length": state.context_tokens,
        "max_total_num_tokens": size.kv_tokens,
        "max_running_requests": state.config.max_running,
        "max_queued_requests": state.config.max_waiting,
        "chunked_prefill_size": state.config.token_budget,
        "incremental_streaming_output": state.config.incremental_streaming,
        "schedule_policy": state.config.order.policy.as_str(),
        "enable_priority_scheduling": state.config.order.policy == SchedulePolicy::Priority,
        "schedule_low_priority_values_first": state.config.order.low_priority_first,
        "dp_size": state.config.dp_size,
        "timing": state.config.timing.as_ref().map(timing),
        "tp_size": 1,
        "disaggregation_mode": mode(state),
        "disaggregation_transfer_backend": "plimsoll_tcp",
        "disaggregation_bootstrap_port": bootstrap_port(state),
        "disaggregation_decode_enable_radix_cache": true,
        "enable_metrics": true,
        "enable_cache_report": true,
        "disable_radix_cache": false,
        "enable_hierarchical_cache": state.config.offload.is_on(),
        "hicache_size": state.config.offload.bytes as f64 / 1e9,
        "hicache_write_policy": "write_back",
        "startup_time": state.started_s,
        "internal_states": internal_states(state),
        "kv_events": state.kv_events.as_ref().map(|streams| streams.descriptor(size.page_tokens)),
        "kv_events_config": state.kv_events.as_ref().map(|streams| streams.config_json()),
        "migration": state.carrier.as_ref().map(|carrier| json!({"port": carrier.address().port()})),
    }))
}

/// Says that times are modelled, so that nobody takes them for a measurement.
fn timing(timing: &Timing) -> Value {
    json!({
        "profile": timing.profile.name,
        "summary": timing.profile.summary,
        "founded": timing.profile.founded.as_str(),
        "speedup": timing.speedup,
        "note": "step times come from a cost model, not from this machine",
    })
}

/// One per rank.
fn internal_states(state: &State) -> Vec<Value> {
    let one = |(rank, stats): (usize, Stats)| {
        json!({
            "dp_rank": rank,
            "effective_max_running_requests_per_dp": state.config.max_running,
            "last_gen_throughput": stats.generation_rate,
            "memory_usage": memory(state),
            "disaggregation_mode": mode(state),
        })
    };
    state.engine.handle().stats().into_iter().enumerate().map(one).collect()
}

fn memory(state: &State) -> Value {
    let size = state.engine.size();
    let gb = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    json!({
        "weight_gb": gb(size.weight_bytes),
        "kv_cache_gb": gb(size.kv_bytes),
        "graph_gb": 0.0,
        "token_capacity": size.kv_tokens,
    })
}

pub(crate) fn loads(state: &State, query: &Query<HashMap<String, String>>) -> Result<Response, ApiError> {
    let include: Vec<&str> = query.get("include").map_or_else(|| vec!["all"], |list| list.split(',').collect());
    let known = ["core", "memory", "spec", "lora", "disagg", "queues", "all"];
    if let Some(other) = include.iter().find(|part| !known.contains(*part)) {
        return Err(ApiError::field("include", format!("{other:?} is not one of {}", known.join(", "))));
    }
    if query.get("format").is_some_and(|format| format == "prometheus") {
        return Ok(super::metrics::handle(state).into_response());
    }
    let only = match query.get("dp_rank").map(|rank| rank.parse::<usize>()) {
        Some(Err(_)) => return Err(ApiError::field("dp_rank", "expected an integer")),
        Some(Ok(rank)) => Some(rank),
        None => None,
    };
    let has = |part| include.contains(&part) || include.contains(&"all");
    let mut loads = Vec::new();
    for (rank, stats) in state.engine.handle().stats().iter().enumerate() {
        if only.is_some_and(|only| only != rank) {
            continue;
        }
        let mut load = core_load(state, rank, stats);
        if has("memory") {
            load["memory"] = memory(state);
        }
        if has("queues") {
            let waiting = stats.waiting;
            load["queues"] =
                json!({"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0});
        }
        if has("disagg") {
            load["disaggregation"] = disaggregation(state, stats);
        }
        loads.push(load);
    }
    Ok(Json(json!({
        "timestamp": state.faults.wall_clock_s(),
        "version": VERSION,
        "accelerator": "cpu",
        "num_accelerators": 1,
        "loads": loads,
    }))
    .into_response())
}

/// Null on an engine that does everything itself, as SGLang leaves it out there.
fn disaggregation(state: &State, stats: &Stats) -> Value {
    let Some(service) = &state.disagg else { return Value::Null };
    let transfers = service.context().stats.lock();
    json!({
        "mode": mode(state),
        "prefill_bootstrap_queue_reqs": stats.legs.prefill_bootstrap,
        "prefill_inflight_queue_reqs": stats.legs.prefill_inflight,
        "decode_prealloc_queue_reqs": stats.legs.decode_prealloc,
        "decode_transfer_queue_reqs": stats.legs.decode_transfer,
        "decode_retracted_queue_reqs": 0,
        "kv_transfer_speed_gb_s": transfers.last_speed_gb_s,
        "kv_transfer_latency_ms": transfers.last_latency_ms,
    })
}

/// Of this engine, or where a decode engine looks when a request does not say.
fn bootstrap_port(state: &State) -> u16 {
    state.disagg.as_ref().and_then(|service| service.bootstrap_port).unwrap_or(state.config.disagg.bootstrap_port)
}

fn core_load(state: &State, rank: usize, stats: &Stats) -> Value {
    let size = state.engine.size();
    let used = stats.held_pages * size.page_tokens;
    json!({
        "timestamp": state.faults.wall_clock_s(),
        "dp_rank": rank,
        "num_running_reqs": stats.running,
        // Legs that hold nothing yet wait as well.
        "num_waiting_reqs": stats.waiting + stats.legs.prefill_bootstrap + stats.legs.decode_prealloc,
        // A decode engine prefills nothing: as in SGLang.
        "num_waiting_uncached_tokens": if state.config.disagg.role == Role::Decode { 0 } else { stats.waiting_uncached_tokens },
        "num_used_tokens": used,
        "num_total_tokens": used + stats.waiting_tokens + stats.legs.waiting_tokens,
        "num_active_tokens": used + stats.waiting_tokens,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": size.kv_tokens,
        "max_running_requests": state.config.max_running,
        "token_usage": used as f64 / size.kv_tokens as f64,
        "gen_throughput": stats.generation_rate,
        "cache_hit_rate": stats.hit_rate(),
        "total_prefill_uncached_tokens": stats.computed_prompt_tokens,
        "total_prefill_busy_us": stats.prefill_busy_us,
        "decode_moments": stats.decode_moments,
        "plimsoll_joint_steps": stats.joint_steps,
        "plimsoll_busy_us": stats.busy_ns / 1000,
        "plimsoll_idle_us": stats.idle_ns / 1000,
    })
}
