//! Events and answers of each family, good and bad, as they come off a socket.

use super::{PATIENCE, fake};
use http::{HeaderMap, Method};
use plimsoll_fakes::{Control, Dialect, FakeEngine, Fault, Options};
use plimsoll_pools::adapter::Route;
use plimsoll_pools::chunk::{AnswerError, ChunkFacts, ChunkKind, FinishCounter, FinishReason};
use plimsoll_pools::http::{Endpoint, EndpointOptions, Key, OutBody};

const GENERATIONS: [Route; 3] = [Route::ChatCompletions, Route::Completions, Route::Generate];

fn body(route: Route, stream: bool) -> String {
    let options = format!(r#""stream":{stream},"stream_options":{{"include_usage":true}}"#);
    match route {
        Route::ChatCompletions => {
            format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"x"}}],"max_tokens":5,{options}}}"#)
        }
        Route::Completions => format!(r#"{{"model":"tiny","prompt":"x","max_tokens":5,{options}}}"#),
        Route::Embeddings => r#"{"model":"tiny","input":"x"}"#.to_owned(),
        Route::Generate => format!(r#"{{"text":"x","sampling_params":{{"max_new_tokens":5}},"stream":{stream}}}"#),
    }
}

async fn ask(endpoint: &Endpoint, route: Route, stream: bool) -> Vec<u8> {
    let body = OutBody::whole(body(route, stream).into());
    let request = endpoint.request(Method::POST, route.path(), HeaderMap::new(), Key::Inference, body);
    let mut exchange = endpoint.send(request).await.unwrap();
    assert_eq!(exchange.status, 200);
    tokio::time::timeout(PATIENCE, exchange.collect(1 << 20)).await.unwrap().unwrap().to_vec()
}

