//! Every request leaves a record of what was decided and why, and none of its text.

use crate::{CHAT, COMPLETIONS, body, fake, paced, set_fault};
use plimsoll_end_to_end::{PATIENCE, Plan, eventually};
use plimsoll_fakes::{Dialect, Fault};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_explains_the_choice() {
    let engines = [fake(Dialect::Vllm).await, fake(Dialect::Sglang).await];
    let gateway = Plan::with(engines.iter().map(plimsoll_fakes::FakeEngine::url)).start().await;
    let answer = gateway.post(CHAT, &body(CHAT, true, 5)).await;
    let record = gateway.record(answer.header("x-request-id").unwrap()).await;
    for field in [
        "id",
        "arrival_unix_ms",
        "tenant",
        "route",
        "model",
        "class",
        "class_rule",
        "prompt_tokens",
        "outcome",
        "ttft_ms",
        "total_ms",
    ] {
        assert!(!record[field].is_null(), "{field} in {record}");
    }
    assert_eq!((record["outcome"].as_str(), record["status"].as_u64()), (Some("completed"), Some(200)));
    assert_eq!(record["stream"], true);
    let attempts = record["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 1);
    let attempt = &attempts[0];
    assert_eq!(attempt["candidates"].as_array().unwrap().len(), 2, "{attempt}");
    assert!(attempt["policy_reason"].as_str().is_some_and(|reason| !reason.is_empty()));
    assert_eq!(answer.header("x-plimsoll-engine").unwrap(), attempt["engine"].to_string());
    let missing = gateway.admin("GET", "/debug/requests/never", &Value::Null).await;
    assert_eq!((missing.status(), missing.code().as_str()), (404, "not_found"));
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_request_can_be_looked_at() {
    let engine = paced(Dialect::Sglang, 60_000, 0).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let mut connection = plimsoll_end_to_end::Connection::open(gateway.addr).await;
    connection.post(CHAT, &[("x-request-id", "now")], &body(CHAT, true, 5).to_string()).await;
    crate::until(&engine, "it runs", |seen| seen.running == 1).await;
    let record = gateway.record("now").await;
    assert!(record["outcome"].is_null() && record["attempts"].as_array().is_some_and(|a| a.len() == 1), "{record}");
    assert_eq!(
        Some(record["attempts"][0]["rid"].as_str().unwrap()),
        engine.snapshot().rids.first().map(String::as_str)
    );
    drop(connection);
    gateway.settled().await;
    assert_eq!(gateway.record("now").await["outcome"], "cancelled");
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_has_one_line_a_request_and_no_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("decisions.jsonl");
    let engine = fake(Dialect::Vllm).await;
    let gateway =
        Plan::with([engine.url()]).arg("--decision-log").arg(&file).set("health.request_failures", 1_000).start().await;
    let secret = "xyzzy-prompt-text";
    for round in 0..40 {
        let fault = match round % 4 {
            0 => Fault::Status { status: 400, retry_after_s: None },
            1 => Fault::CutAfter { events: 2 },
            _ => Fault::None,
        };
        set_fault(&engine, fault);
        let ask = json!({"model": "tiny", "prompt": secret, "stream": round % 2 == 1, "max_tokens": 4});
        let id = format!("log-{round}");
        gateway.post_raw(COMPLETIONS, &[("x-request-id", &id)], ask.to_string().as_bytes()).await;
    }
    let lines: Vec<Value> = eventually("forty lines", PATIENCE, || async {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if lines.len() >= 40 { Ok(lines) } else { Err(lines.len()) }
    })
    .await;
    assert_eq!(lines.len(), 40);
    let mut ids: Vec<&str> = lines.iter().map(|line| line["request_id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 40, "each request once");
    let count = |outcome: &str| lines.iter().filter(|line| line["outcome"] == outcome).count();
    assert_eq!((count("completed"), count("engine_rejected"), count("truncated")), (20, 10, 10));
    assert!(!std::fs::read_to_string(&file).unwrap().contains(secret));
    assert!(!gateway.process.output().contains(secret), "nor in the log");
    gateway.finish().await;
}
