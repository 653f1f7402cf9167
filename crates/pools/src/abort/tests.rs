use super::*;
use crate::capability::Product;
use crate::scripted::{Reply, Scripted, json as reply};
use plimsoll_core::EngineKind;

const SOON: Duration = Duration::from_secs(20);

fn rids(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{i:032x}")).collect()
}

#[tokio::test]
async fn sglang_is_told_each_rid() {
    let server = Scripted::start([("/abort_request", Reply::Is(200, String::new()))]).await;
    let capability =
        Capability { abort: AbortForm::SglangRid, ..Capability::unknown(EngineKind::Sglang, Product::Sglang) };
    let mut ids = rids(40);
    ids.push(String::new());
    let report = abort(&server.endpoint, &capability, &ids, SOON).await;
    assert_eq!((report.by, report.asked, report.accepted, report.failure), (AbortedBy::Call, 41, 40, None));
    let mut bodies: Vec<_> = server
        .seen()
        .into_iter()
        .map(|(line, body)| {
            assert_eq!(line, "POST /abort_request");
            body
        })
        .collect();
    bodies.sort();
    assert_eq!(bodies, rids(40).iter().map(|r| format!("{{\"rid\":\"{r}\"}}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn refused_and_unanswered_aborts_are_reported() {
    let capability =
        Capability { abort: AbortForm::SglangRid, ..Capability::unknown(EngineKind::Sglang, Product::Sglang) };
    let server = Scripted::start([("/abort_request", Reply::Is(401, "{}".into()))]).await;
    let report = abort(&server.endpoint, &capability, &rids(1), SOON).await;
    assert!(report.accepted == 0 && report.failure.unwrap().contains("admin_api_key"));
    server.set("/abort_request", Reply::Silence);
    let report = abort(&server.endpoint, &capability, &rids(20), Duration::from_millis(200)).await;
    assert_eq!((report.accepted, report.failure.as_deref()), (0, Some("no answer in time")));
}

#[tokio::test]
async fn vllm_is_told_internal_ids_only_where_it_listens() {
    let server = Scripted::start([("/inference/v1/abort_requests", reply(""))]).await;
    let mut capability = Capability::unknown(EngineKind::Vllm, Product::Vllm);
    let report = abort(&server.endpoint, &capability, &rids(1), SOON).await;
    assert_eq!((report.by, server.seen().len()), (AbortedBy::Disconnect, 0));
    capability.abort = AbortForm::VllmInternalId;
    let report = abort(&server.endpoint, &capability, &["ab".to_owned()], SOON).await;
    assert_eq!((report.by, report.accepted), (AbortedBy::Call, 1));
    assert_eq!(server.seen()[0].1, r#"{"request_ids":["cmpl-ab-0","chatcmpl-ab"]}"#);
    let batch = crate::adapter::child_rids("ab", 3);
    let report = abort(&server.endpoint, &capability, &batch, SOON).await;
    assert_eq!((report.asked, report.accepted), (3, 3));
    assert_eq!(server.seen()[1].1, r#"{"request_ids":["cmpl-ab-0","cmpl-ab-1","cmpl-ab-2"]}"#);
}
