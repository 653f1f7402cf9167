//! Each fault does what its name says.

use super::{connect, events, exchange, fake, faulty, post, until, whole};
use plimsoll_fakes::{Control, Dialect, Fault};
use std::time::Duration;

const STREAM: &str = r#"{"model":"tiny","messages":[],"stream":true,"max_tokens":8}"#;
const WHOLE: &str = r#"{"model":"tiny","messages":[],"max_tokens":8}"#;
const CHAT: &str = "/v1/chat/completions";
const SILENCE: Duration = Duration::from_millis(200);

#[tokio::test]
async fn statuses_come_with_and_without_retry_after_and_run_nothing() {
    let engine = fake(Dialect::Vllm).await;
    for status in [500, 503, 429, 400] {
        faulty(&engine, Fault::Status { status, retry_after_s: (status == 429).then_some(7) });
        let answer = whole(&engine, CHAT, STREAM).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(answer.contains("retry-after: 7"), status == 429);
    }
    assert_eq!((engine.snapshot().generations, engine.snapshot().requests_on(CHAT)), (0, 4));
}

#[tokio::test]
async fn streams_end_in_every_wrong_way() {
    let engine = fake(Dialect::Vllm).await;
    let ends = [
        (Fault::CutAfter { events: 3 }, 3, ""),
        (Fault::EndAfter { events: 3 }, 3, "0\r\n\r\n"),
        (Fault::StallAfter { events: 3 }, 3, ""),
        (Fault::ErrorEventAfter { events: 3 }, 5, "0\r\n\r\n"),
        (Fault::AbortAfter { events: 3, status_code: Some(503), as_error: false }, 5, "0\r\n\r\n"),
        (Fault::BadJsonAfter { events: 3 }, 4, "0\r\n\r\n"),
    ];
    for (fault, after_opening, end) in ends {
        faulty(&engine, fault.clone());
        let answer = exchange(&engine, &post(CHAT, "", STREAM), SILENCE).await;
        assert_eq!(events(&answer).len(), after_opening + 1, "{fault:?}: {answer}");
        assert_eq!(answer.ends_with("0\r\n\r\n"), !end.is_empty(), "{fault:?}: {answer}");
        assert!(!answer.contains(r#""finish_reason":"length""#), "{fault:?}: {answer}");
    }
}

#[tokio::test]
async fn answers_that_are_not_answers() {
    let engine = fake(Dialect::Openai).await;
    let contains = [
        (Fault::Html, "<h1>Welcome"),
        (Fault::BadJson, "\"choices\":[{"),
        (Fault::LengthShort, "chat.completion"),
        (Fault::LengthLong, "chat.completion"),
    ];
    for (fault, text) in contains {
        faulty(&engine, fault.clone());
        let answer = whole(&engine, CHAT, WHOLE).await;
        assert!(answer.contains(text), "{fault:?}: {answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let length: usize = length.parse().unwrap();
        assert_eq!(length < body.len(), fault == Fault::LengthShort);
        assert_eq!(length > body.len(), fault == Fault::LengthLong);
    }
    faulty(&engine, Fault::Garbage);
    assert!(!whole(&engine, CHAT, WHOLE).await.starts_with("HTTP/"));
    faulty(&engine, Fault::CloseBeforeHeaders);
    assert_eq!(whole(&engine, CHAT, WHOLE).await, "");
    faulty(&engine, Fault::HugeEvent { bytes: 3 << 20 });
    assert!(whole(&engine, CHAT, STREAM).await.len() > 3 << 20);
    faulty(&engine, Fault::EndlessHeaders);
    let answer = whole(&engine, CHAT, WHOLE).await;
    assert!(answer.len() > 32 << 20 && !answer.contains("\r\n\r\n"));
}

#[tokio::test]
async fn hangs_before_and_after_the_head() {
    let engine = fake(Dialect::Sglang).await;
    for (fault, wrote) in [(Fault::HangBeforeHeaders, false), (Fault::HangAfterHeaders, true)] {
        for ask in [STREAM, WHOLE] {
            faulty(&engine, fault.clone());
            let answer = exchange(&engine, &post(CHAT, "", ask), SILENCE).await;
            assert_eq!(answer.starts_with("HTTP/1.1 200"), wrote, "{fault:?} {answer}");
        }
    }
}

#[tokio::test]
async fn faults_are_dealt_in_turn_and_counted() {
    let engine = fake(Dialect::Vllm).await;
    let bad = Fault::Status { status: 500, retry_after_s: None };
    engine.control(Control { faults: Some(vec![bad, Fault::None]), fault_count: Some(3), ..Control::default() });
    let mut good = Vec::new();
    for _ in 0..5 {
        good.push(whole(&engine, CHAT, WHOLE).await.starts_with("HTTP/1.1 200"));
    }
    assert_eq!(good, [false, true, false, true, true]);
}

#[tokio::test]
async fn it_refuses_connections_for_a_while_and_comes_back() {
    let engine = fake(Dialect::Vllm).await;
    engine.control(Control { refuse_ms: Some(400), ..Control::default() });
    let end = tokio::time::Instant::now() + super::PATIENCE;
    while tokio::net::TcpStream::connect(engine.addr()).await.is_ok() {
        assert!(tokio::time::Instant::now() < end, "never refused");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    while tokio::net::TcpStream::connect(engine.addr()).await.is_err() {
        assert!(tokio::time::Instant::now() < end, "never came back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(whole(&engine, CHAT, WHOLE).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_reused_connection_is_closed_before_its_request_runs() {
    let engine = fake(Dialect::Vllm).await;
    engine.control(Control { close_on_reuse: Some(true), ..Control::default() });
    let mut stream = connect(&engine).await;
    for _ in 0..2 {
        tokio::io::AsyncWriteExt::write_all(&mut stream, post(CHAT, "", WHOLE).as_bytes()).await.unwrap();
        super::read(&mut stream, SILENCE).await;
    }
    let snapshot = until(&engine, "the close", |snapshot| snapshot.closed_on_reuse == 1).await;
    assert_eq!((snapshot.generations, snapshot.finished), (1, 1));
}

#[tokio::test]
async fn the_side_door_speaks_json_and_refuses_unknown_switches() {
    let engine = fake(Dialect::Vllm).await;
    let set = whole(&engine, "/_ctl", r#"{"fault":{"kind":"stall_after","events":2},"ttft_ms":1}"#).await;
    assert!(set.starts_with("HTTP/1.1 200"), "{set}");
    let wrong = whole(&engine, "/_ctl", r#"{"falt":1}"#).await;
    assert!(wrong.starts_with("HTTP/1.1 400"), "{wrong}");
    let read = exchange(&engine, "GET /_ctl HTTP/1.1\r\nconnection: close\r\n\r\n", SILENCE).await;
    let snapshot: plimsoll_fakes::Snapshot = serde_json::from_str(read.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(snapshot.generations, 0);
}
