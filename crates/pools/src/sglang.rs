//! SGLang, 0.5.6 to 0.5.23: what its info endpoints and load endpoints say.
//!
//! `/server_info` (before 0.5.10: `/get_server_info`) is the resolved start-up arguments, the scheduler's sizes and one
//! state per DP rank in one flat object. It costs a scheduler round trip, so it is asked once per probe. The load
//! endpoints are in [`loads`].

pub(crate) mod loads;
pub(crate) mod metrics;

use crate::capability::{AbortForm, Capability, KvEvents, LoadsForm, PriorityOrder, Product, TokenApi};
use crate::probe::{Answer, Asker, ProbeError, lists};
use plimsoll_core::{EngineKind, LegRole};
use serde_json::Value;

/// More DP ranks than this is a misread.
const MAX_RANKS: u64 = 1024;

/// Answers of the info endpoints.
#[derive(Debug, Default)]
pub(crate) struct Info {
    server: Option<Value>,
    model: Option<Value>,
    /// The path that answered: it is served by the HTTP process alone, hence cheap.
    model_path: Option<&'static str>,
}

/// Asks both info endpoints under their new and old names. `None` where neither answers with an object.
pub(crate) async fn ask_info(asker: &Asker<'_>, paths: Option<&[String]>) -> Result<Option<Info>, ProbeError> {
    let mut info = Info::default();
    for path in ["/server_info", "/get_server_info"] {
        if info.server.is_none() && (paths.is_none() || lists(paths, path)) {
            info.server = asker.get(path).await?.json().filter(Value::is_object);
        }
    }
    for path in ["/model_info", "/get_model_info"] {
        if info.model.is_none() && (paths.is_none() || lists(paths, path)) {
            info.model = asker.get(path).await?.json().filter(Value::is_object);
            info.model_path = info.model.is_some().then_some(path);
        }
    }
    Ok((info.server.is_some() || info.model.is_some()).then_some(info))
}

/// vLLM's developer mode also has a `/server_info`, with other keys.
pub(crate) fn is_sglang(info: &Info) -> bool {
    let has = |value: &Option<Value>, key: &str| value.as_ref().is_some_and(|v| v.get(key).is_some());
    has(&info.model, "model_path")
        || (!has(&info.server, "vllm_config")
            && ["internal_states", "model_path", "max_total_num_tokens"].iter().any(|key| has(&info.server, key)))
}

/// The record of an SGLang engine. `info` is `None` where its info endpoints gave nothing.
pub(crate) async fn describe(
    asker: &Asker<'_>,
    info: Option<&Info>,
    paths: Option<&[String]>,
) -> Result<Capability, ProbeError> {
    let mut capability = Capability::unknown(EngineKind::Sglang, Product::Sglang);
    capability.token_api = TokenApi::SglangGenerate;
    capability.abort = AbortForm::SglangRid;
    capability.health_path = info.and_then(|i| i.model_path).unwrap_or("/v1/models").to_owned();
    match info.and_then(|i| i.server.as_ref()) {
        Some(server) => read_server_info(&mut capability, server, asker.endpoint.authority()),
        None => capability.degrade(
            "neither /server_info nor /get_server_info answers with an object: page size, KV capacity, DP ranks and \
             priority order are unknown; set `admin_api_key` of this engine if it was started with --admin-api-key",
        ),
    }
    if capability.pd_role.is_none() {
        let model = info.and_then(|i| i.model.as_ref());
        capability.pd_role = model.and_then(|m| pd_role(m.get("disaggregation_mode")));
    }
    find_loads(&mut capability, asker, paths).await?;
    Ok(capability)
}

fn read_server_info(capability: &mut Capability, server: &Value, authority: &str) {
    let field = |key: &str| server.get(key).or_else(|| server.get("server_args")?.get(key)).filter(|v| !v.is_null());
    let count = |key: &str| field(key).and_then(Value::as_u64);
    let flag = |key: &str| field(key).and_then(Value::as_bool);
    let state = |key: &str| server.pointer("/internal_states/0").and_then(|s| s.get(key));

    capability.version = field("version").and_then(Value::as_str).map(str::to_owned);
    capability.page_size_tokens = count("page_size").and_then(|n| u32::try_from(n).ok());
    capability.context_tokens = count("context_length");
    capability.kv_capacity_tokens = count("max_total_num_tokens").filter(|n| *n > 0);
    capability.max_running_requests =
        state("effective_max_running_requests_per_dp").and_then(Value::as_u64).filter(|n| *n > 0);
    capability.dp_ranks = count("dp_size").map_or(1, |n| n.clamp(1, MAX_RANKS)) as u16;
    capability.reports_cached_tokens = flag("enable_cache_report");
    capability.pd_role = pd_role(field("disaggregation_mode"));
    capability.priority = match (flag("enable_priority_scheduling"), flag("schedule_low_priority_values_first")) {
        (Some(true), Some(true)) => PriorityOrder::LowerFirst,
        (Some(true), _) => PriorityOrder::HigherFirst,
        (Some(false), _) => PriorityOrder::None,
        (None, _) => PriorityOrder::Unknown,
    };
    capability.kv_events = kv_events(field("kv_events"), field("kv_events_config"), capability.dp_ranks, authority);

    capability.parses_reasoning =
        field("reasoning_parser").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    capability.model_sampling = field("sampling_defaults").and_then(Value::as_str).map(|from| from == "model");

    if flag("enable_metrics") == Some(false) {
        capability.degrade(
            "started without --enable-metrics: no /metrics, and the uncached tokens of its waiting requests are \
             reported as if nothing were cached",
        );
    }
    if capability.reports_cached_tokens == Some(false) {
        capability.degrade(
            "started without --enable-cache-report: OpenAI answers do not say how much of a prompt was cached",
        );
    }
    if capability.priority == PriorityOrder::None {
        capability
            .degrade("started without --enable-priority-scheduling: the order of its own queue cannot be influenced");
    }
    match &capability.kv_events {
        None => capability.degrade(
            "publishes no KV events: cached prefixes can only be guessed from what was sent there; start with \
             --kv-events-config '{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"tcp://*:5657\"}'",
        ),
        Some(events) if events.replay_endpoints.is_empty() => capability.degrade(
            "keeps no KV events for replay: after a gap the view of its cache starts again from nothing; add \
             \"replay_endpoint\" to --kv-events-config",
        ),
        Some(_) => {}
    }
}

