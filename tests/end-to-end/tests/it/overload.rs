//! Refusals and failures of engines: who is blamed, how often it is tried, what the client is told.

use crate::{CHAT, GENERATE, body, fake, set_fault, text};
use plimsoll_end_to_end::{Connection, Gateway, Plan, sse};
use plimsoll_fakes::{Control, Dialect, FakeEngine, Fault, Options};

async fn three(dialect: Dialect, fault: Fault) -> (Vec<FakeEngine>, Gateway) {
    let mut engines = Vec::new();
    for _ in 0..3 {
        let engine = fake(dialect).await;
        set_fault(&engine, fault.clone());
        engines.push(engine);
    }
    let gateway = Plan::with(engines.iter().map(FakeEngine::url)).start().await;
    (engines, gateway)
}

fn attempts(engines: &[FakeEngine]) -> u64 {
    engines.iter().map(|engine| engine.snapshot().requests_on(CHAT)).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_400s_eject_nobody_and_are_tried_once() {
    let (engines, gateway) = three(Dialect::Sglang, Fault::Status { status: 400, retry_after_s: None }).await;
    for round in 0..50 {
        let answer = gateway.post(CHAT, &body(CHAT, round % 2 == 0, 2)).await;
        assert_eq!(answer.status(), 400, "{}", answer.text());
        assert!(answer.text().contains("asked to fail"), "the engine's own words: {}", answer.text());
    }
    assert_eq!(attempts(&engines), 50);
    assert_eq!(gateway.states().await, ["healthy"; 3]);
    for engine in &engines {
        set_fault(engine, Fault::None);
    }
    for _ in 0..9 {
        assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200);
    }
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_refuse_it_is_one_attempt_and_retry_after() {
    for status in [503, 429] {
        let (engines, gateway) = three(Dialect::Vllm, Fault::Status { status, retry_after_s: Some(30) }).await;
        // Until each has refused once nobody can know that all do.
        while engines.iter().any(|engine| engine.snapshot().requests_on(CHAT) == 0) {
            gateway.post(CHAT, &body(CHAT, false, 2)).await;
        }
        let before = attempts(&engines);
        for round in 0..20 {
            let answer = gateway.post(CHAT, &body(CHAT, round % 2 == 0, 2)).await;
            assert!(matches!(answer.status(), 429 | 503), "{} {}", answer.status(), answer.text());
            assert!(matches!(answer.code().as_str(), "engine_overloaded" | "no_capacity"), "{}", answer.text());
            let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=30).contains(&wait), "{wait}");
        }
        assert_eq!(attempts(&engines) - before, 20, "one attempt each");
        assert_eq!(gateway.states().await, ["healthy"; 3], "a refusal is no fault");
        gateway.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_without_retry_after_get_one_and_multiply_nothing() {
    let (engines, gateway) = three(Dialect::Vllm, Fault::Status { status: 503, retry_after_s: None }).await;
    for _ in 0..30 {
        let answer = gateway.post(CHAT, &body(CHAT, false, 2)).await;
        assert!(matches!(answer.status(), 429 | 503) && answer.header("retry-after").is_some(), "{}", answer.text());
    }
    assert!(attempts(&engines) <= 30 + 2, "{} attempts for 30 requests", attempts(&engines));
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_refuses_beside_one_that_does_not_is_not_noticed() {
    let (full, free) = (fake(Dialect::Vllm).await, fake(Dialect::Vllm).await);
    set_fault(&full, Fault::Status { status: 503, retry_after_s: None });
    let gateway = Plan::with([full.url(), free.url()]).start().await;
    for _ in 0..30 {
        assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200);
    }
    assert!(full.snapshot().requests_on(CHAT) < 15, "it is spared while it refuses");
    assert_eq!(gateway.states().await, ["healthy"; 2]);
    gateway.finish().await;
}

/// SGLang has sent its 200 before it finds its queue full. Nothing has reached the client: it is tried elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_inside_a_200_stream_is_a_refusal() {
    let options =
        Options { max_running: Some(1), max_queued: Some(0), ttft_ms: 60_000, ..Options::new(Dialect::Sglang) };
    let (full, free) = (FakeEngine::start(options).await.unwrap(), fake(Dialect::Sglang).await);
    let gateway = Plan::with([full.url(), free.url()]).set("policy.name", "round_robin").start().await;
    // Somebody else fills it, past the gateway.
    let mut other = Connection::open(full.addr()).await;
    other.post(GENERATE, &[], &body(GENERATE, true, 2).to_string()).await;
    crate::until(&full, "a full engine", |seen| seen.in_flight == 1).await;
    for route in [GENERATE, CHAT] {
        for _ in 0..4 {
            let events = gateway.events(route, &body(route, true, 3)).await;
            assert_eq!(sse::text(&events), text(3), "{events:?}");
        }
    }
    assert!(full.snapshot().queue_full > 0, "it was asked and refused");
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_fail_attempts_are_bounded_by_the_budget() {
    let (engines, gateway) = three(Dialect::Vllm, Fault::Status { status: 500, retry_after_s: None }).await;
    for round in 0..100 {
        let answer = gateway.post(CHAT, &body(CHAT, round % 2 == 0, 2)).await;
        assert!(matches!(answer.status(), 502 | 503), "{} {}", answer.status(), answer.text());
    }
    let attempts = attempts(&engines);
    assert!(attempts <= 100 + 10 + 16, "{attempts} attempts for 100 requests: 10 % and a burst of 16 are allowed");
    let denied = gateway.metric("plimsoll_retries_denied_total", &[]).await;
    assert!(denied > 0.0, "and what was denied is counted");
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_budget_refills_with_traffic_only() {
    let (bad, good) = (fake(Dialect::Vllm).await, fake(Dialect::Vllm).await);
    set_fault(&bad, Fault::Status { status: 500, retry_after_s: None });
    let gateway = Plan::with([bad.url(), good.url()])
        .set("policy.name", "round_robin")
        .set("retry.budget_burst", 3)
        .set("retry.budget_fraction", 0.0)
        .set("health.request_failures", 1_000)
        .start()
        .await;
    let mut failed = 0;
    for _ in 0..20 {
        failed += u64::from(gateway.post(CHAT, &body(CHAT, false, 2)).await.status() != 200);
    }
    assert_eq!(bad.snapshot().requests_on(CHAT), 10, "round robin gives it every second one");
    assert_eq!(failed, 7, "three retries and no more");
    gateway.finish().await;
}

/// 1 % resets must not open anything (verl/vime docs #371).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_resets_eject_nobody() {
    let engines = [fake(Dialect::Vllm).await, fake(Dialect::Vllm).await];
    for engine in &engines {
        let mut faults = vec![Fault::None; 49];
        faults.push(Fault::CloseBeforeHeaders);
        engine.control(Control { faults: Some(faults), ..Control::default() });
    }
    let gateway = Plan::with(engines.iter().map(FakeEngine::url)).start().await;
    for _ in 0..300 {
        let answer = gateway.post(CHAT, &body(CHAT, false, 1)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    assert_eq!(gateway.metric("plimsoll_engine_health_changes_total", &["result=\"ejected\""]).await, 0.0);
    gateway.finish().await;
}
