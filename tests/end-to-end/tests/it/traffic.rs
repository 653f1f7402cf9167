//! Who goes, who waits, who is refused when there is more work than the engines can do.

use crate::cache_view::{engine, prompt};
use crate::{GENERATE, paced, until};
use plimsoll_end_to_end::{Answer, Connection, Gateway, PATIENCE, Plan, eventually};
use plimsoll_fakes::{Dialect, FakeEngine, Options};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A fake that takes one request at a time, `ttft_ms` each.
async fn slow(ttft_ms: u64) -> FakeEngine {
    let options = Options { ttft_ms, max_running: Some(1), ..Options::new(Dialect::Sglang) };
    FakeEngine::start(options).await.unwrap()
}

/// 1,000 tokens of prompt as a fake counts them, one of output.
fn ask() -> Value {
    json!({"text": "x".repeat(4_000), "stream": true, "sampling_params": {"max_new_tokens": 1}})
}

/// An engine gets one request at a time and the next one waits at the gateway.
fn one_at_a_time(plan: Plan) -> Plan {
    plan.set("traffic.engine_queue_tokens", 1).set("traffic.engine_queue_ms", 1)
}

/// Sends requests one by one until the gateway knows the rate of its engines.
async fn taught(gateway: &Gateway) {
    for _ in 0..4 * gateway.engines().await.len() {
        assert_eq!(gateway.post(GENERATE, &ask()).await.status(), 200);
    }
    eventually("a known rate", PATIENCE, || async {
        let state = lane(gateway).await;
        if state["capacity_tokens_per_s"].is_number() { Ok(()) } else { Err(state) }
    })
    .await;
}

/// What `/admin/traffic` says of the only model.
async fn lane(gateway: &Gateway) -> Value {
    let report = gateway.admin("GET", "/admin/traffic", &Value::Null).await.json();
    report["models"].as_object().and_then(|models| models.values().next().cloned()).unwrap_or_default()
}

async fn waiting(gateway: &Gateway, requests: u64) {
    eventually("requests that wait", PATIENCE, || async {
        let state = lane(gateway).await;
        if state["depth"]["requests"] == requests { Ok(()) } else { Err(state) }
    })
    .await;
}

/// A request on its way.
async fn send(gateway: &Gateway, headers: &[(&str, &str)]) -> Connection {
    let mut connection = Connection::open(gateway.addr).await;
    connection.post(GENERATE, headers, &ask().to_string()).await;
    connection
}

