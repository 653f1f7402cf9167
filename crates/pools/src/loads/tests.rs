use super::*;
use crate::scripted::{Reply, Scripted, json};
use plimsoll_core::{EngineKind, Rank};
use serde_json::json as j;

const SOON: Duration = Duration::from_secs(20);

fn engine(product: Product, loads: LoadsForm) -> Capability {
    let kind = match product {
        Product::Sglang => EngineKind::Sglang,
        Product::Vllm => EngineKind::Vllm,
        _ => EngineKind::Openai,
    };
    Capability { loads, kv_capacity_tokens: Some(1000), ..Capability::unknown(kind, product) }
}

async fn once(server: &Scripted, capability: &Capability) -> Poll {
    poll(&server.endpoint, capability, None, Nanos(7), SOON).await.unwrap()
}

#[tokio::test]
async fn v1_loads_of_0_5_23() {
    let server = Scripted::start([("/v1/loads", json(j!({"version": "0.5.23", "timestamp": 1.0, "loads": [
        {"timestamp": 5.5, "dp_rank": 1, "num_running_reqs": 3, "num_waiting_reqs": 2, "num_waiting_uncached_tokens": 900,
         "num_used_tokens": 400, "num_total_tokens": 1300, "max_total_num_tokens": 32768, "max_running_requests": 16,
         "token_usage": 0.01, "utilization": 0.0},
        {"timestamp": 5.6, "dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 0.0}]})))])
    .await;
    let poll = once(&server, &engine(Product::Sglang, LoadsForm::V1Loads)).await;
    assert!(poll.sign_of_life && !poll.changed);
    let full = LoadReport {
        rank: Rank(1),
        received: Nanos(7),
        running_requests: Some(3),
        waiting_requests: Some(2),
        waiting_uncached_tokens: Some(900),
        used_kv_tokens: Some(400),
        capacity_kv_tokens: Some(32768),
        max_running_requests: Some(16),
    };
    let bare = LoadReport {
        received: Nanos(7),
        running_requests: Some(0),
        waiting_requests: Some(0),
        used_kv_tokens: Some(0),
        ..LoadReport::default()
    };
    assert_eq!(poll.reports, [full, bare]);
}

#[tokio::test]
async fn v1_loads_of_0_5_10() {
    let server = Scripted::start([("/v1/loads", json(j!({"timestamp": "2026-04-05", "version": "0.5.10", "dp_rank_count": 1,
        "loads": [{"dp_rank": 0, "num_running_reqs": 4, "num_waiting_reqs": 1, "num_total_reqs": 5, "num_used_tokens": 77,
                   "max_total_num_tokens": 500, "max_running_requests": 8, "utilization": -1}],
        "aggregate": {"total_reqs": 5}})))])
    .await;
    let report = once(&server, &engine(Product::Sglang, LoadsForm::V1Loads)).await.reports[0];
    assert_eq!((report.running_requests, report.waiting_requests, report.used_kv_tokens), (Some(4), Some(1), Some(77)));
    assert_eq!(report.waiting_uncached_tokens, None, "absent is not zero");
}

#[tokio::test]
async fn get_load_counts_waiting_requests_in_both_numbers() {
    let server = Scripted::start([(
        "/get_load",
        json(j!([
        {"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 700},
        {"dp_rank": 1, "num_reqs": 9, "num_waiting_reqs": 8, "num_tokens": 5000},
        {"num_reqs": 1}, "nonsense", {"dp_rank": -1}])),
    )])
    .await;
    let reports = once(&server, &engine(Product::Sglang, LoadsForm::GetLoad)).await.reports;
    let seen: Vec<_> = reports.iter().map(|r| (r.rank.0, r.running_requests, r.used_kv_tokens)).collect();
    assert_eq!(seen, [(0, Some(3), Some(700)), (1, Some(1), Some(1000)), (2, None, None)]);
    assert_eq!(reports[0].capacity_kv_tokens, Some(1000));
}

#[tokio::test]
async fn a_snapshot_that_does_not_move_grows_old() {
    let at = |stamp: f64, running: u64| {
        json(j!({"version": "0.5.23", "loads": [{"timestamp": stamp, "dp_rank": 0, "num_running_reqs": running}]}))
    };
    let server = Scripted::start([("/v1/loads", at(1.5, 1))]).await;
    let capability = engine(Product::Sglang, LoadsForm::V1Loads);
    let mut state = None;
    let mut seen = Vec::new();
    for now in [10, 20, 30, 40] {
        match now {
            30 => server.set("/v1/loads", at(2.5, 1)),
            // An engine whose stamp stands still although its numbers move is believed.
            40 => server.set("/v1/loads", at(2.5, 2)),
            _ => {}
        }
        let poll = poll(&server.endpoint, &capability, state.as_ref(), Nanos(now), SOON).await.unwrap();
        seen.push(poll.reports[0].received.0);
        state = Some(poll.state);
    }
    assert_eq!(seen, [10, 10, 30, 40]);
}

#[tokio::test]
async fn another_engine_behind_the_same_url_is_noticed() {
    let version = |v: &str| json(j!({"version": v, "loads": []}));
    let server = Scripted::start([("/v1/loads", version("0.5.20"))]).await;
    let mut capability = engine(Product::Sglang, LoadsForm::V1Loads);
    capability.version = Some("0.5.20".into());
    let first = once(&server, &capability).await;
    assert!(!first.changed);
    server.set("/v1/loads", version("0.5.23"));
    assert!(poll(&server.endpoint, &capability, Some(&first.state), Nanos(1), SOON).await.unwrap().changed);
    server.set("/v1/loads", Reply::Is(404, "{}".into()));
    let gone = once(&server, &capability).await;
    assert!(gone.changed && gone.sign_of_life && gone.reports.is_empty());

    let started = |s: u64| json(format!("process_start_time_seconds {s}\nvllm:num_requests_running 1\n"));
    let server = Scripted::start([("/metrics", started(100))]).await;
    let capability = engine(Product::Vllm, LoadsForm::Metrics);
    let first = once(&server, &capability).await;
    server.set("/metrics", started(101));
    assert!(poll(&server.endpoint, &capability, Some(&first.state), Nanos(1), SOON).await.unwrap().changed);
}

#[tokio::test]
async fn vllm_gauges_per_rank() {
    let scrape = "vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 2.0\n\
        vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 5.0\n\
        vllm:num_requests_waiting{engine=\"1\",model_name=\"a\"} 1.0\n\
        vllm:num_requests_waiting_by_reason{engine=\"1\",reason=\"capacity\"} 9.0\n\
        vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} NaN\n\
        vllm:cache_config_info{engine=\"0\",num_gpu_blocks=\"100\",block_size=\"16\",kv_cache_size_tokens=\"2000\"} 1\n";
    let server = Scripted::start([("/metrics", json(scrape))]).await;
    let reports = once(&server, &engine(Product::Vllm, LoadsForm::Metrics)).await.reports;
    assert_eq!(reports.len(), 2);
    assert_eq!(
        (reports[0].running_requests, reports[0].used_kv_tokens, reports[0].capacity_kv_tokens),
        (Some(2), Some(500), Some(2000))
    );
    assert_eq!(reports[0].waiting_requests, None);
    assert_eq!((reports[1].running_requests, reports[1].waiting_requests), (Some(5), Some(1)));
    assert_eq!((reports[1].used_kv_tokens, reports[1].capacity_kv_tokens), (None, Some(1000)));
    let old = "vllm:num_requests_running{model_name=\"a\"} 1\nvllm:gpu_cache_usage_perc{model_name=\"a\"} 0.5\n";
    server.set("/metrics", json(old));
    let reports = once(&server, &engine(Product::Vllm, LoadsForm::Metrics)).await.reports;
    assert_eq!((reports[0].rank, reports[0].used_kv_tokens), (Rank(0), Some(500)));
}

#[tokio::test]
async fn a_scrape_without_gauges_is_no_report() {
    for text in ["", "<html>", "vllm:cache_config_info{block_size=\"16\"} 1\n", "{\"a\":1}"] {
        let server = Scripted::start([
            ("/metrics", Reply::Is(200, text.into())),
            ("/v1/loads", Reply::Is(200, text.into())),
            ("/get_load", Reply::Is(200, text.into())),
            ("/slots", Reply::Is(200, text.into())),
        ])
        .await;
        for (product, form) in [
            (Product::Vllm, LoadsForm::Metrics),
            (Product::Sglang, LoadsForm::Metrics),
            (Product::LlamaCpp, LoadsForm::Metrics),
            (Product::LlamaCpp, LoadsForm::Slots),
            (Product::Sglang, LoadsForm::V1Loads),
            (Product::Sglang, LoadsForm::GetLoad),
        ] {
            let poll = once(&server, &engine(product, form)).await;
            assert!(poll.sign_of_life && poll.reports.is_empty(), "{text:?} as {form:?}: {:?}", poll.reports);
        }
    }
}

#[tokio::test]
async fn llama_cpp_slots() {
    let server =
        Scripted::start([("/slots", json(j!([{"id": 0, "is_processing": true}, {"id": 1, "is_processing": false}])))])
            .await;
    let capability = engine(Product::LlamaCpp, LoadsForm::Slots);
    let report = once(&server, &capability).await.reports[0];
    assert_eq!(
        (report.running_requests, report.max_running_requests, report.waiting_requests),
        (Some(1), Some(2), None)
    );
    server.set("/slots", json(j!([{"id": 0}])));
    assert_eq!(once(&server, &capability).await.reports[0].running_requests, None);
}

#[tokio::test]
async fn signs_of_life() {
    for (status, alive) in
        [(200, true), (204, true), (401, true), (404, true), (429, true), (500, false), (502, false), (503, false)]
    {
        let body = if status == 204 { String::new() } else { "{}".to_owned() };
        let server = Scripted::start([("/health", Reply::Is(status, body))]).await;
        let poll = once(&server, &engine(Product::Other, LoadsForm::None)).await;
        assert_eq!((poll.sign_of_life, poll.status), (alive, status));
    }
}

#[tokio::test]
async fn no_answer_is_an_error() {
    let server = Scripted::start([
        ("/v1/loads", Reply::Silence),
        ("/metrics", Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhalf".to_vec())),
        ("/slots", Reply::Raw(b"nonsense".to_vec())),
    ])
    .await;
    let short = Duration::from_millis(200);
    let frozen = poll(&server.endpoint, &engine(Product::Sglang, LoadsForm::V1Loads), None, Nanos(1), short).await;
    assert!(matches!(frozen, Err(CallError::Timeout)));
    for (product, form) in [(Product::Vllm, LoadsForm::Metrics), (Product::LlamaCpp, LoadsForm::Slots)] {
        let broken = poll(&server.endpoint, &engine(product, form), None, Nanos(1), SOON).await;
        assert!(matches!(broken, Err(CallError::Io(_))), "{broken:?}");
    }
}

#[tokio::test]
async fn a_busy_scheduler_is_told_apart_from_a_frozen_engine() {
    let server = Scripted::start([("/get_load", Reply::Silence), ("/get_model_info", json("{}"))]).await;
    let mut capability = engine(Product::Sglang, LoadsForm::GetLoad);
    capability.health_path = "/get_model_info".into();
    let poll = poll(&server.endpoint, &capability, None, Nanos(1), Duration::from_secs(2)).await.unwrap();
    assert!(poll.sign_of_life && poll.reports.is_empty());
}

#[tokio::test]
async fn an_endless_answer_is_cut_and_the_cheap_path_decides() {
    let endless = Reply::Endless(b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'#'; 1 << 16]);
    let server = Scripted::start([("/metrics", endless), ("/health", json(""))]).await;
    let poll = once(&server, &engine(Product::Vllm, LoadsForm::Metrics)).await;
    assert!(poll.sign_of_life && poll.reports.is_empty());
}

#[tokio::test]
async fn recordings_of_real_engines() {
    let Some(wire) = crate::recordings("loads::recordings_of_real_engines") else { return };
    // The second vLLM holds blocks for a transfer that nobody came for, with nothing running.
    for (file, product, used, capacity) in [
        ("metrics_vllm.txt", Product::Vllm, Some(0), Some(131_072)),
        ("metrics_vllm_nixl.txt", Product::Vllm, Some(1731), Some(16_384)),
        ("metrics_sglang.txt", Product::Sglang, Some(0), Some(32_768)),
        ("metrics_llamacpp.txt", Product::LlamaCpp, None, None),
    ] {
        let server = Scripted::start([("/metrics", json(std::fs::read_to_string(wire.join(file)).unwrap()))]).await;
        let reports = once(&server, &engine(product, LoadsForm::Metrics)).await.reports;
        assert_eq!(reports.len(), 1, "{file}");
        assert_eq!((reports[0].running_requests, reports[0].waiting_requests), (Some(0), Some(0)), "{file}");
        assert_eq!(reports[0].capacity_kv_tokens, capacity, "{file}");
        assert_eq!(reports[0].used_kv_tokens, used, "{file}");
    }
}
