//! Models and readiness: what is served, whatever the state of single engines.

use crate::{CHAT, body, fake};
use plimsoll_end_to_end::{FakeProcess, PATIENCE, Plan, eventually};
use plimsoll_fakes::{Dialect, FakeEngine, Options};
use serde_json::{Value, json};

fn names(list: &Value) -> Vec<String> {
    let data = list["data"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = data.iter().filter_map(|model| model["id"].as_str().map(str::to_owned)).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_of_all_engines_are_listed_while_one_is_down() {
    let mut lost = FakeProcess::start(Dialect::Vllm, &["--model", "lost"]);
    let engine = fake(Dialect::Sglang).await;
    let other = FakeEngine::start(Options { model: "org/other".into(), ..Options::new(Dialect::Vllm) }).await.unwrap();
    let gateway = Plan::with([lost.url(), engine.url(), other.url()]).start().await;
    assert_eq!(names(&gateway.get("/v1/models").await.json()), ["lost", "org/other", "tiny"]);
    lost.process.kill();
    eventually("the dead engine to be out", PATIENCE, || async {
        let states = gateway.states().await;
        if states.iter().any(|state| state == "ejected") { Ok(()) } else { Err(states) }
    })
    .await;
    let list = gateway.get("/v1/models").await;
    assert_eq!(list.status(), 200);
    assert!(names(&list.json()).contains(&"tiny".to_owned()) && names(&list.json()).contains(&"org/other".to_owned()));
    let ready = gateway.get("/readyz").await;
    assert_eq!(ready.status(), 200, "a model that is down must not take the others out: {}", ready.text());
    let lost = gateway.get("/readyz?model=lost").await;
    assert_eq!(lost.status(), 503);
    assert!(lost.text().contains("reason"), "{}", lost.text());
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_model_is_404_and_reaches_no_engine() {
    let engine = fake(Dialect::Sglang).await;
    let gateway = Plan::with([engine.url()]).start().await;
    for stream in [false, true] {
        let mut ask = body(CHAT, stream, 2);
        ask["model"] = json!("gpt-99");
        let answer = gateway.post(CHAT, &ask).await;
        assert_eq!((answer.status(), answer.code().as_str()), (404, "model_not_found"));
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    assert_eq!(engine.snapshot().generations, 0);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_model_goes_to_its_own_engine() {
    let a = FakeEngine::start(Options { model: "a".into(), ..Options::new(Dialect::Vllm) }).await.unwrap();
    let b = FakeEngine::start(Options { model: "b".into(), ..Options::new(Dialect::Sglang) }).await.unwrap();
    let gateway = Plan::with([a.url(), b.url()]).start().await;
    for model in ["a", "b", "a", "b", "a"] {
        let mut ask = body(CHAT, false, 2);
        ask["model"] = json!(model);
        assert_eq!(gateway.post(CHAT, &ask).await.status(), 200);
    }
    assert_eq!((a.snapshot().generations, b.snapshot().generations), (3, 2));
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_no_engine_it_starts_says_why_it_is_not_ready_and_takes_one_later() {
    let gateway = Plan::default().start().await;
    let ready = gateway.get("/readyz").await;
    assert_eq!(ready.status(), 503);
    assert!(ready.json()["reason"].is_string(), "{}", ready.text());
    let refused = gateway.post(CHAT, &body(CHAT, false, 1)).await;
    assert!(matches!(refused.status(), 404 | 503), "{}", refused.text());
    let engine = fake(Dialect::Vllm).await;
    let added = gateway.admin("POST", "/admin/engines", &json!({"url": engine.url()})).await;
    assert_eq!(added.status(), 201, "{}", added.text());
    gateway.healthy(1, PATIENCE).await;
    assert_eq!(gateway.get("/readyz").await.status(), 200);
    assert_eq!(gateway.post(CHAT, &body(CHAT, false, 1)).await.status(), 200);
    gateway.finish().await;
}
