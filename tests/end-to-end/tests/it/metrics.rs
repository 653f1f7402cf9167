//! `/metrics`: names, units, and labels that no client can multiply.

use crate::{CHAT, body, fake};
use plimsoll_end_to_end::Plan;
use plimsoll_fakes::Dialect;
use serde_json::json;
use std::collections::BTreeSet;

fn series(text: &str) -> BTreeSet<&str> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(s, _)| s)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_names_are_there_and_count() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).start().await;
    for stream in [true, false, true] {
        gateway.post(CHAT, &body(CHAT, stream, 4)).await;
    }
    gateway.settled().await;
    let text = gateway.metrics().await;
    for name in [
        "plimsoll_requests_total",
        "plimsoll_request_duration_seconds_bucket",
        "plimsoll_time_to_first_token_seconds_count",
        "plimsoll_output_tokens_total",
        "plimsoll_attempts_total",
        "plimsoll_engine_health",
        "plimsoll_engine_requests",
        "plimsoll_engine_uncached_prefill_tokens",
        "plimsoll_engine_reserved_kv_tokens",
        "plimsoll_placement_seconds_count",
        "plimsoll_client_connections",
        "plimsoll_request_body_bytes",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing");
    }
    assert!(text.lines().filter(|line| !line.starts_with('#')).all(|line| line.starts_with("plimsoll_")));
    assert_eq!(gateway.metric("plimsoll_requests_total", &["outcome=\"completed\"", "model=\"tiny\""]).await, 3.0);
    assert_eq!(gateway.metric("plimsoll_time_to_first_token_seconds_count", &[]).await, 2.0, "streams only");
    assert_eq!(gateway.metric("plimsoll_engine_requests", &[]).await, 0.0);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_cannot_make_labels() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let odd = |n: u32| {
        let mut ask = body(CHAT, n.is_multiple_of(2), 1);
        ask["model"] = json!(format!("made-up-{n}"));
        ask["user"] = json!(format!("user-{n}"));
        ask
    };
    for n in 0..5 {
        gateway.post(CHAT, &odd(n)).await;
        gateway.get(&format!("/path-{n}")).await;
        gateway.post(CHAT, &body(CHAT, false, 1)).await;
    }
    gateway.settled().await;
    let before = gateway.metrics().await;
    for n in 5..100 {
        let ask = odd(n).to_string();
        let id = format!("id-{n}");
        gateway.post_raw(CHAT, &[("x-request-id", &id), ("x-tenant", &id)], ask.as_bytes()).await;
        gateway.get(&format!("/path-{n}")).await;
    }
    gateway.settled().await;
    let after = gateway.metrics().await;
    let new: Vec<&&str> = series(&after).difference(&series(&before)).copied().map(|_| &"").collect();
    assert_eq!(series(&after).len(), series(&before).len(), "{} new series", new.len());
    assert!(!after.contains("made-up-") && !after.contains("path-") && !after.contains("user-"));
    gateway.finish().await;
}
