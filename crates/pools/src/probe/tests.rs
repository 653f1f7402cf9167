use super::*;
use crate::capability::{AbortForm, LoadsForm, PriorityOrder, TokenApi};
use crate::scripted::{Reply, Scripted, json};
use plimsoll_core::LegRole;
use serde_json::json as j;

const SOON: Duration = Duration::from_secs(20);

async fn find(server: &Scripted) -> Result<Capability, ProbeError> {
    probe(&server.endpoint, None, SOON).await
}

fn paths(list: &[&str]) -> Reply {
    let paths: serde_json::Map<String, Value> = list.iter().map(|p| ((*p).to_owned(), j!({}))).collect();
    json(j!({"openapi": "3.1.0", "paths": paths}))
}

fn models(owner: &str) -> Reply {
    json(
        j!({"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": owner, "root": "tiny", "max_model_len": 8192}]}),
    )
}

fn sglang_0_5_23() -> Vec<(&'static str, Reply)> {
    vec![
        (
            "/openapi.json",
            paths(&[
                "/generate",
                "/server_info",
                "/model_info",
                "/v1/loads",
                "/v1/chat/completions",
                "/v1/completions",
            ]),
        ),
        ("/v1/models", models("sglang")),
        (
            "/server_info",
            json(j!({"version": "0.5.23", "model_path": "/m", "page_size": 32, "dp_size": 2, "context_length": 8192,
                "max_total_num_tokens": 32768, "enable_metrics": true, "enable_cache_report": true,
                "enable_priority_scheduling": true, "schedule_low_priority_values_first": false, "api_key": "secret",
                "disaggregation_mode": "null", "internal_states": [{"effective_max_running_requests_per_dp": 16}],
                "kv_events": {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv",
                    "block_size": 32, "dp_size": 2, "replay_endpoint_port_base": 5657}})),
        ),
        ("/model_info", json(j!({"model_path": "/m", "served_model_name": "tiny"}))),
        ("/v1/loads", json(j!({"version": "0.5.23", "loads": []}))),
    ]
}

#[tokio::test]
async fn a_current_sglang() {
    let server = Scripted::start(sglang_0_5_23()).await;
    let c = find(&server).await.unwrap();
    assert_eq!((c.kind, c.product, c.version.as_deref()), (EngineKind::Sglang, Product::Sglang, Some("0.5.23")));
    assert_eq!((c.page_size_tokens, c.context_tokens, c.kv_capacity_tokens), (Some(32), Some(8192), Some(32768)));
    assert_eq!((c.dp_ranks, c.max_running_requests), (2, Some(16)));
    assert_eq!((c.loads, c.abort, c.token_api), (LoadsForm::V1Loads, AbortForm::SglangRid, TokenApi::SglangGenerate));
    assert_eq!((c.priority, c.reports_cached_tokens), (PriorityOrder::HigherFirst, Some(true)));
    assert_eq!((c.pd_role, c.health_path.as_str()), (Some(LegRole::Unified), "/model_info"));
    let events = c.kv_events.as_ref().unwrap();
    assert_eq!(events.endpoints, ["tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"]);
    assert_eq!(events.replay_endpoints, ["tcp://127.0.0.1:5657", "tcp://127.0.0.1:5658"]);
    assert_eq!((events.topic.as_str(), events.block_size_tokens), ("kv", Some(32)));
    assert!(c.native_generate() && c.complete && c.degraded.is_empty(), "{:?}", c.degraded);
    assert_eq!(c.model_names(), ["tiny"]);
    assert!(!serde_json::to_string(&c).unwrap().contains("secret"));
    let asked: Vec<_> = server.seen().into_iter().map(|(line, _)| line).collect();
    assert!(!asked.iter().any(|line| line.contains("/health")), "SGLang's /health runs a request: {asked:?}");
}

#[tokio::test]
async fn sglang_0_5_6_has_the_old_names_and_says_what_is_missing() {
    let server = Scripted::start([
        ("/openapi.json", paths(&["/generate", "/get_server_info", "/get_model_info", "/get_load", "/v1/chat/completions"])),
        ("/v1/models", models("sglang")),
        (
            "/get_server_info",
            json(j!({"version": "0.5.6", "page_size": 1, "dp_size": 1, "context_length": null, "max_total_num_tokens": 1000,
                "enable_metrics": false, "enable_cache_report": false, "enable_priority_scheduling": false,
                "kv_events_config": "{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\",\"topic\":\"t\"}", "internal_states": []})),
        ),
        ("/get_model_info", json(j!({"model_path": "/m", "disaggregation_mode": "decode"}))),
        ("/get_load", json(j!([{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}]))),
    ])
    .await;
    let c = find(&server).await.unwrap();
    assert_eq!((c.kind, c.loads, c.version.as_deref()), (EngineKind::Sglang, LoadsForm::GetLoad, Some("0.5.6")));
    assert_eq!((c.priority, c.pd_role), (PriorityOrder::None, Some(LegRole::Decode)));
    // From the model list, because the argument was left out.
    assert_eq!(c.context_tokens, Some(8192));
    assert_eq!(c.health_path, "/get_model_info");
    assert_eq!(c.kv_events.as_ref().unwrap().endpoints, ["tcp://127.0.0.1:5557"]);
    for flag in
        ["--enable-metrics", "--enable-cache-report", "--enable-priority-scheduling", "replay_endpoint", "/get_load"]
    {
        assert!(c.degraded.iter().any(|d| d.contains(flag)), "nothing about {flag} in {:?}", c.degraded);
    }
}

