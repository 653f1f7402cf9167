//! A request that is sent twice under one `Idempotency-Key` runs once.

use crate::{CHAT, body, paced, set_fault, until};
use plimsoll_end_to_end::{Connection, Plan};
use plimsoll_fakes::{Dialect, Fault};

const KEY: &[(&str, &str)] = &[("Idempotency-Key", "order-7")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_gets_the_first_ones_answer() {
    let engine = paced(Dialect::Sglang, 500, 0).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let ask = body(CHAT, false, 3).to_string();
    let send = || gateway.post_raw(CHAT, KEY, ask.as_bytes());
    let later = async {
        until(&engine, "the first runs", |seen| seen.generations == 1).await;
        tokio::join!(send(), send())
    };
    let (first, (second, third)) = tokio::join!(send(), later);
    for answer in [&second, &third] {
        assert_eq!((answer.status(), answer.text()), (200, first.text()));
        assert_eq!(answer.header("x-plimsoll-attached"), Some("true"));
        assert_ne!(answer.header("x-request-id"), first.header("x-request-id"));
    }
    assert_eq!(first.header("x-plimsoll-attached"), None);
    assert_eq!(engine.snapshot().generations, 1);
    // When it has ended the key is free.
    assert_eq!(send().await.status(), 200);
    assert_eq!(engine.snapshot().generations, 2);
    assert!((gateway.metric("plimsoll_idempotent_requests_total", &["attached"]).await - 2.0).abs() < 0.1);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_shared_and_a_leaving_client_is_not() {
    let engine = paced(Dialect::Sglang, 400, 0).await;
    let gateway = Plan::with([engine.url()]).set("streams.idle_timeout_ms.high", 1_000).start().await;
    let ask = body(CHAT, false, 3).to_string();
    // The first client leaves while another waits: that one runs then.
    let mut first = Connection::open(gateway.addr).await;
    first.post(CHAT, KEY, &ask).await;
    until(&engine, "the first runs", |seen| seen.generations == 1).await;
    let leave = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        drop(first);
    };
    let (second, ()) = tokio::join!(gateway.post_raw(CHAT, KEY, ask.as_bytes()), leave);
    assert_eq!((second.status(), second.header("x-plimsoll-attached")), (200, None), "{}", second.text());
    assert_eq!(engine.snapshot().generations, 2);

    set_fault(&engine, Fault::HangAfterHeaders);
    let send = || gateway.post_raw(CHAT, KEY, ask.as_bytes());
    let later = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        send().await
    };
    let (first, second) = tokio::join!(send(), later);
    assert_eq!((first.status(), first.code()), (second.status(), second.code()));
    assert_eq!((second.code().as_str(), second.header("x-plimsoll-attached")), ("engine_stalled", Some("true")));
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_other_bodies_do_not_attach() {
    let engine = paced(Dialect::Sglang, 0, 40).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let ask = body(CHAT, true, 30).to_string();
    let mut stream = Connection::open(gateway.addr).await;
    stream.post(CHAT, KEY, &ask).await;
    assert_eq!(stream.head().await.status, 200);
    let again = gateway.post_raw(CHAT, KEY, ask.as_bytes()).await;
    assert_eq!((again.status(), again.code().as_str()), (409, "idempotency_in_flight"));
    assert_eq!(again.header("retry-after"), Some("1"));
    let other = gateway.post_raw(CHAT, KEY, body(CHAT, true, 31).to_string().as_bytes()).await;
    assert_eq!((other.status(), other.code().as_str()), (422, "idempotency_mismatch"));
    let bad = gateway.post_raw(CHAT, &[("Idempotency-Key", "")], ask.as_bytes()).await;
    assert_eq!((bad.status(), bad.code().as_str()), (400, "invalid_header"));
    while stream.data().await.is_some() {}
    gateway.settled().await;
    assert_eq!(gateway.post_raw(CHAT, KEY, ask.as_bytes()).await.status(), 200, "the stream has ended");
    gateway.finish().await;
}
