//! An engine that dies and one that comes back at the same address.

use crate::{CHAT, body};
use plimsoll_end_to_end::{FakeProcess, PATIENCE, Plan};
use plimsoll_fakes::Dialect;
use std::time::{Duration, Instant};

const ARGS: [&str; 4] = ["--ttft-ms", "20", "--itl-ms", "20"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_begun_streams_break_and_the_restarted_engine_is_used_at_once() {
    let mut dying = FakeProcess::start(Dialect::Vllm, &ARGS);
    let other = FakeProcess::start(Dialect::Vllm, &ARGS);
    let gateway = Plan::with([dying.url(), other.url()]).start().await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = gateway.stream(CHAT, &body(CHAT, true, 200)).await;
        for _ in 0..3 {
            stream.data().await.unwrap();
        }
        streams.push(stream);
    }
    let broken = dying.snapshot().await.in_flight;
    assert!((1..=3).contains(&broken), "the four are spread: {broken}");
    let addr = dying.addr.to_string();
    dying.process.kill();
    for _ in 0..20 {
        let answer = gateway.post(CHAT, &body(CHAT, false, 2)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    let mut told = 0;
    for mut stream in streams {
        let mut last = Vec::new();
        while let Some(event) = stream.data().await {
            last.push(event);
        }
        assert!(stream.is_over() && last.last().unwrap().is_done(), "each stream ends in order: {last:?}");
        let codes: Vec<String> = last.iter().filter_map(|event| event.error_code()).collect();
        assert!(codes.is_empty() || codes == ["engine_truncated"] || codes == ["engine_failed"], "{codes:?}");
        told += codes.len() as u64;
    }
    assert_eq!(told, broken, "every broken stream says so once, no other does");

    let back = FakeProcess::start_at(&addr, Dialect::Vllm, &ARGS);
    let start = Instant::now();
    while back.snapshot().await.finished == 0 {
        assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200);
        assert!(start.elapsed() < Duration::from_secs(4), "2 s, and slack for a busy machine");
    }
    gateway.healthy(2, PATIENCE).await;
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_engine_stays_in_and_its_failures_are_told() {
    let mut only = FakeProcess::start(Dialect::Sglang, &ARGS);
    let gateway = Plan::with([only.url()]).start().await;
    let addr = only.addr.to_string();
    only.process.kill();
    for _ in 0..10 {
        let answer = gateway.post(CHAT, &body(CHAT, true, 2)).await;
        assert!(matches!(answer.status(), 502 | 503), "{} {}", answer.status(), answer.text());
        assert!(!answer.code().is_empty(), "{}", answer.text());
        if answer.status() == 503 {
            assert!(answer.header("retry-after").is_some());
        }
    }
    let _back = FakeProcess::start_at(&addr, Dialect::Sglang, &ARGS);
    let start = Instant::now();
    while gateway.post(CHAT, &body(CHAT, false, 2)).await.status() != 200 {
        assert!(start.elapsed() < Duration::from_secs(4));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    gateway.finish().await;
}
