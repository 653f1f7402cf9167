//! The operators' listener: its token, engines, ledger and log level.

use crate::{CHAT, body, fake};
use plimsoll_end_to_end::client::ask;
use plimsoll_end_to_end::{PATIENCE, Plan, eventually};
use plimsoll_fakes::Dialect;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_guards_admin_and_debug_but_not_probes_and_metrics() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).token("open-sesame").start().await;
    for (method, path) in [
        ("GET", "/admin/engines"),
        ("POST", "/admin/engines"),
        ("DELETE", "/admin/engines/0"),
        ("POST", "/admin/engines/0/drain"),
        ("GET", "/admin/ledger"),
        ("PUT", "/admin/log"),
        ("GET", "/debug/requests/x"),
    ] {
        for headers in [&[][..], &[("Authorization", "Bearer open-sesam")], &[("Authorization", "Bearer open-sesame2")]]
        {
            let answer = ask(gateway.admin, method, path, headers, b"{}").await;
            assert!(matches!(answer.status(), 401 | 403), "{method} {path} {headers:?}: {}", answer.status());
        }
    }
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(ask(gateway.admin, "GET", path, &[], b"").await.status(), 200, "{path}");
    }
    assert_eq!(gateway.engines().await.len(), 1, "and the token opens it");
    assert_eq!(gateway.get("/admin/engines").await.status(), 404, "clients never see it");
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_are_added_drained_and_removed() {
    let (first, second) = (fake(Dialect::Sglang).await, fake(Dialect::Vllm).await);
    let gateway = Plan::with([first.url()]).start().await;
    let added = gateway.admin("POST", "/admin/engines", &json!({"url": second.url()})).await;
    assert_eq!(added.status(), 201, "{}", added.text());
    gateway.healthy(2, PATIENCE).await;
    let again = gateway.admin("POST", "/admin/engines", &json!({"url": second.url()})).await;
    assert_eq!(again.status(), 400, "twice the same engine would be charged twice: {}", again.text());
    let id = gateway.engine_id(&first.url()).await;
    let drained = gateway.admin("POST", &format!("/admin/engines/{id}/drain"), &json!({})).await;
    assert_eq!(drained.status(), 200, "{}", drained.text());
    for _ in 0..10 {
        assert_eq!(gateway.post(CHAT, &body(CHAT, false, 1)).await.status(), 200);
    }
    assert_eq!((first.snapshot().generations, second.snapshot().generations), (0, 10));
    let removed = gateway.admin("DELETE", &format!("/admin/engines/{id}"), &Value::Null).await;
    assert_eq!(removed.status(), 200, "{}", removed.text());
    assert_eq!(gateway.engines().await.len(), 1);
    let unknown = gateway.admin("DELETE", &format!("/admin/engines/{id}"), &Value::Null).await;
    assert_eq!((unknown.status(), unknown.code().as_str()), (404, "not_found"));
    let nonsense = gateway.admin("POST", "/admin/engines", &json!({"url": "not a url"})).await;
    assert_eq!(nonsense.status(), 400);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_level_changes_while_running() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let filter = async |filter: &str| gateway.admin("PUT", "/admin/log", &json!({"filter": filter})).await;
    let drain = async || gateway.admin("POST", "/admin/engines/0/drain", &json!({})).await.status();
    let lines = || gateway.process.output().matches("drain set").count();
    assert_eq!(filter("error").await.status(), 200);
    assert_eq!((drain().await, lines()), (200, 0), "hidden");
    assert_eq!(filter("debug").await.status(), 200);
    assert_eq!(drain().await, 200);
    eventually("the line to show", PATIENCE, async || if lines() == 1 { Ok(()) } else { Err(lines()) }).await;
    let undrained = gateway.admin("DELETE", "/admin/engines/0/drain", &Value::Null).await;
    assert_eq!(undrained.status(), 200);
    gateway.post(CHAT, &json!({"model": "tiny", "messages": [{"role": "user", "content": "top-secret-prompt"}]})).await;
    let wrong = filter("plimsoll===").await;
    assert_eq!(wrong.status(), 400, "{}", wrong.text());
    assert!(!gateway.process.output().contains("top-secret-prompt"), "no prompt text, not even in debug");
    gateway.finish().await;
}
