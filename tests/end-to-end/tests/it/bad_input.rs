//! What clients get wrong: each a clear error, nothing lost, and the next request is served.

use crate::{CHAT, COMPLETIONS, GENERATE, body, fake};
use plimsoll_end_to_end::{Connection, Gateway, PATIENCE, Plan, eventually, patient, post_head};
use plimsoll_fakes::{Dialect, FakeEngine};
use std::time::Duration;

async fn set_up() -> (FakeEngine, Gateway) {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()])
        .set("limits.body_bytes", 100_000)
        .set("limits.header_timeout_ms", 700)
        .set("limits.body_timeout_ms", 700)
        .start()
        .await;
    (engine, gateway)
}

/// The gateway still serves, and the engine was asked nothing but this.
async fn still_well(engine: FakeEngine, gateway: Gateway) {
    assert_eq!(engine.snapshot().generations, 0, "bad input must not reach an engine");
    assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_not_requests() {
    let (engine, gateway) = set_up().await;
    let cases: &[(&[u8], &[&str])] = &[
        (b"", &["empty_body"]),
        (b"{", &["invalid_json"]),
        (b"not json at all", &["invalid_json"]),
        (b"{\"model\":\"tiny\",\"messages\":[}", &["invalid_json"]),
        (b"{\"model\":\"tiny\",\"messages\":[]} trailing", &["invalid_json"]),
        (b"[1,2,3]", &["invalid_json", "invalid_request"]),
        (b"null", &["invalid_json", "invalid_request"]),
        (b"{\"model\":5,\"messages\":[]}", &["invalid_request"]),
        (b"{\"model\":\"tiny\",\"messages\":[],\"stream\":\"yes\"}", &["invalid_request"]),
        (b"{\"model\":\"tiny\",\"messages\":[],\"max_tokens\":\"many\"}", &["invalid_request"]),
        (b"{\"model\":\"tiny\",\"messages\":[],\"max_tokens\":-5}", &["invalid_request"]),
        (b"{\"model\":\"tiny\",\"messages\":\"\xff\xfe\"}", &["invalid_json"]),
        (b"\xff\xfe\xfd", &["invalid_json"]),
    ];
    for (sent, codes) in cases {
        let answer = gateway.post_raw(CHAT, &[], sent).await;
        let shown = String::from_utf8_lossy(&sent[..sent.len().min(60)]).into_owned();
        assert_eq!(answer.status(), 400, "{shown}: {}", answer.text());
        assert!(codes.contains(&answer.code().as_str()), "{shown}: {}", answer.text());
        let error = &answer.json()["error"];
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{shown}: {}", answer.text());
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error.as_object().unwrap().contains_key("param"));
    }
    still_well(engine, gateway).await;
}