#[tokio::test]
async fn sglang_is_known_by_its_info_alone() {
    let server = Scripted::start([("/get_model_info", json(j!({"model_path": "/m"})))]).await;
    let c = find(&server).await.unwrap();
    assert_eq!((c.kind, c.loads), (EngineKind::Sglang, LoadsForm::None));
    assert!(c.degraded.iter().any(|d| d.contains("/server_info")));
    assert!(c.degraded.iter().any(|d| d.contains("name the models")));
}

#[tokio::test]
async fn fields_of_other_types_are_unknown() {
    let mut script = sglang_0_5_23();
    script[2].1 =
        json(j!({"version": 5, "page_size": "32", "dp_size": -2, "context_length": [1], "max_total_num_tokens": 0,
        "enable_metrics": "yes", "kv_events": [], "kv_events_config": "{not json", "internal_states": {"a": 1},
        "disaggregation_mode": 7, "enable_priority_scheduling": null}));
    let c = find(&Scripted::start(script).await).await.unwrap();
    assert_eq!(c.kind, EngineKind::Sglang);
    assert_eq!((c.version, c.page_size_tokens, c.kv_capacity_tokens, c.dp_ranks), (None, None, None, 1));
    assert_eq!((c.max_running_requests, c.pd_role, c.priority), (None, None, PriorityOrder::Unknown));
    assert_eq!((c.kv_events, c.reports_cached_tokens), (None, None));
}

const VLLM_METRICS: &str = "# HELP x\nvllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 0.0\n\
    vllm:num_requests_running{engine=\"1\",model_name=\"tiny\"} 0.0\n\
    vllm:cache_config_info{block_size=\"32\",engine=\"0\",num_gpu_blocks=\"4096\"} 1.0\n";

fn vllm() -> Vec<(&'static str, Reply)> {
    vec![
        (
            "/openapi.json",
            paths(&[
                "/version",
                "/v1/completions",
                "/v1/chat/completions",
                "/kv_event_sources",
                "/inference/v1/abort_requests",
            ]),
        ),
        ("/v1/models", models("vllm")),
        ("/version", json(j!({"version": "0.32.0"}))),
        ("/metrics", json(VLLM_METRICS)),
        (
            "/kv_event_sources",
            json(j!([{"data_parallel_rank": 1, "endpoint": "tcp://*:5558", "replay_endpoint": null, "topic": "t"},
            {"data_parallel_rank": 0, "endpoint": "tcp://10.0.0.1:5557", "replay_endpoint": null, "topic": "t"}])),
        ),
        ("/inference/v1/abort_requests", Reply::Is(403, "{}".into())),
    ]
}

#[tokio::test]
async fn a_vllm_and_what_it_hides() {
    let server = Scripted::start(vllm()).await;
    let c = find(&server).await.unwrap();
    assert_eq!((c.kind, c.product, c.version.as_deref()), (EngineKind::Vllm, Product::Vllm, Some("0.32.0")));
    assert_eq!((c.page_size_tokens, c.kv_capacity_tokens, c.dp_ranks), (Some(32), Some(131_072), 2));
    assert_eq!((c.loads, c.abort), (LoadsForm::Metrics, AbortForm::Disconnect));
    assert_eq!((c.priority, c.reports_cached_tokens, c.native_generate()), (PriorityOrder::Unknown, None, false));
    let events = c.kv_events.unwrap();
    assert_eq!(events.endpoints, ["tcp://10.0.0.1:5557", "tcp://127.0.0.1:5558"]);
    assert!(events.replay_endpoints.is_empty());
    assert!(!server.seen().iter().any(|(line, _)| line.contains("server_info")));

    server.set("/inference/v1/abort_requests", Reply::Is(400, "{}".into()));
    assert_eq!(find(&server).await.unwrap().abort, AbortForm::VllmInternalId);
    server.set("/metrics", json("process_open_fds 3\n"));
    let c = find(&server).await.unwrap();
    assert_eq!(c.loads, LoadsForm::None);
    assert!(c.degraded.iter().any(|d| d.contains("--disable-log-stats")));
}

