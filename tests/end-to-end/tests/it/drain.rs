//! Taking an engine out while it works: nothing new comes, nothing running is lost.

use crate::{CHAT, GENERATE, body, paced, text, until};
use plimsoll_end_to_end::{Plan, sse};
use plimsoll_fakes::Dialect;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drained_then_removed_during_streams() {
    for remove_at_once in [false, true] {
        let (leaving, staying) = (paced(Dialect::Sglang, 10, 25).await, paced(Dialect::Sglang, 10, 0).await);
        let gateway = Plan::with([leaving.url(), staying.url()]).set("policy.name", "round_robin").start().await;
        let mut streams = Vec::new();
        for _ in 0..4 {
            let mut stream = gateway.stream(GENERATE, &body(GENERATE, true, 60)).await;
            let first = stream.data().await.unwrap();
            streams.push((stream, vec![first]));
        }
        assert_eq!(leaving.snapshot().generations, 2);
        let id = gateway.engine_id(&leaving.url()).await;
        if remove_at_once {
            let removed = gateway.admin("DELETE", &format!("/admin/engines/{id}"), &Value::Null).await;
            assert_eq!(removed.status(), 200, "{}", removed.text());
        } else {
            gateway.admin("POST", &format!("/admin/engines/{id}/drain"), &json!({})).await;
        }
        for _ in 0..6 {
            assert_eq!(gateway.post(CHAT, &body(CHAT, false, 1)).await.status(), 200);
        }
        assert_eq!(leaving.snapshot().generations, 2, "nothing new after the word");
        for (mut stream, mut events) in streams {
            while let Some(event) = stream.data().await {
                events.push(event);
            }
            assert!(events.last().unwrap().is_done(), "{:?}", events.last());
            assert_eq!(sse::text(&events), text(60), "whole, on the engine that left too");
        }
        until(&leaving, "an idle engine", |seen| seen.in_flight == 0 && seen.finished == 2).await;
        if !remove_at_once {
            gateway.admin("DELETE", &format!("/admin/engines/{id}"), &Value::Null).await;
            assert_eq!(gateway.engines().await.len(), 1);
        }
        gateway.finish().await;
    }
}

/// Removed and added again: a new instance, to which nothing of the old one is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_comes_back_starts_at_zero() {
    let engine = paced(Dialect::Vllm, 10, 20).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let mut stream = gateway.stream(CHAT, &body(CHAT, true, 100)).await;
    stream.data().await.unwrap();
    let old = gateway.engine_id(&engine.url()).await;
    gateway.admin("DELETE", &format!("/admin/engines/{old}"), &Value::Null).await;
    let added = gateway.admin("POST", "/admin/engines", &json!({"url": engine.url()})).await;
    assert_eq!(added.status(), 201, "{}", added.text());
    gateway.healthy(1, plimsoll_end_to_end::PATIENCE).await;
    assert_ne!(gateway.engine_id(&engine.url()).await, old, "ids are never used again");
    let engines = gateway.engines().await;
    assert_eq!(engines[0]["state"]["ranks"][0]["requests"], 0, "{engines:?}");
    assert_eq!(gateway.ledger().await["totals"]["orphans"], 1);
    while let Some(event) = stream.data().await {
        assert!(event.error_code().is_none());
    }
    gateway.finish().await;
}
