//! `x-request-id` comes in, goes on to the engine and comes back, on errors too.

use crate::{CHAT, COMPLETIONS, body, fake, is_rid};
use plimsoll_end_to_end::Plan;
use plimsoll_fakes::Dialect;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clients_id_is_kept_everywhere() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let ask = body(COMPLETIONS, false, 2).to_string();
    let answer = gateway.post_raw(COMPLETIONS, &[("X-Request-ID", "my-id.42")], ask.as_bytes()).await;
    assert_eq!(answer.header("x-request-id"), Some("my-id.42"));
    // vLLM makes its internal id from the header: it begins with the client's and is unique all the same.
    let seen = engine.snapshot();
    let sent = seen.last_header("x-request-id").unwrap();
    let ours = sent.strip_prefix("my-id.42-").unwrap_or_default();
    assert!(is_rid(ours), "{sent}");
    assert_eq!(answer.json()["id"], format!("cmpl-{sent}"));
    let record = gateway.record("my-id.42").await;
    assert_eq!(record["request_id"], "my-id.42", "{record}");
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_one_a_fresh_id_is_given() {
    let engine = fake(Dialect::Sglang).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let mut ids = std::collections::BTreeSet::new();
    for stream in [false, true, false] {
        let answer = gateway.post(CHAT, &body(CHAT, stream, 2)).await;
        let id = answer.header("x-request-id").unwrap().to_owned();
        assert!(is_rid(&id), "{id}");
        assert_eq!(engine.snapshot().last_header("x-request-id"), Some(id.as_str()));
        ids.insert(id);
    }
    assert_eq!(ids.len(), 3);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_carry_it_too() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let id = [("x-request-id", "e-1")];
    for (path, sent) in [(CHAT, "{"), (CHAT, r#"{"model":"nope","messages":[]}"#), ("/v1/nothing", "{}")] {
        let answer = gateway.post_raw(path, &id, sent.as_bytes()).await;
        assert!(answer.status() >= 400);
        assert_eq!(answer.header("x-request-id"), Some("e-1"), "{path} {sent}");
    }
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unusable_id_is_refused() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let long = "x".repeat(4_000);
    let answer = gateway.post_raw(CHAT, &[("x-request-id", &long)], json!({}).to_string().as_bytes()).await;
    assert_eq!((answer.status(), answer.code().as_str()), (400, "invalid_header"));
    gateway.finish().await;
}
