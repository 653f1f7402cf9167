//! What engines get wrong: the client gets one clear error with its code, and nothing of the mess.

use crate::{CHAT, body, fake, set_fault, text};
use plimsoll_end_to_end::Plan;
use plimsoll_fakes::{Control, Dialect, Fault};

/// A single engine, so that nothing can be hidden by trying elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_no_answers() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).set("health.request_failures", 1_000).start().await;
    let cases = [
        (Fault::Garbage, &["engine_bad_response", "engine_failed"][..]),
        (Fault::Html, &["engine_bad_response"]),
        (Fault::BadJson, &["engine_bad_response"]),
        (Fault::LengthLong, &["engine_bad_response", "engine_truncated", "engine_failed"]),
        (Fault::EndlessHeaders, &["engine_bad_response", "engine_failed"]),
        (Fault::CloseBeforeHeaders, &["engine_failed"]),
        (Fault::Status { status: 500, retry_after_s: None }, &["engine_failed"]),
    ];
    for (fault, codes) in cases {
        for stream in [false, true] {
            if stream && fault == Fault::LengthLong {
                // It has its finish reason and its `[DONE]`: that it was to be longer hurts nobody.
                continue;
            }
            set_fault(&engine, fault.clone());
            let answer = gateway.post(CHAT, &body(CHAT, stream, 4)).await;
            let sent = answer.events();
            let code = match answer.status() {
                200 => sent.iter().find_map(|event| event.error_code()).unwrap_or_default(),
                _ => answer.code(),
            };
            assert!(codes.contains(&code.as_str()), "{fault:?} stream={stream}: {} {}", answer.status(), answer.text());
            assert!(answer.complete, "{fault:?} stream={stream}: broken framing towards the client");
            if answer.status() != 200 {
                assert!(answer.status() == 502, "{fault:?}: {}", answer.status());
            }
            assert!(!answer.text().contains("nginx"), "nothing of the page leaks");
        }
    }
    set_fault(&engine, Fault::None);
    assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200);
    gateway.finish().await;
}

/// What is too long is cut where it was announced to end; what follows must not become the next answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_after_the_announced_end_never_reach_another_client() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).set("health.request_failures", 1_000).start().await;
    for _ in 0..5 {
        set_fault(&engine, Fault::LengthShort);
        let cut = gateway.post(CHAT, &body(CHAT, false, 4)).await;
        assert_eq!((cut.status(), cut.code().as_str()), (502, "engine_bad_response"), "{}", cut.text());
        set_fault(&engine, Fault::None);
        let good = gateway.post(CHAT, &body(CHAT, false, 4)).await;
        assert_eq!(good.json()["choices"][0]["message"]["content"], text(4).as_str(), "{}", good.text());
    }
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_headers_and_huge_events_cost_no_memory() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).set("streams.event_bytes", 1 << 20).start().await;
    assert_eq!(gateway.post(CHAT, &body(CHAT, true, 4)).await.status(), 200);
    let before = gateway.process.resident_bytes();
    set_fault(&engine, Fault::HugeEvent { bytes: 200 << 20 });
    let answer = gateway.post(CHAT, &body(CHAT, true, 4)).await;
    let codes: Vec<_> = answer.events().iter().filter_map(|event| event.error_code()).collect();
    assert_eq!(codes, ["engine_bad_response"]);
    set_fault(&engine, Fault::EndlessHeaders);
    gateway.post(CHAT, &body(CHAT, true, 4)).await;
    let growth = gateway.process.resident_bytes().saturating_sub(before);
    assert!(growth < 16 << 20, "grew by {growth} bytes");
    gateway.finish().await;
}

/// With a good engine beside it, one that sends garbage costs no client anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_engine_beside_a_good_one_is_not_noticed() {
    for fault in [Fault::Garbage, Fault::Html, Fault::CloseBeforeHeaders, Fault::EndAfter { events: 0 }] {
        let (bad, good) = (fake(Dialect::Vllm).await, fake(Dialect::Vllm).await);
        bad.control(Control { fault: Some(fault.clone()), ..Control::default() });
        let gateway = Plan::with([bad.url(), good.url()]).set("policy.name", "round_robin").start().await;
        for round in 0..12 {
            let answer = gateway.post(CHAT, &body(CHAT, round % 2 == 0, 3)).await;
            assert_eq!(answer.status(), 200, "{fault:?}: {}", answer.text());
            assert!(answer.events().iter().all(|event| event.error_code().is_none()), "{fault:?}: {}", answer.text());
        }
        gateway.finish().await;
    }
}
