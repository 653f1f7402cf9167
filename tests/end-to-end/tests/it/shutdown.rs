//! SIGTERM: what runs is finished, nothing new begins, and the end has an end.

use crate::{CHAT, body, paced};
use plimsoll_end_to_end::{PATIENCE, Plan, eventually, sse};
use plimsoll_fakes::Dialect;
use rustix::process::Signal;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_stream_is_finished_first() {
    let engine = paced(Dialect::Sglang, 0, 20).await;
    let mut gateway = Plan::with([engine.url()]).start().await;
    let mut stream = gateway.stream(CHAT, &body(CHAT, true, 80)).await;
    let mut events = vec![stream.data().await.unwrap()];
    gateway.process.signal(Signal::TERM);
    eventually("new requests to be turned away", PATIENCE, || async {
        match tokio::net::TcpStream::connect(gateway.addr).await {
            Err(_) => Ok(()),
            Ok(connection) => {
                let mut connection = plimsoll_end_to_end::Connection::over(connection);
                let _ = connection.try_send(b"GET /readyz HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n").await;
                match connection.try_answer().await {
                    None => Ok(()),
                    Some(answer) if answer.status() == 503 => Ok(()),
                    Some(answer) => Err(answer.status()),
                }
            }
        }
    })
    .await;
    while let Some(event) = stream.data().await {
        events.push(event);
    }
    assert_eq!(sse::text(&events), crate::text(80));
    assert!(events.last().unwrap().is_done());
    let status = gateway.process.ended(PATIENCE).await;
    assert!(status.success(), "{status}");
    assert_eq!(engine.snapshot().finished, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_grace_time_it_ends_all_the_same() {
    let engine = paced(Dialect::Sglang, 0, 50).await;
    let mut gateway = Plan::with([engine.url()]).set("gateway.shutdown_grace_ms", 500).start().await;
    let mut stream = gateway.stream(CHAT, &body(CHAT, true, 100_000)).await;
    stream.data().await.unwrap();
    gateway.process.signal(Signal::TERM);
    let mut last = Vec::new();
    while let Some(event) = stream.data().await {
        last.push(event);
    }
    let codes: Vec<String> = last.iter().filter_map(sse::Event::error_code).collect();
    assert_eq!(codes, ["shutting_down"], "the client is told, once");
    assert!(last.last().unwrap().is_done());
    gateway.process.ended(Duration::from_secs(10)).await;
    let seen = crate::until(&engine, "the engine to stop", |seen| seen.in_flight == 0).await;
    assert_eq!(seen.aborted_by_rid, 1, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_it_ends_at_once_with_open_connections() {
    let engine = paced(Dialect::Vllm, 0, 0).await;
    let mut gateway = Plan::with([engine.url()]).start().await;
    let mut kept = plimsoll_end_to_end::Connection::open(gateway.addr).await;
    kept.post(CHAT, &[], &body(CHAT, false, 1).to_string()).await;
    assert_eq!(kept.answer().await.status(), 200);
    let untouched = plimsoll_end_to_end::Connection::open(gateway.addr).await;
    gateway.process.signal(Signal::INT);
    let status = gateway.process.ended(Duration::from_secs(5)).await;
    assert!(status.success(), "Ctrl-C with nothing cut off is a good end: {status}");
    drop((kept, untouched));
}