/// As vLLM 0.32.0 answers `/kv_event_sources`: by rank number, and empty where nothing is published.
#[tokio::test]
async fn kv_event_sources_of_vllm_by_rank() {
    let source = |port: u16| {
        j!({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": format!("tcp://*:{port}"),
            "replay_endpoint": format!("tcp://*:{}", port + 1000), "buffer_steps": 10_000, "hwm": 100_000,
            "max_queue_size": 100_000, "topic": "kv@10.0.0.1:8101@tiny"})
    };
    let server = Scripted::start(vllm()).await;
    // As text, since numbers as keys sort "10" before "2".
    let text = format!("{{\"10\":{},\"0\":{},\"2\":{}}}", source(21_110), source(21_100), source(21_102));
    server.set("/kv_event_sources", Reply::Is(200, text));
    let events = find(&server).await.unwrap().kv_events.unwrap();
    assert_eq!(events.endpoints, ["tcp://127.0.0.1:21100", "tcp://127.0.0.1:21102", "tcp://127.0.0.1:21110"]);
    assert_eq!(events.replay_endpoints, ["tcp://127.0.0.1:22100", "tcp://127.0.0.1:22102", "tcp://127.0.0.1:22110"]);
    assert_eq!((events.topic.as_str(), events.block_size_tokens), ("kv@10.0.0.1:8101@tiny", Some(32)));

    for none in ["{}", "[]", r#"{"0":{"publisher":"null","endpoint":"tcp://*:5557"}}"#, r#"{"a":{}}"#, "7"] {
        server.set("/kv_event_sources", Reply::Is(200, none.into()));
        let c = find(&server).await.unwrap();
        assert_eq!(c.kv_events, None, "{none}");
        assert!(c.degraded.iter().any(|d| d.contains("--kv-events-config")), "{:?}", c.degraded);
    }
}

#[tokio::test]
async fn the_developer_mode_of_vllm_is_not_sglang() {
    let server = Scripted::start([
        ("/v1/models", json(j!({"object": "list", "data": [{"id": "tiny"}]}))),
        ("/server_info", json(j!({"vllm_config": "model='tiny'", "model_path": "/m"}))),
        ("/version", json(j!({"version": "0.10.1"}))),
    ])
    .await;
    let c = find(&server).await.unwrap();
    assert_eq!((c.kind, c.version.as_deref()), (EngineKind::Vllm, Some("0.10.1")));
}

