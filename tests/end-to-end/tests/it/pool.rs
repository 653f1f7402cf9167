//! Pooled connections to engines: a dead one costs no client anything, and nothing runs twice.

use crate::{CHAT, GENERATE, body, fake, set_fault};
use plimsoll_end_to_end::Plan;
use plimsoll_fakes::{Control, Dialect, Fault};
use std::time::Duration;

/// The engine closes idle connections after 1 s while the gateway would keep them for a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_the_engine_closed_is_replaced() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let engine = fake(dialect).await;
        engine.control(Control { idle_close_ms: Some(1_000), ..Control::default() });
        let gateway = Plan::with([engine.url()])
            .set("upstream.idle_timeout_ms", 60_000)
            .set("health.probe_interval_ms", 60_000)
            .set("health.report_stale_ms", 120_000)
            .start()
            .await;
        for round in 1..=3 {
            let answer = gateway.post(CHAT, &body(CHAT, round % 2 == 0, 2)).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
            assert_eq!(engine.snapshot().generations, round, "exactly one generation a request");
            tokio::time::sleep(Duration::from_millis(1_300)).await;
        }
        gateway.finish().await;
    }
}

/// The nastier race: the engine takes the request's bytes on the old connection and closes without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_closes_under_the_request_is_replaced_without_running_twice() {
    for (dialect, route) in [(Dialect::Vllm, CHAT), (Dialect::Sglang, GENERATE)] {
        let engine = fake(dialect).await;
        engine.control(Control { close_on_reuse: Some(true), reset_counters: true, ..Control::default() });
        let gateway = Plan::with([engine.url()])
            .set("health.probe_interval_ms", 60_000)
            .set("health.report_stale_ms", 120_000)
            .start()
            .await;
        for round in 1..=20 {
            let answer = gateway.post(route, &body(route, round % 2 == 0, 2)).await;
            assert_eq!(answer.status(), 200, "{dialect:?} round {round}: {}", answer.text());
            assert_eq!(engine.snapshot().generations, round);
        }
        let seen = engine.snapshot();
        assert!(seen.closed_on_reuse > 5, "the race was met: {}", seen.closed_on_reuse);
        assert_eq!(seen.finished, 20);
        gateway.finish().await;
    }
}

/// By default the gateway lets go of idle connections before an engine (uvicorn: 5 s) does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_dropped_before_the_engine_would() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()])
        .set("upstream.idle_timeout_ms", 500)
        .set("health.probe_interval_ms", 60_000)
        .set("health.report_stale_ms", 120_000)
        .start()
        .await;
    assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200);
    crate::until(&engine, "no idle connection", |seen| seen.open_connections == 0).await;
    gateway.finish().await;
}

/// A connection whose answer broke is never used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spoilt_connection_is_not_pooled() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()])
        .set("health.request_failures", 1_000)
        .set("streams.idle_timeout_ms.high", 400)
        .set("streams.first_token_timeout_ms", 400)
        .start()
        .await;
    for fault in [Fault::LengthShort, Fault::Html, Fault::StallAfter { events: 2 }, Fault::BadJsonAfter { events: 2 }] {
        set_fault(&engine, fault.clone());
        gateway.post(CHAT, &body(CHAT, true, 5)).await;
        set_fault(&engine, Fault::None);
        for _ in 0..3 {
            let answer = gateway.post(CHAT, &body(CHAT, false, 2)).await;
            assert_eq!(answer.status(), 200, "after {fault:?}: {}", answer.text());
        }
    }
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_refuses_connections_for_a_moment_loses_nobody() {
    let (gone, other) = (fake(Dialect::Vllm).await, fake(Dialect::Vllm).await);
    let gateway = Plan::with([gone.url(), other.url()]).set("policy.name", "round_robin").start().await;
    gone.control(Control { refuse_ms: Some(1_500), ..Control::default() });
    for _ in 0..30 {
        let answer = gateway.post(CHAT, &body(CHAT, false, 2)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gateway.healthy(2, plimsoll_end_to_end::PATIENCE).await;
    gateway.finish().await;
}
