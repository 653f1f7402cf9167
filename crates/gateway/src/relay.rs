//! A begun stream on its way to the client, pulled by the client's own pace.
//!
//! Nothing runs ahead: each step reads one frame from the engine and returns its whole events. A stream ends in
//! exactly one of these ways: its own end; one typed error event (truncated, engine error, abort, stall, deadline,
//! garbage: each has its code), or the client's going, which drops this struct and with it the attempt.

use crate::api_error::ApiError;
use crate::attempt::Attempt;
use crate::begin::upstream_error_miss;
use crate::first_event::StreamStart;
use crate::flow::{Failure, Flow};
use crate::stream_watch::{StreamWatch, Verdict};
use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use plimsoll_core::{ErrorCode, Outcome};
use plimsoll_load::AttemptEnd;
use plimsoll_pools::http::{BodyError, Exchange};
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// What a proxy on the way sees of a silent stream.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

const DONE: &[u8] = b"data: [DONE]\n\n";

/// An engine that has sent `[DONE]` gets this long to end its body.
const AFTER_DONE: Duration = Duration::from_secs(1);

/// A running stream.
pub struct Relay {
    flow: Flow,
    attempt: Option<Attempt>,
    exchange: Exchange,
    watch: StreamWatch,
    first: Option<Bytes>,
    over: bool,
    timer: Pin<Box<Sleep>>,
    last_frame: Instant,
    /// When the client was last sent anything.
    last_sent: Instant,
}

enum Step {
    Frame(Option<Result<Bytes, BodyError>>),
    Timer,
}

impl Relay {
    #[must_use]
    pub fn new(mut flow: Flow, start: StreamStart) -> Self {
        // No other engine will be tried from here on: the client's bytes are not needed any more.
        flow.forget_body();
        let now = Instant::now();
        Relay {
            flow,
            attempt: Some(start.attempt),
            exchange: start.exchange,
            watch: start.watch,
            first: Some(start.first).filter(|b| !b.is_empty()),
            over: start.over,
            // Armed by its first poll; a stream that never waits pays nothing for it.
            timer: Box::pin(tokio::time::sleep_until(now)),
            last_frame: now,
            last_sent: now,
        }
    }

