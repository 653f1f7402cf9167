//! The cheap endpoints: what a gateway probes, polls and scrapes.
//!
//! Forms from `sglang.md` §1.8-1.10 and the recordings `metrics_*.txt`.

use crate::Dialect;
use crate::http1::Head;
use crate::outbound::Reply;
use crate::state::{State, remember};
use bytes::Bytes;
use serde_json::{Value, json};
use std::time::Duration;

const SGLANG_PATHS: &[&str] = &[
    "/health",
    "/health_generate",
    "/ready",
    "/ping",
    "/model_info",
    "/get_model_info",
    "/server_info",
    "/get_server_info",
    "/v1/loads",
    "/v1/models",
    "/openapi.json",
    "/metrics",
    "/generate",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/abort_request",
    "/flush_cache",
];
const VLLM_PATHS: &[&str] = &[
    "/health",
    "/ping",
    "/version",
    "/load",
    "/metrics",
    "/v1/models",
    "/openapi.json",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/inference/v1/abort_requests",
];
const OPENAI_PATHS: &[&str] = &["/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/embeddings"];

/// Paths that this family has.
pub(crate) fn knows(dialect: Dialect, path: &str) -> bool {
    let paths = match dialect {
        Dialect::Sglang => SGLANG_PATHS,
        Dialect::Vllm => VLLM_PATHS,
        Dialect::Openai => OPENAI_PATHS,
    };
    paths.contains(&path)
}

