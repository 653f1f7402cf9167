//! What each family does that surprises a gateway.

use super::{connect, events, exchange, fake, post, until, whole};
use plimsoll_fakes::{Control, Dialect, FakeEngine, Options};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const FOREVER: &str = r#"{"text":"hi","rid":"RID","stream":true,"sampling_params":{"max_new_tokens":100000}}"#;

async fn slow(dialect: Dialect) -> FakeEngine {
    FakeEngine::start(Options { itl_ms: 20, ..Options::new(dialect) }).await.unwrap()
}

#[tokio::test]
async fn sglang_aborts_by_prefix_and_ends_the_stream_inside_its_200() {
    let engine = slow(Dialect::Sglang).await;
    let (mut one, mut ten, mut other) = (connect(&engine).await, connect(&engine).await, connect(&engine).await);
    for (stream, rid) in [(&mut one, "r1"), (&mut ten, "r10"), (&mut other, "s1")] {
        stream.write_all(post("/generate", "", &FOREVER.replace("RID", rid)).as_bytes()).await.unwrap();
    }
    until(&engine, "three running", |snapshot| snapshot.running == 3).await;
    assert!(whole(&engine, "/abort_request", r#"{"rid":""}"#).await.starts_with("HTTP/1.1 200"), "ignored");
    assert!(whole(&engine, "/abort_request", r#"{"rid":"r1"}"#).await.starts_with("HTTP/1.1 200"));
    let snapshot = until(&engine, "aborts", |snapshot| snapshot.aborted_by_rid == 2).await;
    assert_eq!(snapshot.in_flight, 1, "s1 still runs");
    assert_eq!(snapshot.abort_rids, ["", "r1"]);
    let events = events(&super::read(&mut one, Duration::from_millis(300)).await);
    let last = &events[events.len() - 2];
    assert!(last.contains(r#""type":"abort""#), "{last}");
}

#[tokio::test]
async fn sglang_refuses_a_rid_that_is_in_flight() {
    let engine = slow(Dialect::Sglang).await;
    let ask = post("/generate", "", &FOREVER.replace("RID", "same"));
    let mut first = connect(&engine).await;
    first.write_all(ask.as_bytes()).await.unwrap();
    until(&engine, "first", |snapshot| snapshot.running == 1).await;
    let second = exchange(&engine, &ask, Duration::from_millis(300)).await;
    assert!(second.starts_with("HTTP/1.1 400") && second.contains("Duplicate request ID detected"), "{second}");
}

#[tokio::test]
async fn a_lost_client_is_noticed_late_by_sglang_and_soon_by_vllm() {
    for (dialect, path) in [(Dialect::Sglang, "/generate"), (Dialect::Vllm, "/v1/completions")] {
        let engine = slow(dialect).await;
        engine.control(Control { ttft_ms: Some(60_000), ..Control::default() });
        let mut stream = connect(&engine).await;
        stream.write_all(post(path, "", r#"{"stream":true,"prompt":"x","text":"x"}"#).as_bytes()).await.unwrap();
        until(&engine, "running", |snapshot| snapshot.running == 1).await;
        drop(stream);
        let lost = until(&engine, "the loss", |snapshot| snapshot.clients_lost == 1).await;
        assert_eq!(lost.in_flight, 1, "still running although the client is gone");
        let start = Instant::now();
        until(&engine, "the end", |snapshot| snapshot.in_flight == 0 && snapshot.aborted_by_disconnect == 1).await;
        assert!(start.elapsed() + Duration::from_millis(50) > Duration::from_millis(dialect.notice_stream_ms()));
    }
}

#[tokio::test]
async fn sglang_sends_its_head_before_the_first_token() {
    let engine = fake(Dialect::Sglang).await;
    engine.control(Control { ttft_ms: Some(60_000), ..Control::default() });
    let mut stream = connect(&engine).await;
    stream.write_all(post("/generate", "", r#"{"text":"x","stream":true}"#).as_bytes()).await.unwrap();
    let mut block = [0; 512];
    let size = tokio::time::timeout(super::PATIENCE, stream.read(&mut block)).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&block[..size]).starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn sglang_health_takes_more_than_a_second() {
    let engine = fake(Dialect::Sglang).await;
    let start = Instant::now();
    let answer = exchange(&engine, "GET /health HTTP/1.1\r\nconnection: close\r\n\r\n", super::PATIENCE).await;
    assert!(answer.starts_with("HTTP/1.1 200") && start.elapsed() > Duration::from_secs(1));
}

#[tokio::test]
async fn a_full_queue_is_503_without_retry_after_or_an_abort_inside_sglangs_200() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let options = Options { max_running: Some(1), max_queued: Some(1), ttft_ms: 60_000, ..Options::new(dialect) };
        let engine = FakeEngine::start(options).await.unwrap();
        let ask = post("/v1/completions", "", r#"{"model":"tiny","prompt":"x","stream":true}"#);
        let mut held = Vec::new();
        for n in 1..=2 {
            let mut stream = connect(&engine).await;
            stream.write_all(ask.as_bytes()).await.unwrap();
            held.push(stream);
            until(&engine, "taken up", |snapshot| snapshot.in_flight == n).await;
        }
        assert_eq!(engine.snapshot().running, 1);
        let third = exchange(&engine, &ask, Duration::from_millis(300)).await;
        assert!(third.contains("The request queue is full."), "{third}");
        let status = if dialect == Dialect::Vllm { "HTTP/1.1 503" } else { "HTTP/1.1 200" };
        assert!(third.starts_with(status) && !third.to_lowercase().contains("retry-after"), "{third}");
        assert_eq!(engine.snapshot().queue_full, 1);
    }
}