/// Brackets by the ten thousand: no stack may run out. Whether the engine likes it is the engine's business.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_nesting() {
    let (_engine, gateway) = set_up().await;
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(20_000), close.repeat(20_000));
    for field in ["messages", "unknown", "response_format"] {
        for value in [deep("[", "]"), deep("{\"a\":[", "]}").replacen("[]", "[1]", 1), "[".repeat(40_000)] {
            let ask = format!("{{\"model\":\"tiny\",\"{field}\":{value}}}");
            let answer = gateway.post_raw(CHAT, &[], ask.as_bytes()).await;
            assert!(matches!(answer.status(), 200 | 400 | 413), "{field}: {} {}", answer.status(), answer.text());
        }
    }
    assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_too_large() {
    let (engine, gateway) = set_up().await;
    let large = format!("{{\"model\":\"tiny\",\"prompt\":\"{}\"}}", "x".repeat(150_000));
    let answer = gateway.post_raw(COMPLETIONS, &[], large.as_bytes()).await;
    assert_eq!((answer.status(), answer.code().as_str()), (413, "body_too_large"));

    // A gigabyte announced: refused from the head alone, and a client that asks first is never told to go on.
    let mut connection = Connection::open(gateway.addr).await;
    connection.send(post_head(CHAT, &[("Expect", "100-continue")], 1 << 30)).await;
    let answer = connection.answer().await;
    assert_eq!((answer.status(), answer.code().as_str()), (413, "body_too_large"));

    // Chunked, so that its size shows only on the way.
    let mut connection = Connection::open(gateway.addr).await;
    connection
        .send(format!(
            "POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        ))
        .await;
    let chunk = format!("8000\r\n{}\r\n", "y".repeat(0x8000));
    for _ in 0..8 {
        if connection.try_send(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let answer = connection.try_answer().await;
    assert!(answer.is_none_or(|answer| answer.status() == 413));
    still_well(engine, gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_body_after_expect_is_served() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let mut connection = Connection::open(gateway.addr).await;
    let ask = body(CHAT, false, 2).to_string();
    connection.send(post_head(CHAT, &[("Expect", "100-continue")], ask.len())).await;
    connection.send(&ask).await;
    assert_eq!(connection.answer().await.status(), 200);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_floods() {
    let (engine, gateway) = set_up().await;
    let many: String = (0..400).map(|i| format!("x-h{i}: 1\r\n")).collect();
    let large = format!("x-large: {}\r\n", "z".repeat(200_000));
    for flood in [many, large] {
        let mut connection = Connection::open(gateway.addr).await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nHost: g\r\n{flood}Content-Length: 2\r\n\r\n{{}}");
        let _ = connection.try_send(head.as_bytes()).await;
        let answer = connection.try_answer().await;
        assert!(answer.as_ref().is_none_or(|a| matches!(a.status(), 400 | 431)), "{answer:?}");
    }
    // Without an end: the head must not be collected for ever.
    let before = gateway.process.resident_bytes();
    let mut connection = Connection::open(gateway.addr).await;
    connection.send("GET /livez HTTP/1.1\r\n").await;
    for i in 0..20_000 {
        if connection.try_send(format!("x-{i}: {}\r\n", "w".repeat(500)).as_bytes()).await.is_err() {
            break;
        }
    }
    connection.closed().await;
    let growth = gateway.process.resident_bytes().saturating_sub(before);
    // Ten megabytes were sent; pages of the program that were read meanwhile count too.
    assert!(growth < 8 << 20, "an endless head cost {growth} bytes");
    still_well(engine, gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_and_slow_bodies_are_cut() {
    let (engine, gateway) = set_up().await;
    let mut head = Connection::open(gateway.addr).await;
    head.send("POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n").await;
    let mut silent = Connection::open(gateway.addr).await;
    let mut preface = Connection::open(gateway.addr).await;
    preface.send("PRI * HT").await;
    let mut slow = Connection::open(gateway.addr).await;
    slow.send(post_head(CHAT, &[], 5_000)).await;
    slow.send("{\"model\":").await;
    eventually("the body bytes to be counted", PATIENCE, || async {
        let ledger = gateway.ledger().await;
        if ledger["request_body_bytes"].as_u64().unwrap_or(0) > 0 { Ok(()) } else { Err(ledger) }
    })
    .await;
    let answer = slow.answer().await;
    assert_eq!((answer.status(), answer.code().as_str()), (408, "request_timeout"));
    head.closed().await;
    patient("a connection without a byte to be cut", silent.closed()).await;
    patient("half of an h2 preface to be cut", preface.closed()).await;
    // One byte now and then does not keep a body alive either.
    let mut dripping = Connection::open(gateway.addr).await;
    dripping.send(post_head(CHAT, &[], 5_000)).await;
    for _ in 0..20 {
        if dripping.try_send(b" ").await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let answer = dripping.try_answer().await;
    assert!(answer.as_ref().is_some_and(|a| a.status() == 408), "{answer:?}");
    still_well(engine, gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_body_then_gone_leaves_nothing() {
    let (engine, gateway) = set_up().await;
    for _ in 0..20 {
        let mut connection = Connection::open(gateway.addr).await;
        connection.send(post_head(CHAT, &[], 5_000)).await;
        connection.send("{\"model\":\"tiny\",").await;
        drop(connection);
    }
    gateway.settled().await;
    still_well(engine, gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_http_and_wrong_media_types() {
    let (engine, gateway) = set_up().await;
    for sent in [
        "\r\n\r\nnonsense\r\n\r\n",
        "GET\r\n\r\n",
        "POST / HTTP/9.9\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}",
    ] {
        let mut connection = Connection::open(gateway.addr).await;
        let _ = connection.try_send(sent.as_bytes()).await;
        let answer = connection.try_answer().await;
        assert!(answer.is_none_or(|answer| answer.status() >= 400), "{sent:?}");
    }
    // Two lengths that differ are how requests are smuggled.
    let mut connection = Connection::open(gateway.addr).await;
    connection
        .send(format!("POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\n{{}}abc"))
        .await;
    assert!(connection.try_answer().await.is_none_or(|answer| answer.status() == 400));
    let ask = body(CHAT, false, 2).to_string();
    let mut connection = Connection::open(gateway.addr).await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        ask.len()
    );
    connection.send([head.as_bytes(), ask.as_bytes()].concat()).await;
    let answer = connection.answer().await;
    assert_eq!((answer.status(), answer.code().as_str()), (415, "unsupported_media_type"));
    still_well(engine, gateway).await;
}

/// Found by review: the ids of the children of a batch were made for the abort, four thousand million of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absurd_batches_and_names_are_refused() {
    let engine = fake(Dialect::Sglang).await;
    let gateway = Plan::with([engine.url()]).start().await;
    for (path, body) in [
        (GENERATE, r#"{"text":["a"],"stream":true,"sampling_params":{"n":4294967295}}"#.to_owned()),
        (COMPLETIONS, r#"{"model":"tiny","prompt":["a","b"],"n":4294967295}"#.to_owned()),
        (CHAT, format!(r#"{{"model":"{}","messages":[]}}"#, "m".repeat(1 << 20))),
    ] {
        let answer = gateway.post_raw(path, &[], body.as_bytes()).await;
        assert_eq!((answer.status(), answer.code().as_str()), (400, "invalid_request"), "{path}");
    }
    assert_eq!(engine.snapshot().generations, 0);
    gateway.finish().await;
}