    /// As the body of an answer.
    pub fn into_stream(self) -> impl Stream<Item = Bytes> + Send {
        futures_util::stream::unfold(Box::new(self), |mut relay| async move {
            let bytes = relay.next().await?;
            Some((bytes, relay))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            self.arm();
            return Some(first);
        }
        while !self.over {
            let step = tokio::select! {
                biased;
                frame = self.exchange.frame() => Step::Frame(frame),
                () = self.timer.as_mut() => Step::Timer,
            };
            let sent = match step {
                Step::Frame(Some(Ok(frame))) => self.frame(&frame),
                Step::Frame(Some(Err(error))) => self.ended(Some(error)),
                Step::Frame(None) => self.ended(None),
                Step::Timer => self.tick(),
            };
            if let Some(bytes) = sent.filter(|b| !b.is_empty()) {
                self.last_sent = Instant::now();
                return Some(bytes);
            }
        }
        None
    }

    fn frame(&mut self, frame: &Bytes) -> Option<Bytes> {
        self.last_frame = Instant::now();
        if let Some(attempt) = &self.attempt {
            attempt.moved(self.flow.shared.now());
        }
        let fed = self.watch.feed(frame, &mut self.flow.progress.output);
        let (end, failure) = match fed.verdict {
            Verdict::Fine => return Some(fed.events),
            Verdict::Error { status, message } => {
                let miss = upstream_error_miss(&self.flow, status, &message, false);
                (miss.end, miss.failure)
            }
            Verdict::Abort { status, message } => {
                let miss = upstream_error_miss(&self.flow, status, &message, true);
                (miss.end, miss.failure)
            }
            Verdict::Garbage(why) => {
                (AttemptEnd::Failed, failure(Outcome::EngineFailed, ErrorCode::EngineBadResponse, why))
            }
        };
        Some(self.fail(fed.events, end, failure))
    }

    /// The engine's body is over, properly or not.
    fn ended(&mut self, error: Option<BodyError>) -> Option<Bytes> {
        if self.watch.is_complete() {
            self.over = true;
            if let Some(attempt) = self.attempt.take() {
                attempt.complete(self.flow.progress.output.usage);
            }
            self.flow.end(Outcome::Completed, 200, None);
            // A complete stream whose end mark got lost is given one: clients wait for it.
            return (!self.watch.saw_done()).then(|| Bytes::from_static(DONE));
        }
        let why = match error {
            Some(error) => format!("the engine's stream broke off before its end: {error}"),
            None => "the engine's stream ended without a finish reason".to_owned(),
        };
        let failure = failure(Outcome::Truncated, ErrorCode::EngineTruncated, why);
        Some(self.fail(Bytes::new(), AttemptEnd::Failed, failure))
    }

    /// The timer rang: keep-alive, idle time-out, deadline, or an earlier setting that is out of date.
    fn tick(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        if self.watch.saw_done() && now >= self.last_frame + AFTER_DONE {
            return self.ended(None);
        }
        if now >= self.flow.deadline {
            let message = "the request's deadline passed inside its stream";
            let failure = failure(Outcome::DeadlineExceeded, ErrorCode::DeadlineExceeded, message.to_owned());
            return Some(self.stop(AttemptEnd::Cancelled, failure));
        }
        let idle = self.flow.idle_timeout();
        if now >= self.last_frame + idle {
            let message = format!("the engine sent nothing for {} ms inside its stream", idle.as_millis());
            let failure = failure(Outcome::Stalled, ErrorCode::EngineStalled, message);
            return Some(self.stop(AttemptEnd::Stalled, failure));
        }
        let keep_alive = now >= self.last_sent + self.keep_alive_interval();
        if keep_alive {
            self.last_sent = now;
        }
        self.arm();
        keep_alive.then_some(KEEP_ALIVE)
    }

    fn keep_alive_interval(&self) -> Duration {
        Duration::from_millis(self.flow.settings.streams.keep_alive_ms)
    }

    /// Sets the timer to the next thing that can be due.
    fn arm(&mut self) {
        let mut at = self.flow.deadline.min(self.last_frame + self.flow.idle_timeout());
        at = at.min(self.last_sent + self.keep_alive_interval());
        if self.watch.saw_done() {
            at = at.min(self.last_frame + AFTER_DONE);
        }
        self.timer.as_mut().reset(at.max(Instant::now() + Duration::from_millis(1)));
    }

    /// Ends the stream with an error event; the engine has ended by itself.
    fn fail(&mut self, before: Bytes, end: AttemptEnd, failure: Failure) -> Bytes {
        self.over = true;
        if let Some(attempt) = self.attempt.take() {
            attempt.end(end, Some(failure.error.message.clone()));
        }
        self.error_event(before, failure)
    }

    /// Ends the stream with an error event and stops the engine.
    fn stop(&mut self, end: AttemptEnd, failure: Failure) -> Bytes {
        self.over = true;
        if let Some(attempt) = self.attempt.take() {
            attempt.end_and_abort(end, Some(failure.error.message.clone()));
        }
        self.error_event(Bytes::new(), failure)
    }

    fn error_event(&mut self, before: Bytes, failure: Failure) -> Bytes {
        let code = failure.error.code;
        // The status line said 200 long ago; the record says so too.
        self.flow.end(failure.outcome, 200, Some(code));
        let event = failure.error.into_event();
        if before.is_empty() {
            return event;
        }
        let mut both = BytesMut::from(before);
        both.extend_from_slice(&event);
        both.freeze()
    }
}

fn failure(outcome: Outcome, code: ErrorCode, message: String) -> Failure {
    Failure { outcome, error: ApiError::new(code, message) }
}

/// A large non-streaming answer, passed on unchecked.
pub fn pass(mut flow: Flow, attempt: Attempt, exchange: Exchange) -> impl Stream<Item = Bytes> + Send {
    flow.progress.output.piece(std::time::Instant::now());
    let state = Box::new((flow, Some(attempt), exchange));
    futures_util::stream::unfold(state, |mut state| async move {
        let (flow, attempt, exchange) = &mut *state;
        let bytes = match exchange.frame().await {
            Some(Ok(bytes)) => bytes,
            end => {
                let attempt = attempt.take()?;
                match end {
                    None => {
                        attempt.end(AttemptEnd::Ok, None);
                        flow.end(Outcome::Completed, 200, None);
                    }
                    Some(result) => {
                        attempt.end(AttemptEnd::Failed, result.err().map(|e| e.to_string()));
                        flow.end(Outcome::Truncated, 200, Some(ErrorCode::EngineTruncated));
                    }
                }
                return None;
            }
        };
        Some((bytes, state))
    })
}