/// Every token that was admitted is accounted for.
async fn balanced(gateway: &Gateway) {
    eventually("balanced books", PATIENCE, || async {
        let totals = lane(gateway).await["totals"].clone();
        let of = |name: &str| totals[name].as_u64().unwrap_or(u64::MAX);
        let sum = of("settled_tokens").saturating_add(of("refunded_tokens"));
        let closed = of("in_flight_requests") == 0 && of("in_flight_tokens") == 0 && of("admitted_tokens") == sum;
        if closed { Ok(()) } else { Err(totals) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_at_the_gateway_goes_in_order_and_is_told_its_wait() {
    let engine = slow(150).await;
    let gateway = one_at_a_time(Plan::with([engine.url()])).start().await;
    taught(&gateway).await;
    let mut waiters = Vec::new();
    for _ in 0..4 {
        waiters.push(send(&gateway, &[("x-plimsoll-explain", "1")]).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(engine.snapshot().peak_in_flight <= 2, "{:?}", engine.snapshot());
    let mut waits = Vec::new();
    for connection in &mut waiters {
        let answer = connection.answer().await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(answer.header("x-plimsoll-class"), Some("high"));
        waits.push(answer.header("x-plimsoll-wait-ms").unwrap().parse::<u64>().unwrap());
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        assert_eq!(record["traffic"]["why"], if waits.len() == 1 { "room" } else { "turn" }, "{record}");
    }
    assert_eq!(waits[0], 0);
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
    let plain = gateway.post(GENERATE, &ask()).await;
    assert_eq!(plain.header("x-plimsoll-wait-ms"), None, "only who asks is told");
    assert!(gateway.metric("plimsoll_traffic_wait_seconds_count", &["class=\"high\""]).await >= 9.0);
    balanced(&gateway).await;
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_the_queue_leaves_nothing_behind() {
    let engine = slow(600).await;
    let gateway = one_at_a_time(Plan::with([engine.url()])).start().await;
    taught(&gateway).await;
    let before = engine.snapshot().generations;
    let mut first = send(&gateway, &[]).await;
    until(&engine, "the first one", |seen| seen.generations == before + 1).await;
    let leaving: Vec<Connection> = vec![send(&gateway, &[]).await, send(&gateway, &[]).await];
    let mut last = send(&gateway, &[]).await;
    waiting(&gateway, 3).await;
    drop(leaving);
    waiting(&gateway, 1).await;
    assert_eq!((first.answer().await.status(), last.answer().await.status()), (200, 200));
    assert_eq!(engine.snapshot().generations, before + 2, "those that left never reached it");
    balanced(&gateway).await;
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_past_his_deadline_without_an_answer() {
    let engine = slow(3_000).await;
    let gateway = one_at_a_time(Plan::with([engine.url()])).set("traffic.max_wait_ms", 1_500).start().await;
    // Taught while it is quick.
    engine.control(plimsoll_fakes::Control { ttft_ms: Some(50), ..Default::default() });
    taught(&gateway).await;
    engine.control(plimsoll_fakes::Control { ttft_ms: Some(4_000), ..Default::default() });
    let mut first = send(&gateway, &[]).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let cases = [
        (vec![("x-request-deadline-ms", "700")], "slo_unattainable"),
        (vec![("x-slo-ttft-ms", "500")], "slo_unattainable"),
        (vec![], "wait_budget"),
    ];
    let mut sent = Vec::new();
    for (headers, code) in &cases {
        sent.push((Instant::now(), send(&gateway, headers).await, *code));
    }
    for (at, connection, code) in &mut sent {
        let answer = connection.answer().await;
        assert_eq!((answer.status(), answer.code().as_str()), (429, *code), "{}", answer.text());
        assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        assert!(answer.text().contains("water level"), "{}", answer.text());
        // The engine holds the first for four seconds; far less, even on a noisy machine.
        assert!(at.elapsed() < Duration::from_millis(3_500), "{code} after {:?}", at.elapsed());
    }
    assert_eq!(first.answer().await.status(), 200);
    balanced(&gateway).await;
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_says_so_and_repetitions_have_a_budget() {
    let engine = slow(800).await;
    let gateway = one_at_a_time(Plan::with([engine.url()]))
        .set("traffic.queue.requests", 2)
        .set("traffic.retry_burst", 1)
        .set("traffic.retry_fraction", 0.0)
        .start()
        .await;
    taught(&gateway).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(send(&gateway, &[]).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    held.push(send(&gateway, &[("x-stainless-retry-count", "1")]).await);
    waiting(&gateway, 2).await;
    let again = gateway.post_raw(GENERATE, &[("x-stainless-retry-count", "2")], ask().to_string().as_bytes()).await;
    assert_eq!((again.status(), again.code().as_str()), (429, "retry_budget"), "{}", again.text());
    let fresh = gateway.post(GENERATE, &ask()).await;
    assert_eq!((fresh.status(), fresh.code().as_str()), (429, "queue_full"), "{}", fresh.text());
    for connection in &mut held {
        assert_eq!(connection.answer().await.status(), 200);
    }
    assert_eq!(gateway.metric("plimsoll_traffic_refused_total", &["why=\"queue_full\""]).await, 1.0);
    assert_eq!(gateway.metric("plimsoll_errors_total", &["code=\"retry_budget\""]).await, 1.0);
    balanced(&gateway).await;
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_change_while_it_runs_and_bad_ones_are_refused() {
    let engine = slow(700).await;
    let gateway = one_at_a_time(Plan::with([engine.url()])).token("secret").start().await;
    taught(&gateway).await;
    let put = async |change: Value| -> Answer { gateway.admin("PUT", "/admin/traffic", &change).await };
    let report = put(json!({"weights": {"low": 2}, "queue": {"requests": 1}})).await.json();
    assert_eq!(report["settings"]["weights"], json!({"high": 8, "medium": 4, "low": 2}), "the others stay");
    for (bad, word) in [
        (json!({"weights": {"low": 0}}), "traffic.weights.low"),
        (json!({"quota": {"low": [{"level": 0.5, "share": 2.0}]}}), "traffic.quota.low"),
        (json!({"weigths": {}}), "weigths"),
        (json!([1]), "JSON object"),
    ] {
        let answer = put(bad).await;
        assert_eq!(answer.status(), 400);
        assert!(answer.text().contains(word), "{}", answer.text());
    }
    let unasked = plimsoll_end_to_end::ask(gateway.admin, "PUT", "/admin/traffic", &[], b"{}").await;
    assert_eq!(unasked.status(), 401);
    // In force: one may wait.
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(send(&gateway, &[]).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    waiting(&gateway, 1).await;
    assert_eq!(gateway.post(GENERATE, &ask()).await.code(), "queue_full");
    // Off: what waits goes at once.
    let before = engine.snapshot().generations;
    put(json!({"enabled": false})).await;
    until(&engine, "both at the engine", |seen| seen.generations > before).await;
    for connection in &mut held {
        assert_eq!(connection.answer().await.status(), 200);
    }
    gateway.finish().await;
}

/// One after the other: the engines keep real time, on the cores that are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overload_by_long_cold_requests_keeps_the_high_class_served() {
    overload_by_long_cold_requests(true).await;
    // Clients that stream do not ask for usage, and engines do not say what was cached, unless they are told to.
    overload_by_long_cold_requests(false).await;
}

/// Two engines in timing mode, and half as much again as they can prefill, nearly all of it long and cold.
async fn overload_by_long_cold_requests(usage: bool) {
    let timing = ["--timing", "h100-llama3-70b-tp4"];
    let engines = [engine(&timing), engine(&timing)];
    let gateway =
        Plan::with(engines.iter().map(|engine| engine.url.clone())).set("limits.body_bytes", 64 << 20).start().await;
    let complete = |from: usize, tokens: usize| {
        let body = json!({ "prompt": prompt(from, tokens), "max_tokens": 2, "stream": true, "temperature": 0,
            "ignore_eos": true, "stream_options": {"include_usage": usage} })
        .to_string();
        let addr = gateway.addr;
        async move {
            let at = Instant::now();
            let mut connection = Connection::open(addr).await;
            connection.post("/v1/completions", &[], &body).await;
            let head = connection.head().await;
            connection.data().await;
            let took = at.elapsed();
            connection.rest().await;
            (head.status, took)
        }
    };
    // Rates first: short ones on both.
    for round in 0..10 {
        assert_eq!(complete(10_000 + round, 1_000).await.0, 200);
    }
    let (mut high, mut low) = (Vec::new(), Vec::new());
    let began = Instant::now();
    for tick in 0..60usize {
        if tick % 4 == 0 {
            low.push(tokio::spawn(complete(20_000 + tick, 20_000)));
        }
        high.push(tokio::spawn(complete(30_000 + tick, 300)));
        tokio::time::sleep_until((began + Duration::from_millis(150) * (tick as u32 + 1)).into()).await;
        if tick == 40 {
            let metrics = gateway.metrics().await;
            let level = |engine: u32| {
                metrics.contains(&format!("plimsoll_engine_water_level{{engine=\"{engine}\",stage=\"prefill\"}}"))
            };
            assert!(level(0) && level(1), "{metrics}");
        }
    }
    let mut times = (Vec::new(), Vec::new());
    for (tasks, times) in [(high, &mut times.0), (low, &mut times.1)] {
        for task in tasks {
            times.push(task.await.unwrap());
        }
    }
    let served = |of: &[(u16, Duration)]| {
        let mut times: Vec<Duration> = of.iter().filter(|(status, _)| *status == 200).map(|(_, took)| *took).collect();
        times.sort_unstable();
        times
    };
    let (high, low) = (served(&times.0), served(&times.1));
    let report = gateway.admin("GET", "/admin/traffic", &Value::Null).await.text();
    assert_eq!(high.len(), 60, "usage {usage}: nobody of the high class was refused: {report}");
    assert!(!low.is_empty(), "low is not starved: {report}");
    let (high_median, high_p95, low_median) = (high[high.len() / 2], high[high.len() * 95 / 100], low[low.len() / 2]);
    let seen = format!("usage {usage}: high {high_median:?}, p95 {high_p95:?}, low {low_median:?} of {}", low.len());
    eprintln!("{seen}");
    // Without control they wait as long as the low ones.
    assert!(high_median * 4 < low_median && high_p95 < low_median, "{seen}: {report}");
    balanced(&gateway).await;
    gateway.finish().await;
}

/// A fleet that is busy and not overloaded loses nobody to a process that stood still for half a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_of_half_a_second_at_a_load_that_fits_refuses_nobody() {
    let engines = [paced(Dialect::Sglang, 60, 0).await, paced(Dialect::Sglang, 60, 0).await];
    let gateway = Plan::with(engines.iter().map(FakeEngine::url)).start().await;
    taught(&gateway).await;
    let mut sent = Vec::new();
    for tick in 0..120u32 {
        if tick == 40 {
            gateway.process.freeze();
        }
        if tick == 60 {
            gateway.process.thaw();
        }
        let headers = [("x-slo-ttft-ms", "5000")];
        let addr = gateway.addr;
        sent.push(tokio::spawn(async move {
            plimsoll_end_to_end::ask(addr, "POST", GENERATE, &headers, ask().to_string().as_bytes()).await
        }));
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    for task in sent {
        let answer = task.await.unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    assert_eq!(gateway.metric("plimsoll_traffic_refused_total", &[]).await, 0.0);
    balanced(&gateway).await;
    gateway.finish().await;
}
