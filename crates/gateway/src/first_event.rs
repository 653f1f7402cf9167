//! Waiting for a stream's first output.
//!
//! Engines send `200` and headers long before they have anything: SGLang before it has even admitted the request, so
//! that a full queue arrives as an abort *inside* the 200. Nothing is sent to the client until there is real output;
//! until then a failure is a proper HTTP status, or another engine's turn. Events that carry no output (a role, a
//! comment) are held with it.

use crate::attempt::Attempt;
use crate::begin::{Again, Miss, dialect, guarded, upstream_error_miss};
use crate::flow::{Failure, Flow};
use crate::owned::shaper;
use crate::{api_error::ApiError, stream_watch::StreamWatch, stream_watch::Verdict};
use bytes::{Bytes, BytesMut};
use plimsoll_core::{ErrorCode, Outcome};
use plimsoll_load::AttemptEnd;
use plimsoll_pools::http::Exchange;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of output-less events held before the stream is begun anyway.
const HELD_BYTES: usize = 64 << 10;

/// A stream that has begun.
pub struct StreamStart {
    pub attempt: Box<Attempt>,
    pub exchange: Exchange,
    pub watch: StreamWatch,
    /// Events to send first.
    pub first: Bytes,
}

pub(crate) async fn first_event(
    flow: &mut Flow,
    mut attempt: Box<Attempt>,
    mut exchange: Exchange,
) -> Result<StreamStart, (Box<Attempt>, Miss)> {
    let mut watch = StreamWatch::new(dialect(flow.route.api, &attempt), &flow.facts, flow.settings.streams.event_bytes);
    watch.shape_with(shaper(flow, attempt.token_route));
    let mut held = BytesMut::new();
    // A queue and a long prefill are silent for as long as they take: the idle time-out is for streams that have begun. A
    // frozen engine is the prober's to find; this bound is for one that answers probes and computes nothing.
    let patience = Duration::from_millis(flow.settings.streams.first_token_timeout_ms);
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let frame = match guarded(flow, &mut attempt, Some(left), exchange.frame()).await {
            Ok(frame) => frame,
            // It may be a very long queue: nothing that counts against the engine.
            Err(miss) if miss.end == AttemptEnd::Stalled => {
                return Err((attempt, Miss { end: AttemptEnd::Cancelled, ..miss }));
            }
            Err(miss) => return Err((attempt, miss)),
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            end => {
                let why = match end {
                    Some(Err(error)) => error.to_string(),
                    _ => "the engine's stream ended before any output".to_owned(),
                };
                let failure =
                    Failure { outcome: Outcome::Truncated, error: ApiError::new(ErrorCode::EngineTruncated, why) };
                let miss = Miss { end: AttemptEnd::Failed, failure, again: Again::Budget("truncated"), abort: false };
                return Err((attempt, miss));
            }
        };
        attempt.moved(flow.shared.now());
        let fed = watch.feed(&frame, &mut flow.progress.output);
        match fed.verdict {
            Verdict::Fine => {}
            Verdict::Error { status, message } => {
                let miss = upstream_error_miss(flow, status, &message, false);
                return Err((attempt, miss));
            }
            Verdict::Abort { status, message } => {
                let miss = upstream_error_miss(flow, status, &message, true);
                return Err((attempt, miss));
            }
            Verdict::Garbage(why) => {
                let failure =
                    Failure { outcome: Outcome::EngineFailed, error: ApiError::new(ErrorCode::EngineBadResponse, why) };
                let miss = Miss { end: AttemptEnd::Failed, failure, again: Again::Budget("bad_answer"), abort: true };
                return Err((attempt, miss));
            }
        }
        let ready = watch.has_output() || watch.is_complete() || held.len() + fed.events.len() > HELD_BYTES;
        if !ready {
            held.extend_from_slice(&fed.events);
            continue;
        }
        attempt.first_token();
        let first = if held.is_empty() {
            fed.events
        } else {
            held.extend_from_slice(&fed.events);
            held.freeze()
        };
        return Ok(StreamStart { attempt, exchange, watch, first });
    }
}
