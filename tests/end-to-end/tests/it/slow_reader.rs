//! A reader that stops costs the gateway next to nothing, however long the stream is.

use crate::{CHAT, body};
use plimsoll_end_to_end::{Connection, FakeProcess, PATIENCE, Plan, eventually, post_head};
use plimsoll_fakes::{Control, Dialect};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_stalled_readers_of_280_mb_cost_less_than_2_mib_each() {
    let engine = FakeProcess::start(Dialect::Vllm, &["--event-bytes", "4000", "--threads", "2"]);
    let gateway = Plan::with([engine.url()]).start().await;
    // Warm: buffers, pools and code are there before the first measurement.
    for _ in 0..4 {
        assert_eq!(gateway.post(CHAT, &body(CHAT, true, 500)).await.status(), 200);
    }
    engine.control(&Control { reset_counters: true, ..Control::default() }).await;
    let before = gateway.process.resident_bytes();
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut reader = Connection::open_small(gateway.addr, 16 << 10).await;
        let ask = body(CHAT, true, 70_000).to_string();
        reader.send([post_head(CHAT, &[], ask.len()).as_bytes(), ask.as_bytes()].concat()).await;
        assert_eq!(reader.head().await.status, 200);
        assert!(reader.data().await.is_some());
        readers.push(reader);
    }
    let stopped = eventually("the engine to be held back", PATIENCE, || async {
        let first = engine.snapshot().await.bytes_sent;
        tokio::time::sleep(Duration::from_millis(700)).await;
        let second = engine.snapshot().await.bytes_sent;
        if second - first < 20_000 { Ok(second) } else { Err(second - first) }
    })
    .await;
    let growth = gateway.process.resident_bytes().saturating_sub(before);
    // Kernel buffers on both sides hold some 14 MiB a stream; they are bounded and are not the gateway's.
    assert!(stopped < 128 << 20, "{stopped} bytes of 1.1 GB were taken from the engine: nothing holds it back");
    assert!(growth < 4 * (2 << 20), "{growth} bytes for four stalled readers");

    // They read on: what comes is what follows.
    let mut reader = readers.pop().unwrap();
    let mut next = 0;
    while next < 2_000 {
        let event = reader.data().await.unwrap().json().unwrap();
        let content = event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned();
        if let Some(number) = content.strip_prefix(" t") {
            let number: u64 = number.trim_end_matches('x').parse().unwrap();
            assert!(next == 0 || number == next + 1, "{number} after {next}");
            next = number;
        }
    }
    drop(reader);
    drop(readers);
    engine.until("all four aborted", PATIENCE, |seen| seen.in_flight == 0 && seen.clients_lost == 4).await;
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_never_reads_again_is_cut() {
    let engine = FakeProcess::start(Dialect::Sglang, &["--event-bytes", "4000"]);
    let gateway = Plan::with([engine.url()]).set("streams.client_stall_timeout_ms", 800).start().await;
    let mut reader = Connection::open_small(gateway.addr, 16 << 10).await;
    reader.post(CHAT, &[], &body(CHAT, true, 70_000).to_string()).await;
    assert_eq!(reader.head().await.status, 200);
    let seen = engine
        .until("the abort", PATIENCE, |seen| seen.in_flight == 0 && seen.finished == 0 && seen.generations == 1)
        .await;
    assert_eq!(seen.aborted_by_rid, 1, "{seen:?}");
    gateway.finish().await;
}
