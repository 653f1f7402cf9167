//! HTTP/2 without TLS, with prior knowledge, from clients. Engines still get HTTP/1.1.

use crate::{CHAT, body, fake, paced, text, until};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll_end_to_end::{Gateway, Plan, patient, sse};
use plimsoll_fakes::Dialect;

async fn open(gateway: &Gateway) -> SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(gateway.addr).await.unwrap();
    let (sender, connection) =
        patient("h2 handshake", handshake(TokioExecutor::new(), TokioIo::new(stream))).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(gateway: &Gateway, stream: bool, tokens: u64) -> http::Request<Full<Bytes>> {
    http::Request::post(format!("{}{CHAT}", gateway.url()))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body(CHAT, stream, tokens).to_string())))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_streams_share_one_connection() {
    let engine = paced(Dialect::Vllm, 2_000, 2).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let sender = open(&gateway).await;
    let mut streams = tokio::task::JoinSet::new();
    for n in 0..50 {
        let (mut sender, request) = (sender.clone(), request(&gateway, n % 2 == 0, 12));
        streams.spawn(async move {
            let response = sender.send_request(request).await.unwrap();
            assert_eq!((response.status(), response.version()), (http::StatusCode::OK, http::Version::HTTP_2));
            assert!(response.headers().contains_key("x-request-id"));
            response.into_body().collect().await.unwrap().to_bytes()
        });
    }
    let bodies = patient("fifty answers", streams.join_all()).await;
    for bytes in bodies {
        let streamed = sse::text(&sse::all(&bytes));
        let whole: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let said = whole["choices"][0]["message"]["content"].as_str().unwrap_or(&streamed);
        assert_eq!(said, text(12));
    }
    assert_eq!(engine.snapshot().peak_in_flight, 50, "they ran side by side");
    drop(sender);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_stream_aborts_on_the_engine_and_its_neighbours_live() {
    let engine = fake(Dialect::Sglang).await;
    engine.control(plimsoll_fakes::Control { ttft_ms: Some(60_000), ..Default::default() });
    let gateway = Plan::with([engine.url()]).start().await;
    let sender = open(&gateway).await;
    let (mut first, mut second) = (sender.clone(), sender.clone());
    let leaving = tokio::spawn({
        let request = request(&gateway, true, 5);
        async move { first.send_request(request).await.map(http::Response::into_body) }
    });
    until(&engine, "the first", |seen| seen.in_flight == 1).await;
    engine.control(plimsoll_fakes::Control { ttft_ms: Some(400), ..Default::default() });
    let staying = tokio::spawn({
        let request = request(&gateway, true, 5);
        async move { second.send_request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes() }
    });
    until(&engine, "both", |seen| seen.in_flight == 2).await;
    leaving.abort();
    until(&engine, "the abort by rid", |seen| seen.aborted_by_rid == 1).await;
    let bytes = patient("the neighbour", staying).await.unwrap();
    assert_eq!(sse::text(&sse::all(&bytes)), text(5));
    drop(sender);
    gateway.finish().await;
}

/// Found by review: on a connection that is otherwise alive nothing of a stream without window is polled any more, its
/// timers included; the engine's slot was the client's for as long as it liked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_never_pulled_is_cut_and_the_connection_lives() {
    let engine = fake(Dialect::Sglang).await;
    engine.control(plimsoll_fakes::Control { itl_ms: Some(1), event_bytes: Some(8 << 10), ..Default::default() });
    let gateway = Plan::with([engine.url()]).set("streams.client_stall_timeout_ms", 1_500).start().await;
    let stream = tokio::net::TcpStream::connect(gateway.addr).await.unwrap();
    let (mut sender, connection) = patient(
        "h2 handshake",
        hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(16 << 10)
            .handshake(TokioIo::new(stream)),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let held = sender.send_request(request(&gateway, true, 20_000)).await.unwrap();
    until(&engine, "the stream", |seen| seen.in_flight == 1).await;
    until(&engine, "the abort of the stream nobody reads", |seen| seen.aborted_by_rid == 1).await;
    engine.control(plimsoll_fakes::Control { itl_ms: Some(0), event_bytes: Some(0), ..Default::default() });
    let answer = sender.send_request(request(&gateway, false, 3)).await.unwrap();
    assert_eq!(answer.status(), 200, "the neighbours on the connection are served");
    drop((held, answer, sender));
    gateway.finish().await;
}