fn pd_role(mode: Option<&Value>) -> Option<LegRole> {
    match mode?.as_str()? {
        "null" | "none" | "" => Some(LegRole::Unified),
        "prefill" => Some(LegRole::Prefill),
        "decode" => Some(LegRole::Decode),
        _ => None,
    }
}

/// From `/server_info.kv_events` (0.5.15 and later), else from the start-up argument, which is JSON in a string.
fn kv_events(advertised: Option<&Value>, argument: Option<&Value>, ranks: u16, authority: &str) -> Option<KvEvents> {
    let own_host = authority
        .rsplit_once(':')
        .map_or(authority, |(host, port)| if port.bytes().all(|b| b.is_ascii_digit()) { host } else { authority });
    let topic = |v: &Value| v.get("topic").and_then(Value::as_str).unwrap_or_default().to_owned();
    let per_rank = |host: &str, base: u64, ranks: u16| -> Vec<String> {
        let host = if matches!(host, "*" | "0.0.0.0" | "[::]" | "::" | "") { own_host } else { host };
        (0..u64::from(ranks)).map(|rank| format!("tcp://{host}:{}", base.saturating_add(rank))).collect()
    };
    if let Some(events) = advertised.filter(|e| e.is_object()) {
        let port = |key: &str| events.get(key).and_then(Value::as_u64).filter(|p| (1..=65_535).contains(p));
        let host = events.get("endpoint_host").and_then(Value::as_str).unwrap_or("*");
        let ranks = events.get("dp_size").and_then(Value::as_u64).map_or(ranks, |n| n.clamp(1, MAX_RANKS) as u16);
        return Some(KvEvents {
            endpoints: per_rank(host, port("endpoint_port_base")?, ranks),
            replay_endpoints: port("replay_endpoint_port_base")
                .map(|base| per_rank(host, base, ranks))
                .unwrap_or_default(),
            topic: topic(events),
            block_size_tokens: events.get("block_size").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok()),
        });
    }
    let argument: Value = match argument? {
        Value::String(text) => serde_json::from_str(text).ok()?,
        other => other.clone(),
    };
    if argument.get("publisher").and_then(Value::as_str) != Some("zmq") {
        return None;
    }
    let split = |key: &str| {
        let (host, port) = argument.get(key)?.as_str()?.strip_prefix("tcp://")?.rsplit_once(':')?;
        Some((host.to_owned(), u64::from(port.parse::<u16>().ok()?)))
    };
    let (host, base) = split("endpoint")?;
    Some(KvEvents {
        endpoints: per_rank(&host, base, ranks),
        replay_endpoints: split("replay_endpoint").map(|(h, base)| per_rank(&h, base, ranks)).unwrap_or_default(),
        topic: topic(&argument),
        block_size_tokens: None,
    })
}

async fn find_loads(
    capability: &mut Capability,
    asker: &Asker<'_>,
    paths: Option<&[String]>,
) -> Result<(), ProbeError> {
    // An engine that is busy with a long prefill may keep silent here; then its own list of paths is believed.
    if paths.is_none() || lists(paths, "/v1/loads") {
        let answer = asker.get("/v1/loads").await?;
        let has_loads = answer.as_json().and_then(|v| v.get("loads")).is_some_and(Value::is_array);
        if has_loads || (paths.is_some() && matches!(answer, Answer::Silent)) {
            capability.loads = LoadsForm::V1Loads;
            return Ok(());
        }
    }
    if paths.is_none() || lists(paths, "/get_load") {
        let answer = asker.get("/get_load").await?;
        if answer.as_json().is_some_and(Value::is_array) || (paths.is_some() && matches!(answer, Answer::Silent)) {
            capability.loads = LoadsForm::GetLoad;
            capability.degrade(
                "has /get_load only: the uncached tokens of waiting requests are unknown, and held KV tokens are \
                 overstated while requests wait; /v1/loads of SGLang 0.5.15 tells both",
            );
            return Ok(());
        }
    }
    let metrics = asker.get("/metrics").await?.text();
    if metrics.is_some_and(|text| text.contains("sglang:num_running_reqs")) {
        capability.loads = LoadsForm::Metrics;
        capability
            .degrade("has no load endpoint: /metrics is read instead, whose gauges are up to 40 decode steps old");
    } else {
        capability.degrade("tells no load: only the gateway's own ledger counts; other clients of it are invisible");
    }
    Ok(())
}