async fn stream(endpoint: &Endpoint, route: Route) -> Vec<ChunkFacts> {
    let answer = ask(endpoint, route, true).await;
    let lines = answer.split(|b| *b == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
    lines.map(|data| route.dialect().inspect(data)).collect()
}

fn routes(dialect: Dialect) -> impl Iterator<Item = Route> {
    GENERATIONS.into_iter().filter(move |r| dialect == Dialect::Sglang || *r != Route::Generate)
}

async fn all_with(fault: Fault) -> Vec<(Dialect, Route, Vec<ChunkFacts>)> {
    let mut out = Vec::new();
    for dialect in [Dialect::Sglang, Dialect::Vllm, Dialect::Openai] {
        let (engine, endpoint) = fake(dialect).await;
        engine.control(Control { fault: Some(fault.clone()), ..Control::default() });
        for route in routes(dialect) {
            out.push((dialect, route, stream(&endpoint, route).await));
        }
    }
    out
}

#[tokio::test]
async fn a_good_stream_has_output_one_finish_and_usage() {
    for (dialect, route, facts) in all_with(Fault::None).await {
        let mut counter = FinishCounter::new(1);
        facts.iter().for_each(|f| counter.observe(f));
        let reasons: Vec<_> = facts.iter().flat_map(|f| &f.finishes).map(|f| f.reason.clone()).collect();
        assert_eq!((counter.is_complete(), reasons), (true, vec![FinishReason::Length]), "{dialect:?} {route:?}");
        let usage = facts.iter().filter_map(|f| f.usage).next_back().unwrap();
        assert_eq!((usage.completion_tokens, usage.cached_tokens), (5, Some(0)), "{dialect:?} {route:?}");
        assert!(facts.iter().filter(|f| f.tokens).count() >= 3);
        assert_eq!(facts.last().unwrap().kind, ChunkKind::Done);
        assert!(facts.iter().all(|f| f.error.is_none() && f.abort.is_none() && f.kind != ChunkKind::Garbage));
        if route == Route::ChatCompletions {
            assert!(!facts[0].tokens, "the role chunk is no output");
        }
    }
}

#[tokio::test]
async fn a_truncated_stream_has_no_finish() {
    for (dialect, route, facts) in all_with(Fault::EndAfter { events: 2 }).await {
        assert!(facts.iter().any(|f| f.tokens) && facts.iter().all(|f| f.finishes.is_empty()), "{dialect:?} {route:?}");
        assert!(facts.iter().all(|f| f.kind == ChunkKind::Event));
    }
}

#[tokio::test]
async fn errors_and_aborts_inside_a_200_stream_are_seen() {
    for (dialect, route, facts) in all_with(Fault::ErrorEventAfter { events: 2 }).await {
        let errors: Vec<_> = facts.iter().filter_map(|f| f.error.as_ref()).collect();
        assert_eq!(errors.len(), 1, "{dialect:?} {route:?}");
        assert!(errors[0].status.is_some_and(|s| s >= 500) && !errors[0].message.is_empty());
    }
    for (dialect, route, facts) in all_with(Fault::AbortAfter { events: 2, status_code: None, as_error: false }).await {
        assert_eq!(facts.iter().filter(|f| f.abort.is_some()).count(), 1, "{dialect:?} {route:?}");
    }
    let fault = Fault::AbortAfter { events: 2, status_code: Some(503), as_error: true };
    for (dialect, route, facts) in all_with(fault).await {
        let overload = |f: &ChunkFacts| {
            f.error.as_ref().is_some_and(|e| e.is_overload()) || f.abort.as_ref().is_some_and(|a| a.is_overload())
        };
        assert_eq!(facts.iter().filter(|f| overload(f)).count(), 1, "{dialect:?} {route:?}");
    }
    for (dialect, route, facts) in all_with(Fault::BadJsonAfter { events: 2 }).await {
        assert!(facts.iter().any(|f| f.kind == ChunkKind::Garbage), "{dialect:?} {route:?}");
    }
}

#[tokio::test]
async fn a_full_queue_inside_a_200_stream_is_an_overload() {
    let options = Options { max_running: Some(1), max_queued: Some(0), itl_ms: 50, ..Options::new(Dialect::Sglang) };
    let engine = FakeEngine::start(options).await.unwrap();
    let endpoint = Endpoint::new(&engine.url(), EndpointOptions::default()).unwrap();
    let body = OutBody::whole(r#"{"text":"x","stream":true,"sampling_params":{"max_new_tokens":100000}}"#.into());
    let request = endpoint.request(Method::POST, "/generate", HeaderMap::new(), Key::Inference, body);
    let mut first = endpoint.send(request).await.unwrap();
    first.frame().await.unwrap().unwrap();
    for route in GENERATIONS {
        let facts = stream(&endpoint, route).await;
        let overload = facts.iter().any(|f| {
            f.error.as_ref().is_some_and(|e| e.is_overload()) || f.abort.as_ref().is_some_and(|a| a.is_overload())
        });
        assert!(overload && facts.iter().all(|f| !f.tokens), "{route:?}: {facts:?}");
    }
}

#[tokio::test]
async fn whole_answers() {
    for dialect in [Dialect::Sglang, Dialect::Vllm, Dialect::Openai] {
        let (engine, endpoint) = fake(dialect).await;
        for route in routes(dialect) {
            let facts = route.dialect().inspect_answer(&ask(&endpoint, route, false).await).unwrap();
            assert_eq!(facts.finishes[0].reason, FinishReason::Length);
            assert_eq!(facts.usage.unwrap().completion_tokens, 5);
            assert!(facts.error.is_none() && facts.abort.is_none());
        }
        let facts =
            Route::Embeddings.dialect().inspect_answer(&ask(&endpoint, Route::Embeddings, false).await).unwrap();
        assert_eq!((facts.usage.unwrap().completion_tokens, facts.finishes.len()), (0, 0));
        engine.control(Control { faults: Some(vec![Fault::Html, Fault::BadJson]), ..Control::default() });
        let first = Route::Completions.dialect().inspect_answer(&ask(&endpoint, Route::Completions, false).await);
        let second = Route::Completions.dialect().inspect_answer(&ask(&endpoint, Route::Completions, false).await);
        assert_eq!(first, Err(AnswerError::Html));
        assert!(matches!(second, Err(AnswerError::NotJson(_))));
    }
}