#[tokio::test]
async fn llama_cpp() {
    let metrics = "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n";
    let server = Scripted::start([
        ("/v1/models", json(j!({"object": "list", "data": [{"id": "gemma", "owned_by": "llamacpp"}]}))),
        ("/props", json(j!({"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2, "build_info": "b8681"}))),
        ("/metrics", json(metrics)),
        ("/health", json(j!({"status": "ok"}))),
    ])
    .await;
    let c = find(&server).await.unwrap();
    assert_eq!((c.kind, c.product, c.loads), (EngineKind::Openai, Product::LlamaCpp, LoadsForm::Metrics));
    assert_eq!((c.context_tokens, c.max_running_requests, c.version.as_deref()), (Some(4096), Some(2), Some("b8681")));
    server.set("/metrics", Reply::Is(501, "{}".into()));
    server.set("/slots", json(j!([{"id": 0, "is_processing": false}])));
    assert_eq!(find(&server).await.unwrap().loads, LoadsForm::Slots);
}

#[tokio::test]
async fn any_other_server_and_a_kind_from_the_config() {
    let list = json(j!({"object": "list", "data": [{"id": "m", "owned_by": "acme"}, {"id": ""}, 7]}));
    let server = Scripted::start([("/v1/models", list), ("/version", json(j!({"version": "1"})))]).await;
    let c = find(&server).await.unwrap();
    assert_eq!((c.kind, c.product, c.health_path.as_str()), (EngineKind::Openai, Product::Other, "/v1/models"));
    assert_eq!(c.model_names(), ["m"]);
    let c = probe(&server.endpoint, Some(EngineKind::Sglang), SOON).await.unwrap();
    assert_eq!(c.kind, EngineKind::Sglang);
    assert!(c.degraded.iter().any(|d| d.contains("kind = \"sglang\"")), "{:?}", c.degraded);
}

#[tokio::test]
async fn what_is_no_engine_is_named() {
    let html = Reply::Is(200, "<!doctype html><title>Welcome</title>".into());
    let all = ["/openapi.json", "/v1/models", "/server_info", "/version", "/metrics", "/health", "/model_info"];
    let cases: [(Reply, &str); 5] = [
        (html, "HTML"),
        (Reply::Is(200, "pong".into()), "not JSON"),
        (Reply::Is(404, "nope".into()), "404"),
        (Reply::Is(200, "{\"hello\":1}".into()), "lists nothing"),
        (Reply::Is(200, String::new()), "answered nothing"),
    ];
    for (reply, word) in cases {
        let server = Scripted::start(all.map(|p| (p, reply.clone()))).await;
        for hint in [None, Some(EngineKind::Sglang), Some(EngineKind::Openai)] {
            let error = probe(&server.endpoint, hint, SOON).await.unwrap_err();
            assert!(matches!(error, ProbeError::NotAnEngine(_)) && error.to_string().contains(word), "{word}: {error}");
            assert!(!error.is_transient());
        }
    }
}

#[tokio::test]
async fn starting_denied_and_absent_engines() {
    let all = [
        "/openapi.json",
        "/v1/models",
        "/server_info",
        "/get_server_info",
        "/model_info",
        "/get_model_info",
        "/version",
        "/metrics",
    ];
    let error = find(&Scripted::start(all.map(|p| (p, Reply::Is(503, "{}".into())))).await).await.unwrap_err();
    assert!(matches!(error, ProbeError::NotReady { status: 503, .. }) && error.is_transient(), "{error}");
    let error = find(&Scripted::start(all.map(|p| (p, Reply::Is(401, "{}".into())))).await).await.unwrap_err();
    assert!(matches!(error, ProbeError::Denied { status: 401, .. }), "{error}");
    let gone = Scripted::start([]).await;
    gone.endpoint.call(http::Method::GET, "/", None, crate::http::Key::Inference, SOON, 100).await.unwrap();
    let address = gone.endpoint.url().to_owned();
    drop(gone);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let endpoint = Endpoint::new(&address, crate::http::EndpointOptions::default()).unwrap();
    let error = probe(&endpoint, None, SOON).await.unwrap_err();
    assert!(matches!(error, ProbeError::Unreachable(_)) && error.is_transient(), "{error}");
}

#[tokio::test]
async fn a_frozen_engine_is_a_time_out_within_the_deadline() {
    let server = Scripted::start(["/openapi.json", "/v1/models", "/server_info"].map(|p| (p, Reply::Silence))).await;
    let error = probe(&server.endpoint, None, Duration::from_millis(400)).await.unwrap_err();
    assert!(matches!(error, ProbeError::Timeout { .. }), "{error}");
    assert!(server.seen().len() <= 2, "a frozen engine is not asked again and again");
}

#[tokio::test]
async fn one_slow_or_broken_path_does_not_spoil_the_probe() {
    let mut script = sglang_0_5_23();
    script[4].1 = Reply::Silence;
    let server = Scripted::start(script).await;
    let c = probe(&server.endpoint, None, Duration::from_secs(3)).await.unwrap();
    assert_eq!(c.loads, LoadsForm::V1Loads, "listed, and silent only because the engine is busy");
    assert!(!c.complete);
    for broken in [
        Reply::Raw(b"garbage garbage\r\n\r\n".to_vec()),
        Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{\"a\":".to_vec()),
        Reply::Endless(
            b"HTTP/1.1 200 OK\r\n".to_vec(),
            b"x-a: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n".to_vec(),
        ),
        Reply::Endless(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n".to_vec(), vec![b'#'; 1 << 16]),
    ] {
        let mut script = vllm();
        script[3].1 = broken;
        let c = find(&Scripted::start(script).await).await.unwrap();
        assert_eq!((c.kind, c.loads), (EngineKind::Vllm, LoadsForm::None));
    }
}

/// `/server_info` passes through SGLang's scheduler, which may be deep in a prefill.
#[tokio::test]
async fn a_busy_sglang_asked_again_keeps_its_facts() {
    let server = Scripted::start(sglang_0_5_23()).await;
    let before = find(&server).await.unwrap();
    server.set("/server_info", Reply::Silence);
    let now = probe(&server.endpoint, None, Duration::from_secs(3)).await.unwrap();
    assert_eq!((now.dp_ranks, now.kv_capacity_tokens, now.complete), (1, None, false));
    assert_eq!(now.after(&before), Capability { complete: false, ..before });
}

#[tokio::test]
async fn garbage_on_every_path_is_unreachable() {
    let garbage = Reply::Raw(b"\x16\x03\x01 not http".to_vec());
    let server = Scripted::start(["/openapi.json", "/v1/models"].map(|p| (p, garbage.clone()))).await;
    let error = find(&server).await.unwrap_err();
    assert!(matches!(error, ProbeError::Unreachable(_)), "{error}");
}
