//! Spans to an OpenTelemetry collector, as OTLP over HTTP with JSON.
//!
//! Written here on the engine client that is linked anyway: the OpenTelemetry SDK brings some fifty crates and a second
//! HTTP client for what is one POST a second. Sending never holds up a request: the queue is bounded, and what does not
//! fit or cannot be delivered is dropped, counted and told in the log once a minute.

mod encode;

use crate::Failure;
use bytes::Bytes;
use http::Method;
use plimsoll_gateway::spans::{RequestSpan, SpanSink};
use plimsoll_pools::http::{Endpoint, EndpointOptions, Key};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Spans that may wait; at 1,000 traced requests a second this bridges a collector's restart of four seconds.
const QUEUE_SPANS: usize = 4_096;
/// Most spans in one POST.
const BATCH_SPANS: usize = 512;
/// A batch waits this long for more.
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// Longest wait for the collector.
const DEADLINE: Duration = Duration::from_secs(5);
/// Largest answer that is read, in bytes.
const MOST_BYTES: usize = 64 << 10;
/// Longest wait at the end for what is still queued.
const FLUSH: Duration = Duration::from_secs(2);
/// Least time between two log lines about lost spans.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// The task that sends. Ends when the last [`SpanSink`] is gone.
pub struct Exporter {
    task: JoinHandle<()>,
}

impl Exporter {
    /// Waits until what is queued has been sent, at most two seconds.
    pub async fn flush(self) {
        if tokio::time::timeout(FLUSH, self.task).await.is_err() {
            tracing::warn!("the trace collector did not take the last spans in time");
        }
    }
}

/// Starts sending to `endpoint`, such as `http://127.0.0.1:4318`. Must run inside the runtime.
///
/// # Errors
/// An endpoint that is no URL.
pub fn start(endpoint: &str) -> Result<(SpanSink, Exporter), Failure> {
    let base = endpoint.trim_end_matches('/').trim_end_matches("/v1/traces");
    let options = EndpointOptions { connect_timeout: DEADLINE, max_idle: 1, ..EndpointOptions::default() };
    let endpoint =
        Endpoint::new(base, options).map_err(|error| Failure::usage(format!("`telemetry.otlp_endpoint`: {error}")))?;
    let (sender, receiver) = mpsc::channel(QUEUE_SPANS);
    let dropped = Arc::new(AtomicU64::new(0));
    let lost = Arc::clone(&dropped);
    let task = tokio::spawn(send_all(endpoint, receiver, dropped));
    let sink: SpanSink = Arc::new(move |span| {
        if sender.try_send(span).is_err() {
            lost.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok((sink, Exporter { task }))
}

async fn send_all(endpoint: Endpoint, mut receiver: mpsc::Receiver<RequestSpan>, dropped: Arc<AtomicU64>) {
    let mut told: Option<Instant> = None;
    while let Some(batch) = next_batch(&mut receiver).await {
        let why = send(&endpoint, &batch).await.err();
        if why.is_some() {
            dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
        if dropped.load(Ordering::Relaxed) > 0 && told.is_none_or(|told| told.elapsed() >= COMPLAIN_EVERY) {
            told = Some(Instant::now());
            let spans = dropped.swap(0, Ordering::Relaxed);
            let why = why.unwrap_or_else(|| "more came than could be sent".into());
            tracing::warn!(spans, why, "spans were dropped");
        }
    }
}

/// Everything that comes within [`BATCH_WAIT`] of the first span; `None` when no more will come.
async fn next_batch(receiver: &mut mpsc::Receiver<RequestSpan>) -> Option<Vec<RequestSpan>> {
    let mut batch = vec![receiver.recv().await?];
    let wait = tokio::time::sleep(BATCH_WAIT);
    tokio::pin!(wait);
    while batch.len() < BATCH_SPANS {
        tokio::select! {
            span = receiver.recv() => match span {
                Some(span) => batch.push(span),
                None => break,
            },
            () = &mut wait => break,
        }
    }
    Some(batch)
}

async fn send(endpoint: &Endpoint, batch: &[RequestSpan]) -> Result<(), String> {
    let body = serde_json::to_vec(&encode::request(batch)).map_err(|error| error.to_string())?;
    let answer = endpoint
        .call(Method::POST, "/v1/traces", Some(Bytes::from(body)), Key::Inference, DEADLINE, MOST_BYTES)
        .await
        .map_err(|error| error.to_string())?;
    if answer.status.is_success() { Ok(()) } else { Err(format!("the collector answered {}", answer.status)) }
}
