//! vLLM, 0.10 and later: what can be seen of it from outside.
//!
//! vLLM shows few of its start-up flags. Sizes come from `vllm:cache_config_info` in `/metrics`, ranks from the
//! `engine` label, KV events from `/kv_event_sources`. Whether priorities or cached-token reports are on cannot be
//! seen; a `priority` sent to an engine without `--scheduling-policy priority` may be refused, so none is sent unless
//! the config says so. Priorities are LOWER first here, the opposite of SGLang.

pub(crate) mod metrics;

use crate::capability::{AbortForm, Capability, KvEvents, LoadsForm, Product, TokenApi};
use crate::http::Key;
use crate::probe::{Answer, Asker, ProbeError, lists};
use http::{Method, StatusCode};
use plimsoll_core::EngineKind;
use serde_json::Value;

/// Where vLLM with `--enable-scale-out` takes aborts by id.
pub(crate) const ABORT_PATH: &str = "/inference/v1/abort_requests";

pub(crate) async fn describe(
    asker: &Asker<'_>,
    version: Option<String>,
    paths: Option<&[String]>,
    scrape: Option<&str>,
) -> Result<Capability, ProbeError> {
    let mut capability = Capability::unknown(EngineKind::Vllm, Product::Vllm);
    capability.version = version;
    capability.token_api = TokenApi::CompletionsIds;
    let facts = scrape.map(metrics::constants).unwrap_or_default();
    capability.page_size_tokens = facts.block_size_tokens;
    capability.kv_capacity_tokens = facts.capacity_kv_tokens;
    capability.dp_ranks = facts.ranks.max(1);
    if facts.has_gauges {
        capability.loads = LoadsForm::Metrics;
    } else {
        capability.degrade(
            "/metrics has no vllm:num_requests_running: only the gateway's own ledger counts; start without \
             --disable-log-stats",
        );
    }
    if lists(paths, ABORT_PATH) && abort_is_enabled(asker).await? {
        capability.abort = AbortForm::VllmInternalId;
    }
    if paths.is_none() || lists(paths, "/kv_event_sources") {
        capability.kv_events = asker
            .get("/kv_event_sources")
            .await?
            .json()
            .and_then(|sources| kv_events(&sources, asker.endpoint.authority(), capability.page_size_tokens));
    }
    match &capability.kv_events {
        None => capability.degrade(
            "advertises no KV events: cached prefixes can only be guessed from what was sent there; start with \
             --kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\",\
             \"replay_endpoint\":\"tcp://*:5657\"}', or name the endpoint in the config if it has one",
        ),
        Some(events) if events.replay_endpoints.is_empty() => capability.degrade(
            "keeps no KV events for replay: after a gap the view of its cache starts again from nothing; add \
             \"replay_endpoint\" to --kv-events-config",
        ),
        Some(_) => {}
    }
    capability.degrade(
        "does not show whether answers report cached prompt tokens (--enable-prompt-tokens-details) and whether \
         priorities are on (--scheduling-policy priority): no `priority` is sent unless `priority_order` of this engine is set",
    );
    Ok(capability)
}

/// Asks the abort endpoint to abort nothing: a body without ids is refused as invalid where the endpoint is on, and
/// as forbidden where it is off.
async fn abort_is_enabled(asker: &Asker<'_>) -> Result<bool, ProbeError> {
    let answer = asker.ask(Method::POST, ABORT_PATH, Some("{}"), Key::Admin).await?;
    Ok(match answer {
        Answer::Status(status) => {
            matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY)
        }
        Answer::Json(_) | Answer::Text(_) => true,
        Answer::TooLarge | Answer::Silent | Answer::Broken(_) => false,
    })
}

/// vLLM 0.32 answers one object per rank under the rank's number, with the ports already shifted by rank:
/// `{"0": {"publisher", "endpoint", "replay_endpoint", "topic", ..}}`, and `{}` where it publishes nothing. A list whose
/// entries name their `data_parallel_rank`, bare or inside an object, is read too.
fn kv_events(sources: &Value, authority: &str, block_size_tokens: Option<u32>) -> Option<KvEvents> {
    let listed = |list: &'_ Vec<Value>| -> Vec<(u64, Value)> {
        let rank = |i: usize, s: &Value| s.get("data_parallel_rank").and_then(Value::as_u64).unwrap_or(i as u64);
        list.iter().enumerate().map(|(i, source)| (rank(i, source), source.clone())).collect()
    };
    let mut ranked: Vec<(u64, Value)> = match sources {
        Value::Array(list) => listed(list),
        Value::Object(map) => match map.values().find_map(Value::as_array) {
            Some(list) => listed(list),
            None => map.iter().filter_map(|(rank, source)| Some((rank.parse().ok()?, source.clone()))).collect(),
        },
        _ => return None,
    };
    ranked.retain(|(_, source)| source.get("publisher").and_then(Value::as_str).is_none_or(|p| p == "zmq"));
    ranked.sort_by_key(|(rank, _)| *rank);
    let own_host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let address = |source: &Value, key: &str| {
        let text = source.get(key)?.as_str()?;
        let wild = ["tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:"].iter().find_map(|p| text.strip_prefix(p));
        Some(wild.map_or_else(|| text.to_owned(), |port| format!("tcp://{own_host}:{port}")))
    };
    let endpoints: Vec<String> = ranked.iter().filter_map(|(_, s)| address(s, "endpoint")).collect();
    let replay: Vec<String> = ranked.iter().filter_map(|(_, s)| address(s, "replay_endpoint")).collect();
    (!endpoints.is_empty()).then(|| KvEvents {
        // A partial list could not be told apart by rank.
        replay_endpoints: if replay.len() == endpoints.len() { replay } else { Vec::new() },
        endpoints,
        topic: ranked[0].1.get("topic").and_then(Value::as_str).unwrap_or_default().to_owned(),
        block_size_tokens,
    })
}
