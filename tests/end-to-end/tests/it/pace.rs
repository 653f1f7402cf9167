//! Nothing in the gateway waits for more bytes: no 40 ms of Nagle against delayed acknowledgement (`gateways.md` §3.2).

use crate::{CHAT, body, paced};
use plimsoll_end_to_end::{Connection, Plan};
use plimsoll_fakes::Dialect;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Median time to the first and to each further event over many streams on one connection.
async fn medians(addr: SocketAddr) -> (Duration, Duration) {
    let mut connection = Connection::open(addr).await;
    let (mut firsts, mut gaps) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        let start = Instant::now();
        connection.post(CHAT, &[], &body(CHAT, true, 4).to_string()).await;
        connection.head().await;
        let mut last = None;
        while connection.data().await.is_some() {
            match last {
                None => firsts.push(start.elapsed()),
                Some(last) => gaps.push(Instant::now() - last),
            }
            last = Some(Instant::now());
        }
    }
    firsts.sort();
    gaps.sort();
    (firsts[firsts.len() / 2], gaps[gaps.len() * 3 / 4])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_forty_milliseconds_anywhere() {
    let engine = paced(Dialect::Vllm, 5, 5).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let (direct_first, direct_gap) = medians(engine.addr()).await;
    let (first, gap) = medians(gateway.addr).await;
    // 40 ms is the artefact; half of it is far above what a busy machine adds to a median.
    let most = Duration::from_millis(20);
    assert!(first < direct_first + most, "first event after {first:?}, {direct_first:?} directly");
    assert!(gap < direct_gap + most, "events {gap:?} apart, {direct_gap:?} directly");
    gateway.finish().await;
}

/// Events come one by one as the engine sends them, not gathered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_event_is_there_long_before_the_last() {
    for dialect in [Dialect::Sglang, Dialect::Vllm, Dialect::Openai] {
        let engine = paced(dialect, 0, 100).await;
        let gateway = Plan::with([engine.url()]).start().await;
        let start = Instant::now();
        let mut stream = gateway.stream(CHAT, &body(CHAT, true, 10)).await;
        stream.data().await.unwrap();
        let first = start.elapsed();
        while stream.data().await.is_some() {}
        assert!(first * 3 < start.elapsed(), "{dialect:?}: first after {first:?} of {:?}", start.elapsed());
        gateway.finish().await;
    }
}
