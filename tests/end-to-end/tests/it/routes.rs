//! Every route, streaming and in one piece, in front of every family.

use crate::{CHAT, COMPLETIONS, EMBEDDINGS, GENERATE, body, fake, text};
use plimsoll_end_to_end::{Plan, sse};
use plimsoll_fakes::Dialect;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_routes_in_one_piece_and_streaming() {
    for dialect in [Dialect::Sglang, Dialect::Vllm, Dialect::Openai] {
        let engine = fake(dialect).await;
        let gateway = Plan::with([engine.url()]).start().await;
        let mut routes = vec![CHAT, COMPLETIONS];
        if dialect == Dialect::Sglang {
            routes.push(GENERATE);
        }
        for route in routes {
            let whole = gateway.post(route, &body(route, false, 7)).await;
            let json = whole.json();
            let said = json["text"].as_str().or(json["choices"][0]["text"].as_str());
            let said = said.or(json["choices"][0]["message"]["content"].as_str());
            assert_eq!(said, Some(text(7).as_str()), "{dialect:?} {route}: {}", whole.text());
            assert!(whole.header("x-plimsoll-engine").is_some() && whole.header("x-request-id").is_some());

            let stream = gateway.post(route, &body(route, true, 7)).await;
            assert!(stream.header("content-type").unwrap().starts_with("text/event-stream"));
            assert!(stream.complete, "the chunked body must end properly");
            let events = stream.events();
            assert!(events.last().unwrap().is_done(), "{events:?}");
            assert_eq!(sse::text(&events), text(7), "{dialect:?} {route}");
            assert!(stream.header("x-plimsoll-engine").is_some() && stream.header("x-request-id").is_some());
        }
        let embedding = gateway.post(EMBEDDINGS, &body(EMBEDDINGS, false, 0)).await;
        assert_eq!(embedding.json()["data"][0]["embedding"], json!([0.25, -0.5, 0.125]), "{}", embedding.text());
        gateway.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_is_only_in_the_stream_when_asked_for_and_then_intact() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let mut ask = body(CHAT, true, 3);
    let usage =
        |events: &[sse::Event]| events.iter().filter_map(sse::Event::json).filter(|c| c["usage"].is_object()).count();
    assert_eq!(usage(&gateway.events(CHAT, &ask).await), 0);
    ask["stream_options"] = json!({"include_usage": true});
    let events = gateway.events(CHAT, &ask).await;
    assert_eq!(usage(&events), 1);
    let chunk = events.iter().filter_map(sse::Event::json).find(|c| c["usage"].is_object()).unwrap();
    assert_eq!(chunk["usage"]["completion_tokens"], 3);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generate_goes_to_sglang_only() {
    let (vllm, sglang) = (fake(Dialect::Vllm).await, fake(Dialect::Sglang).await);
    let gateway = Plan::with([vllm.url(), sglang.url()]).start().await;
    for _ in 0..10 {
        assert_eq!(gateway.post(GENERATE, &body(GENERATE, false, 1)).await.status(), 200);
    }
    assert_eq!((vllm.snapshot().requests_on("other"), sglang.snapshot().requests_on(GENERATE)), (0, 10));
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_paths_and_methods_are_told() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let missing = gateway.post("/v1/nothing", &json!({})).await;
    assert_eq!((missing.status(), missing.code().as_str()), (404, "not_found"));
    let method = gateway.get(CHAT).await;
    assert_eq!((method.status(), method.code().as_str()), (405, "method_not_allowed"));
    assert_eq!(method.header("allow"), Some("POST"));
    for path in ["/livez", "/readyz", "/health"] {
        assert_eq!(gateway.get(path).await.status(), 200, "{path}");
        assert_eq!(
            gateway.admin("GET", if path == "/health" { "/livez" } else { path }, &Value::Null).await.status(),
            200
        );
    }
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_carries_many_requests() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let mut connection = plimsoll_end_to_end::Connection::open(gateway.addr).await;
    for round in 0..20 {
        connection.post(CHAT, &[], &body(CHAT, round % 2 == 0, 3).to_string()).await;
        let answer = connection.answer().await;
        assert!(answer.status() == 200 && answer.complete, "round {round}: {}", answer.text());
    }
    let seen = engine.snapshot();
    assert_eq!(seen.generations, 20);
    assert!(seen.connections < 10, "upstream connections are pooled, {} were made", seen.connections);
    gateway.finish().await;
}
