//! Silence: comments keep the connection, and the class says how long an engine may be silent.

use crate::{CHAT, GENERATE, body, fake, paced, set_fault};
use plimsoll_end_to_end::Plan;
use plimsoll_end_to_end::sse::Event;
use plimsoll_fakes::{Dialect, Fault};
use serde_json::json;
use std::time::Instant;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comments_come_before_the_first_token_and_between_tokens() {
    for dialect in [Dialect::Sglang, Dialect::Openai] {
        let engine = paced(dialect, 1_500, 700).await;
        let gateway = Plan::with([engine.url()]).set("streams.keep_alive_ms", 200).start().await;
        let mut stream = gateway.stream(CHAT, &body(CHAT, true, 3)).await;
        let mut order = String::new();
        let mut events = Vec::new();
        while let Some(event) = stream.event().await {
            order.push(if matches!(event, Event::Comment(_)) { 'c' } else { 'd' });
            events.push(event);
        }
        assert!(order.starts_with("ccc"), "{dialect:?}: before the first token: {order}");
        assert!(order.trim_start_matches('c').contains("dc"), "{dialect:?}: between tokens: {order}");
        assert_eq!(plimsoll_end_to_end::sse::text(&events), crate::text(3), "comments change nothing");
        assert!(events.last().unwrap().is_done());
        gateway.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_after_comments_is_an_event() {
    let engine = paced(Dialect::Sglang, 700, 0).await;
    let gateway = Plan::with([engine.url()]).set("streams.keep_alive_ms", 100).start().await;
    set_fault(&engine, Fault::EndAfter { events: 0 });
    let mut stream = gateway.stream(GENERATE, &body(GENERATE, true, 3)).await;
    let mut events = Vec::new();
    while let Some(event) = stream.data().await {
        events.push(event);
    }
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].error_code().is_some() && events[1].is_done(), "{events:?}");
    assert!(stream.is_over());
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_class_has_its_own_patience() {
    let engine = fake(Dialect::Sglang).await;
    set_fault(&engine, Fault::StallAfter { events: 2 });
    let gateway = Plan::with([engine.url()])
        .set("classes.high_uncached_tokens", 50)
        .set("streams.idle_timeout_ms.high", 500)
        .set("streams.idle_timeout_ms.medium", 2_500)
        .set("health.request_failures", 1_000)
        .start()
        .await;
    let long = json!({"model": "tiny", "stream": true, "max_tokens": 9,
        "messages": [{"role": "user", "content": "word ".repeat(400)}]});
    let mut took = Vec::new();
    for (ask, class) in [(body(CHAT, true, 9), "high"), (long, "medium")] {
        let start = Instant::now();
        let answer = gateway.post(CHAT, &ask).await;
        took.push(start.elapsed());
        let codes: Vec<String> = answer.events().iter().filter_map(Event::error_code).collect();
        assert_eq!(codes, ["engine_stalled"], "{class}");
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        assert_eq!((record["class"].as_str(), record["outcome"].as_str()), (Some(class), Some("stalled")), "{record}");
    }
    assert!(took[1] > took[0] * 2, "{took:?}");
    let seen = crate::until(&engine, "both stopped on the engine", |seen| seen.in_flight == 0).await;
    assert_eq!(seen.aborted_by_rid, 2, "a stalled request is aborted, not left to run: {seen:?}");
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clients_own_deadline_ends_it() {
    let engine = paced(Dialect::Sglang, 60_000, 0).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let headers = [("x-request-deadline-ms", "400")];
    let whole = gateway.post_raw(CHAT, &headers, body(CHAT, false, 2).to_string().as_bytes()).await;
    assert_eq!((whole.status(), whole.code().as_str()), (504, "deadline_exceeded"), "{}", whole.text());
    crate::until(&engine, "the abort", |seen| seen.aborted_by_rid == 1 && seen.in_flight == 0).await;
    assert_eq!(gateway.states().await, ["healthy"], "a client's short deadline is not the engine's fault");
    gateway.finish().await;
}

/// Found by review: a queue or a long prefill is silent. Only a stream that has begun has an idle time-out, and a long wait
/// never counts against an engine that answers its probes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_not_a_stall() {
    let engine = paced(Dialect::Sglang, 1_500, 0).await;
    let gateway = Plan::with([engine.url()])
        .set("streams.idle_timeout_ms.high", 300)
        .set("health.request_failures", 1)
        .start()
        .await;
    let answer = gateway.post(CHAT, &body(CHAT, true, 3)).await;
    assert_eq!(plimsoll_end_to_end::sse::text(&answer.events()), crate::text(3));
    gateway.finish().await;

    let gateway = Plan::with([engine.url()])
        .set("streams.first_token_timeout_ms", 300)
        .set("health.request_failures", 1)
        .start()
        .await;
    let answer = gateway.post(CHAT, &body(CHAT, true, 3)).await;
    assert_eq!((answer.status(), answer.code().as_str()), (504, "engine_stalled"));
    assert_eq!(gateway.post(CHAT, &body(CHAT, false, 3)).await.status(), 200, "the engine is still in");
    gateway.finish().await;
}