/// The answer to anything that is not a generation.
pub(crate) async fn reply(state: &State, request: &Head, body: &Bytes) -> Reply {
    let dialect = state.options.dialect;
    let get = request.method == "GET";
    match request.path.as_str() {
        "/health" | "/health_generate" | "/ready" | "/ping" if get => {
            tokio::time::sleep(Duration::from_millis(state.behaviour().health_ms)).await;
            Reply::text(200, "text/plain", "")
        }
        "/v1/models" if get => Reply::json(200, &models(state)),
        "/openapi.json" if get => {
            let paths = if dialect == Dialect::Sglang { SGLANG_PATHS } else { VLLM_PATHS };
            let paths: serde_json::Map<String, Value> = paths.iter().map(|path| ((*path).into(), json!({}))).collect();
            Reply::json(
                200,
                &json!({"openapi": "3.1.0", "info": {"title": "FastAPI", "version": "0.1.0"}, "paths": paths}),
            )
        }
        "/metrics" if get => Reply::text(200, "text/plain; version=1.0.0; charset=utf-8", metrics(state)),
        "/v1/loads" if get => Reply::json(200, &loads(state)),
        "/server_info" | "/get_server_info" if get => Reply::json(200, &server_info(state)),
        "/model_info" | "/get_model_info" if get => Reply::json(
            200,
            &json!({
            "model_path": "/models/tiny-llama", "served_model_name": state.options.model,
            "tokenizer_path": "/models/tiny-llama", "is_generation": true, "preferred_sampling_params": null,
            "weight_version": "default", "load_format": "auto", "reasoning_parser": null, "tool_call_parser": null,
            "disaggregation_mode": "null", "has_image_understanding": false, "has_audio_understanding": false,
            "model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
        ),
        "/version" if get => Reply::json(200, &json!({"version": "0.32.0"})),
        "/load" if get => Reply::json(200, &json!({"server_load": 0})),
        "/abort_request" if !get => abort(state, body),
        "/flush_cache" if !get => Reply::text(200, "text/plain; charset=utf-8", "Cache flushed.\n"),
        "/inference/v1/abort_requests" => Reply::json(
            403,
            &json!({"error": {
            "message": "start with --enable-scale-out", "type": "Forbidden", "param": null, "code": 403}}),
        ),
        _ => Reply::json(405, &json!({"detail": "Method Not Allowed"})),
    }
}

/// The rid is matched by prefix and an empty one is ignored; the answer says nothing about what was hit.
fn abort(state: &State, body: &Bytes) -> Reply {
    #[derive(serde::Deserialize)]
    struct Abort {
        #[serde(default)]
        rid: String,
        #[serde(default)]
        abort_all: bool,
    }
    let Ok(ask) = serde_json::from_slice::<Abort>(body) else {
        return Reply::json(400, &json!({"error": {"message": "not an abort request", "code": 400}}));
    };
    state.count(|counters| remember(&mut counters.abort_rids, &ask.rid));
    if ask.abort_all {
        state.running.lock().abort(None);
    } else if !ask.rid.is_empty() {
        state.running.lock().abort(Some(&ask.rid));
    }
    Reply::text(200, "text/plain", "")
}

fn models(state: &State) -> Value {
    let owner = match state.options.dialect {
        Dialect::Sglang => "sglang",
        Dialect::Vllm => "vllm",
        Dialect::Openai => "somebody",
    };
    let mut model = json!({"id": state.options.model, "object": "model", "created": 1_795_961_449, "owned_by": owner,
        "root": "/models/tiny-llama", "parent": null});
    if state.options.dialect != Dialect::Openai {
        model["max_model_len"] = json!(32_768);
    }
    json!({"object": "list", "data": [model]})
}

fn sizes(state: &State) -> (u64, u64) {
    let (in_flight, running) = state.running.lock().sizes();
    (running, in_flight - running)
}

fn loads(state: &State) -> Value {
    let (running, waiting) = sizes(state);
    let used = running * 256;
    json!({"timestamp": "2026-11-29T12:00:00+00:00", "version": "0.5.23", "accelerator": "cpu", "num_accelerators": 1,
        "loads": [{"timestamp": 1_795_961_449.5, "dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting,
            "num_waiting_uncached_tokens": waiting * 64, "num_used_tokens": used, "num_total_tokens": used,
            "num_active_tokens": used, "num_prealloc_ready_tokens": 0, "max_total_num_tokens": 262_144,
            "max_running_requests": state.options.max_running.unwrap_or(64), "token_usage": 0.01,
            "gen_throughput": 0.0, "cache_hit_rate": 0.0, "utilization": 0.0, "total_prefill_uncached_tokens": 0,
            "total_prefill_busy_us": 0, "decode_moments": [0, 0, 0, 0, 0, 0],
            "queues": {"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}}]})
}

fn server_info(state: &State) -> Value {
    json!({"model_path": "/models/tiny-llama", "served_model_name": state.options.model, "version": "0.5.23",
        "dp_size": 1, "tp_size": 1, "page_size": 32, "max_total_num_tokens": 262_144,
        "max_running_requests": state.options.max_running.unwrap_or(64), "disaggregation_mode": "null",
        "enable_priority_scheduling": state.options.priority_scheduling,
        "kv_events": null, "internal_states": [{"effective_max_running_requests_per_dp": 64,
            "last_gen_throughput": 0.0, "memory_usage": {"kvcache": 1.0, "token_capacity": 262_144}}]})
}

fn metrics(state: &State) -> String {
    let (running, waiting) = sizes(state);
    let model = &state.options.model;
    let (finished, generations) = state.count(|counters| (counters.finished, counters.generations));
    match state.options.dialect {
        Dialect::Sglang => format!(
            "# TYPE sglang:num_running_reqs gauge\n\
             sglang:num_running_reqs{{engine_type=\"unified\",model_name=\"{model}\",tp_rank=\"0\"}} {running}.0\n\
             # TYPE sglang:num_queue_reqs gauge\n\
             sglang:num_queue_reqs{{engine_type=\"unified\",model_name=\"{model}\",tp_rank=\"0\"}} {waiting}.0\n\
             # TYPE sglang:num_requests_total counter\n\
             sglang:num_requests_total{{engine_type=\"unified\",model_name=\"{model}\"}} {generations}.0\n"
        ),
        Dialect::Vllm | Dialect::Openai => format!(
            "# TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{{engine=\"0\",model_name=\"{model}\"}} {running}.0\n\
             # TYPE vllm:num_requests_waiting gauge\n\
             vllm:num_requests_waiting{{engine=\"0\",model_name=\"{model}\"}} {waiting}.0\n\
             # TYPE vllm:kv_cache_usage_perc gauge\n\
             vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"{model}\"}} 0.0\n\
             # TYPE vllm:num_preemptions counter\n\
             vllm:num_preemptions_total{{engine=\"0\",model_name=\"{model}\"}} 0.0\n\
             # TYPE vllm:request_success counter\n\
             vllm:request_success_total{{engine=\"0\",finished_reason=\"length\",model_name=\"{model}\"}} {finished}.0\n\
             # TYPE vllm:cache_config_info gauge\n\
             vllm:cache_config_info{{block_size=\"32\",num_gpu_blocks=\"8192\",engine=\"0\"}} 1.0\n"
        ),
    }
}
