//! Streams that end wrongly: told apart, and each told to the client as one typed error event.

use crate::{CHAT, COMPLETIONS, GENERATE, body, fake, set_fault};
use plimsoll_end_to_end::sse::Event;
use plimsoll_end_to_end::{Gateway, Plan};
use plimsoll_fakes::{Dialect, FakeEngine, Fault};
use serde_json::Value;

struct Seen {
    tokens_before: usize,
    code: String,
    record: Value,
}

/// Runs a stream that breaks after three events and checks all that holds for each of them.
async fn broken(engine: &FakeEngine, gateway: &Gateway, route: &str, fault: &Fault) -> Seen {
    set_fault(engine, fault.clone());
    let answer = gateway.post(route, &body(route, true, 20)).await;
    assert_eq!(answer.status(), 200, "{fault:?}: {}", answer.text());
    assert!(answer.complete, "{fault:?} {route}: the chunked body must end properly");
    let events: Vec<Event> = answer.events().into_iter().filter(|event| matches!(event, Event::Data(_))).collect();
    let errors: Vec<&Event> = events.iter().filter(|event| event.error_code().is_some()).collect();
    assert_eq!(errors.len(), 1, "{fault:?} {route}: exactly one error event: {events:?}");
    assert!(events.last().unwrap().is_done(), "{fault:?} {route}: {events:?}");
    assert_eq!(&events[events.len() - 2], errors[0], "{fault:?} {route}: the error is last: {events:?}");
    assert_eq!(events.iter().filter(|event| event.is_done()).count(), 1, "{fault:?} {route}: one [DONE]");
    let error = errors[0].json().unwrap();
    assert!(error["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
    assert!(error["error"]["type"].is_string());
    let id = answer.header("x-request-id").unwrap();
    Seen { tokens_before: events.len() - 2, code: errors[0].error_code().unwrap(), record: gateway.record(id).await }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wrong_end_has_its_own_code() {
    let abort = |status_code| Fault::AbortAfter { events: 3, status_code, as_error: false };
    let cases = [
        (Fault::CutAfter { events: 3 }, "engine_truncated", "truncated"),
        (Fault::EndAfter { events: 3 }, "engine_truncated", "truncated"),
        (Fault::ErrorEventAfter { events: 3 }, "engine_failed", "engine_failed"),
        (abort(None), "engine_aborted", "aborted"),
        (abort(Some(500)), "engine_aborted", "aborted"),
        (Fault::StallAfter { events: 3 }, "engine_stalled", "stalled"),
        (Fault::BadJsonAfter { events: 3 }, "engine_bad_response", "engine_failed"),
    ];
    for dialect in [Dialect::Sglang, Dialect::Vllm, Dialect::Openai] {
        let engine = fake(dialect).await;
        let gateway = Plan::with([engine.url()])
            .set("streams.idle_timeout_ms.high", 600)
            .set("health.request_failures", 1_000)
            .start()
            .await;
        let routes: &[&str] = if dialect == Dialect::Sglang { &[CHAT, GENERATE] } else { &[CHAT, COMPLETIONS] };
        for route in routes {
            for (fault, code, outcome) in &cases {
                let seen = broken(&engine, &gateway, route, fault).await;
                assert_eq!(seen.code, *code, "{dialect:?} {route} {fault:?}");
                assert_eq!(seen.record["outcome"], *outcome, "{dialect:?} {route} {fault:?}: {}", seen.record);
                assert_eq!(seen.record["error_code"], *code);
                assert!(seen.tokens_before >= 3, "{fault:?}: what came before is delivered: {}", seen.tokens_before);
            }
        }
        gateway.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_as_an_error_object_and_one_for_lack_of_room() {
    let engine = fake(Dialect::Sglang).await;
    let gateway = Plan::with([engine.url()]).set("health.request_failures", 1_000).start().await;
    let object = Fault::AbortAfter { events: 3, status_code: Some(500), as_error: true };
    let seen = broken(&engine, &gateway, CHAT, &object).await;
    assert!(matches!(seen.code.as_str(), "engine_failed" | "engine_aborted"), "{}", seen.code);
    let room = Fault::AbortAfter { events: 3, status_code: Some(503), as_error: false };
    let seen = broken(&engine, &gateway, GENERATE, &room).await;
    assert!(matches!(seen.code.as_str(), "engine_overloaded" | "engine_aborted"), "{}", seen.code);
    gateway.finish().await;
}

/// Nothing has been sent to the client yet, so a stream that breaks at once is tried elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_break_before_their_first_token_are_retried() {
    let faults = [
        Fault::EndAfter { events: 0 },
        Fault::CutAfter { events: 0 },
        Fault::ErrorEventAfter { events: 0 },
        Fault::AbortAfter { events: 0, status_code: Some(500), as_error: false },
    ];
    for fault in faults {
        let (bad, good) = (fake(Dialect::Sglang).await, fake(Dialect::Sglang).await);
        set_fault(&bad, fault.clone());
        let gateway = Plan::with([bad.url(), good.url()]).set("policy.name", "round_robin").start().await;
        for _ in 0..4 {
            let answer = gateway.post(GENERATE, &body(GENERATE, true, 3)).await;
            let events = answer.events();
            assert_eq!(plimsoll_end_to_end::sse::text(&events), crate::text(3), "{fault:?}: {events:?}");
        }
        assert!(bad.snapshot().generations > 0);
        gateway.finish().await;
    }
}

/// A non-streaming answer that breaks is one error object, never half an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_answers_that_break_are_one_error() {
    let engine = fake(Dialect::Sglang).await;
    let gateway = Plan::with([engine.url()])
        .set("streams.idle_timeout_ms.high", 600)
        .set("health.request_failures", 1_000)
        .start()
        .await;
    for fault in
        [Fault::CutAfter { events: 0 }, Fault::LengthLong, Fault::StallAfter { events: 0 }, Fault::HangAfterHeaders]
    {
        set_fault(&engine, fault.clone());
        let answer = gateway.post(CHAT, &body(CHAT, false, 5)).await;
        assert!(matches!(answer.status(), 502 | 504), "{fault:?}: {} {}", answer.status(), answer.text());
        assert!(answer.code().starts_with("engine_"), "{fault:?}: {}", answer.text());
    }
    set_fault(&engine, Fault::AbortAfter { events: 0, status_code: None, as_error: false });
    let answer = gateway.post(GENERATE, &body(GENERATE, false, 5)).await;
    assert_eq!((answer.status(), answer.code().as_str()), (502, "engine_aborted"), "{}", answer.text());
    gateway.finish().await;
}
