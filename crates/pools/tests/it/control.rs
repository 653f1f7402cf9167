//! Probe, load and abort.

use super::{PATIENCE, fake};
use http::{HeaderMap, Method};
use plimsoll_core::{EngineKind, Nanos};
use plimsoll_fakes::{Control, Dialect};
use plimsoll_pools::abort::{AbortedBy, abort};
use plimsoll_pools::capability::{AbortForm, LoadsForm};
use plimsoll_pools::http::{CallError, Endpoint, Key, OutBody};
use plimsoll_pools::loads::poll;
use plimsoll_pools::probe::{ProbeError, probe};
use std::time::Duration;

#[tokio::test]
async fn each_family_is_recognised() {
    for (dialect, kind, loads, abort) in [
        (Dialect::Sglang, EngineKind::Sglang, LoadsForm::V1Loads, AbortForm::SglangRid),
        (Dialect::Vllm, EngineKind::Vllm, LoadsForm::Metrics, AbortForm::Disconnect),
        (Dialect::Openai, EngineKind::Openai, LoadsForm::None, AbortForm::Disconnect),
    ] {
        let (_engine, endpoint) = fake(dialect).await;
        let capability = probe(&endpoint, None, PATIENCE).await.unwrap();
        assert_eq!((capability.kind, capability.loads, capability.abort), (kind, loads, abort));
        assert_eq!(capability.model_names(), ["tiny"]);
        let poll = poll(&endpoint, &capability, None, Nanos(5), PATIENCE).await.unwrap();
        assert!(poll.sign_of_life && !poll.changed);
        assert_eq!(poll.reports.len(), usize::from(loads != LoadsForm::None));
        assert!(poll.reports.iter().all(|r| r.running_requests == Some(0) && r.received == Nanos(5)));
    }
}

async fn start_generation(endpoint: Endpoint, rid: &str) -> plimsoll_pools::http::Exchange {
    let body = format!(r#"{{"rid":"{rid}","text":"x","stream":true,"sampling_params":{{"max_new_tokens":100000}}}}"#);
    let body = OutBody::whole(body.into());
    let request = endpoint.request(Method::POST, "/generate", HeaderMap::new(), Key::Inference, body);
    let mut exchange = endpoint.send(request).await.unwrap();
    exchange.frame().await.unwrap().unwrap();
    exchange
}

#[tokio::test]
async fn a_running_request_is_reported_and_can_be_taken_back() {
    let (engine, endpoint) = fake(Dialect::Sglang).await;
    engine.control(Control { itl_ms: Some(20), ..Control::default() });
    let capability = probe(&endpoint, None, PATIENCE).await.unwrap();
    let rid = "0123456789abcdef0123456789abcdef";
    let _stream = start_generation(endpoint.clone(), rid).await;
    let before = poll(&endpoint, &capability, None, Nanos(5), PATIENCE).await.unwrap();
    assert_eq!(before.reports[0].running_requests, Some(1));
    let report = abort(&endpoint, &capability, &[rid.to_owned()], PATIENCE).await;
    assert_eq!((report.by, report.accepted, report.failure), (AbortedBy::Call, 1, None));
    let mut running = None;
    for _ in 0..100 {
        running = poll(&endpoint, &capability, None, Nanos(6), PATIENCE).await.unwrap().reports[0].running_requests;
        if running == Some(0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((running, engine.snapshot().aborted_by_rid), (Some(0), 1));
}

#[tokio::test]
async fn frozen_missing_and_refusing_engines() {
    let (engine, endpoint) = fake(Dialect::Sglang).await;
    let capability = probe(&endpoint, None, PATIENCE).await.unwrap();
    let short = Duration::from_millis(300);
    let every = ["/openapi.json", "/v1/models", "/v1/loads", "/server_info", "/model_info"];
    engine.control(Control { hang_paths: Some(every.map(str::to_owned).to_vec()), ..Control::default() });
    assert!(matches!(poll(&endpoint, &capability, None, Nanos(5), short).await, Err(CallError::Timeout)));
    assert!(matches!(probe(&endpoint, None, short).await, Err(ProbeError::Timeout { .. })));

    engine.control(Control {
        hang_paths: Some(Vec::new()),
        missing_paths: Some(vec!["/v1/loads".to_owned(), "/openapi.json".to_owned()]),
        ..Control::default()
    });
    let gone = poll(&endpoint, &capability, None, Nanos(5), PATIENCE).await.unwrap();
    assert!(gone.sign_of_life && gone.changed && gone.reports.is_empty());
    let again = probe(&endpoint, None, PATIENCE).await.unwrap();
    assert_eq!((again.kind, again.loads), (EngineKind::Sglang, LoadsForm::Metrics));
    let poll = poll(&endpoint, &again, None, Nanos(5), PATIENCE).await.unwrap();
    assert_eq!(poll.reports[0].running_requests, Some(0));
}

/// The gateway runs these in spawned tasks.
#[tokio::test]
async fn probes_polls_and_aborts_run_in_spawned_tasks() {
    let (_engine, endpoint) = fake(Dialect::Sglang).await;
    let task = tokio::spawn(async move {
        let capability = probe(&endpoint, None, PATIENCE).await.unwrap();
        let poll = poll(&endpoint, &capability, None, Nanos(1), PATIENCE).await.unwrap();
        let report = abort(&endpoint, &capability, &["0123".to_owned()], PATIENCE).await;
        (poll.sign_of_life, report.accepted)
    });
    assert_eq!(task.await.unwrap(), (true, 1));
}
