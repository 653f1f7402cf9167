//! API keys: refused without, tenant with, and never shown to an engine.

use crate::{CHAT, body, fake};
use plimsoll_end_to_end::Plan;
use plimsoll_fakes::{Dialect, FakeEngine};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

fn hash(key: &str) -> String {
    Sha256::digest(key.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn config(folder: &tempfile::TempDir, engine: &FakeEngine, engine_key: &str) -> std::path::PathBuf {
    let file = folder.path().join("plimsoll.toml");
    let text = format!(
        "[[engines]]\nurl = \"{}\"\n{engine_key}\n[[auth.keys]]\nsha256 = \"{}\"\ntenant = \"red\"\n\
         [[auth.keys]]\nsha256 = \"{}\"\ntenant = \"blue\"\n",
        engine.url(),
        hash("sk-red"),
        hash("sk-blue"),
    );
    std::fs::write(&file, text).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_good_key_nothing_is_answered() {
    let (engine, folder) = (fake(Dialect::Vllm).await, tempfile::tempdir().unwrap());
    let gateway = Plan::default().config(&config(&folder, &engine, ""), 1).start().await;
    let ask = body(CHAT, false, 2).to_string();
    for headers in [
        &[][..],
        &[("Authorization", "Bearer sk-wrong")],
        &[("Authorization", "sk-red")],
        &[("Authorization", "Bearer ")],
    ] {
        let answer = gateway.post_raw(CHAT, headers, ask.as_bytes()).await;
        assert_eq!((answer.status(), answer.code().as_str()), (401, "unauthorized"), "{headers:?}");
        assert_eq!(answer.json()["error"]["type"], "authentication_error");
    }
    assert_eq!(gateway.get("/v1/models").await.status(), 401);
    assert_eq!(gateway.get("/livez").await.status(), 200);
    assert_eq!(engine.snapshot().generations, 0);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_names_its_tenant_and_stays_here() {
    let (engine, folder) = (fake(Dialect::Vllm).await, tempfile::tempdir().unwrap());
    let config = config(&folder, &engine, "api_key = \"engine-secret\"");
    let gateway = Plan::default().config(&config, 1).start().await;
    let ask = body(CHAT, false, 2).to_string();
    for tenant in ["red", "blue"] {
        let bearer = format!("Bearer sk-{tenant}");
        let answer = gateway.post_raw(CHAT, &[("authorization", &bearer)], ask.as_bytes()).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        assert_eq!(record["tenant"], tenant);
        let seen = engine.snapshot();
        assert_eq!(seen.last_header("authorization"), Some("Bearer engine-secret"), "the engine's own key");
        assert!(seen.last_headers.iter().all(|(_, value)| !value.contains("sk-")), "{:?}", seen.last_headers);
        assert!(gateway.metric("plimsoll_requests_total", &[&format!("tenant=\"{tenant}\"")]).await >= 1.0);
    }
    assert!(!gateway.process.output().contains("sk-red") && !gateway.process.output().contains("engine-secret"));
    gateway.finish().await;
}
