//! Load is counted when it is sent, not when it is answered, on every route (`gateways.md` §5, cases 2 to 7).

use crate::{CHAT, COMPLETIONS, EMBEDDINGS, GENERATE, body, paced, until};
use plimsoll_end_to_end::{Connection, FakeProcess, Gateway, PATIENCE, Plan};
use plimsoll_fakes::{Control, Dialect, FakeEngine};
use serde_json::{Value, json};

/// Sends all of them at once and keeps the connections.
async fn burst(gateway: &Gateway, route: &str, asks: Vec<Value>) -> Vec<Connection> {
    let mut connections = Vec::new();
    for _ in &asks {
        connections.push(Connection::open(gateway.addr).await);
    }
    for (connection, ask) in connections.iter_mut().zip(asks) {
        connection.post(route, &[], &ask.to_string()).await;
    }
    connections
}

async fn two(dialect: Dialect, ttft_ms: u64) -> [FakeEngine; 2] {
    [paced(dialect, ttft_ms, 0).await, paced(dialect, ttft_ms, 0).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_equal_requests_are_eight_and_eight_on_every_route() {
    for (dialect, routes) in [
        (Dialect::Sglang, &[CHAT, COMPLETIONS, EMBEDDINGS, GENERATE][..]),
        (Dialect::Vllm, &[CHAT, COMPLETIONS, EMBEDDINGS]),
    ] {
        let engines = two(dialect, 1_000).await;
        let gateway = Plan::with(engines.iter().map(FakeEngine::url)).start().await;
        for route in routes {
            for stream in [true, false] {
                if stream && *route == EMBEDDINGS {
                    continue;
                }
                for engine in &engines {
                    engine.control(Control { reset_counters: true, ..Control::default() });
                }
                let mut connections = burst(&gateway, route, vec![body(route, stream, 1); 16]).await;
                for connection in &mut connections {
                    let answer = connection.answer().await;
                    assert_eq!(answer.status(), 200, "{}", answer.text());
                }
                let shares = engines.each_ref().map(|engine| engine.snapshot().generations);
                assert_eq!(shares, [8, 8], "{dialect:?} {route} stream={stream}");
            }
        }
        gateway.finish().await;
    }
}

/// Polls are far apart; the ledger knows what was sent since (case 5), and without any load report too (case 6).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_between_two_polls_does_not_herd() {
    for missing in [false, true] {
        let mut engines = Vec::new();
        for _ in 0..4 {
            engines.push(paced(Dialect::Sglang, 800, 0).await);
        }
        if missing {
            for engine in &engines {
                let paths = ["/v1/loads", "/metrics"].map(str::to_owned).to_vec();
                engine.control(Control { missing_paths: Some(paths), ..Control::default() });
            }
        }
        let gateway = Plan::with(engines.iter().map(FakeEngine::url))
            .set("health.probe_interval_ms", 5_000)
            .set("health.report_stale_ms", 120_000)
            .start()
            .await;
        let asks = (0..64)
            .map(|n| json!({"model": "tiny", "stream": n % 2 == 0, "max_tokens": 1, "prompt": format!("{n} hello")}));
        let mut connections = burst(&gateway, COMPLETIONS, asks.collect()).await;
        for connection in &mut connections {
            assert_eq!(connection.answer().await.status(), 200);
        }
        let shares: Vec<u64> = engines.iter().map(|engine| engine.snapshot().generations).collect();
        let most = *shares.iter().max().unwrap();
        assert!(most as f64 / 16.0 <= 1.3, "max over mean of {shares:?}, reports missing: {missing}");
        gateway.finish().await;
    }
}

/// Clients that leave before the head must not leave load behind, and a fresh engine gets its share, no more (case 3).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_hundred_aborts_leave_no_load_and_a_restarted_engine_gets_its_share() {
    let first = FakeProcess::start(Dialect::Vllm, &["--ttft-ms", "60000"]);
    let mut second = FakeProcess::start(Dialect::Vllm, &["--ttft-ms", "60000"]);
    let gateway = Plan::with([first.url(), second.url()]).start().await;
    for _ in 0..8 {
        let connections = burst(&gateway, CHAT, vec![body(CHAT, true, 5); 50]).await;
        first.until("half of them", PATIENCE, |seen| seen.in_flight >= 20).await;
        drop(connections);
        gateway.settled().await;
    }
    let addr = second.addr.to_string();
    second.process.kill();
    let second = FakeProcess::start_at(&addr, Dialect::Vllm, &["--ttft-ms", "300"]);
    first.control(&Control { ttft_ms: Some(300), reset_counters: true, ..Control::default() }).await;
    gateway.healthy(2, PATIENCE).await;
    for _ in 0..4 {
        let mut connections = burst(&gateway, CHAT, vec![body(CHAT, false, 1); 8]).await;
        for connection in &mut connections {
            assert_eq!(connection.answer().await.status(), 200);
        }
    }
    let (a, b) = (first.snapshot().await.generations, second.snapshot().await.generations);
    assert_eq!(a + b, 32);
    assert!(a.abs_diff(b) <= 6, "{a} and {b} of 32");
    gateway.finish().await;
}

/// A drowning engine is avoided by requests that know nothing of it (case 1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_idle_engine_takes_what_comes_while_the_other_drowns() {
    let engines = two(Dialect::Sglang, 60_000).await;
    let gateway = Plan::with([engines[0].url()]).start().await;
    let held = burst(&gateway, CHAT, vec![body(CHAT, true, 5); 32]).await;
    until(&engines[0], "thirty-two slow requests", |seen| seen.in_flight == 32).await;
    engines[1].control(Control { ttft_ms: Some(5), ..Control::default() });
    gateway.admin("POST", "/admin/engines", &json!({"url": engines[1].url()})).await;
    gateway.healthy(2, PATIENCE).await;
    for _ in 0..30 {
        assert_eq!(gateway.post(CHAT, &body(CHAT, false, 1)).await.status(), 200);
    }
    assert_eq!(engines.each_ref().map(|engine| engine.snapshot().generations), [32, 30]);
    drop(held);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_robin_and_power_of_two_spread_too() {
    for policy in ["round_robin", "power_of_two"] {
        let engines = two(Dialect::Vllm, 500).await;
        let gateway = Plan::with(engines.iter().map(FakeEngine::url)).arg("--policy").arg(policy).start().await;
        let mut connections = burst(&gateway, CHAT, vec![body(CHAT, true, 1); 16]).await;
        for connection in &mut connections {
            assert_eq!(connection.answer().await.status(), 200);
        }
        assert_eq!(engines.each_ref().map(|engine| engine.snapshot().generations), [8, 8], "{policy}");
        gateway.finish().await;
    }
}
