//! A begun stream on its way to the client, pulled by the client's own pace.
//!
//! Nothing runs ahead: each step reads one frame from the engine and returns its whole events. A stream ends in
//! exactly one of these ways: its own end; one typed error event (truncated, engine error, abort, stall, deadline,
//! garbage: each has its code), or the client's going, which drops this struct and with it the attempt.

use crate::api_error::ApiError;
use crate::attempt::Attempt;
use crate::begin::upstream_error_miss;
use crate::body::Cut;
use crate::clock::nanos;
use crate::first_event::StreamStart;
use crate::flow::{Failure, Flow};
use crate::stream_slots::{Live, StreamSlot};
use crate::stream_watch::{StreamWatch, Verdict};
use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use plimsoll_core::{ErrorCode, Outcome};
use plimsoll_load::AttemptEnd;
use plimsoll_pools::http::{BodyError, Exchange};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// What a proxy on the way sees of a silent stream.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// An engine that has sent `[DONE]` gets this long to end its body.
const AFTER_DONE: Duration = Duration::from_secs(1);

/// A running stream. The attempt lies in the slot and is dropped before the flow: its end is in the record by then.
pub struct Relay {
    slot: Arc<StreamSlot>,
    flow: Box<Flow>,
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
    /// The sweep has taken the engine's side: the client had stopped pulling.
    Swept,
}

impl Relay {
    #[must_use]
    pub fn new(mut flow: Box<Flow>, start: StreamStart) -> Self {
        // No other engine will be tried from here on: the client's bytes are not needed any more.
        flow.forget_body();
        let now = Instant::now();
        let deadline = flow.shared.now() + nanos(flow.deadline.saturating_duration_since(now));
        let live = Live { attempt: Some(start.attempt), exchange: start.exchange };
        Relay {
            slot: flow.shared.streams.open(live, deadline),
            flow,
            watch: start.watch,
            first: Some(start.first).filter(|b| !b.is_empty()),
            over: false,
            // Armed by its first poll; a stream that never waits pays nothing for it.
            timer: Box::pin(tokio::time::sleep_until(now)),
            last_frame: now,
            last_sent: now,
        }
    }

    /// As the body of an answer.
    pub fn into_stream(self) -> impl Stream<Item = Bytes> + Send {
        futures_util::stream::unfold(Box::new(self), |mut relay| async move {
            relay.slot.pulled();
            let bytes = relay.next().await?;
            relay.slot.handed(relay.flow.shared.now());
            Some((bytes, relay))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            if self.watch.saw_done() {
                self.completed();
            }
            self.arm();
            return Some(first);
        }
        while !self.over {
            // A client that takes a little now and then would never let the timer have its turn.
            // So would an engine that sends things without output.
            let now = Instant::now();
            let late = !self.watch.is_complete()
                && (now >= self.flow.deadline || now >= self.last_frame + self.flow.idle_timeout());
            let late = late || (self.watch.saw_done() && now >= self.last_frame + AFTER_DONE);
            let step = if late { Step::Timer } else { self.step().await };
            let sent = match step {
                Step::Frame(Some(Ok(frame))) => self.frame(&frame),
                Step::Frame(Some(Err(error))) => self.ended(Some(error)),
                Step::Frame(None) => self.ended(None),
                Step::Timer => self.tick(),
                Step::Swept => self.swept(),
            };
            if let Some(bytes) = sent.filter(|b| !b.is_empty()) {
                self.last_sent = Instant::now();
                return Some(bytes);
            }
        }
        None
    }

    async fn step(&mut self) -> Step {
        let slot = &self.slot;
        let frame = std::future::poll_fn(|cx| match slot.with(|live| live.exchange.poll_data(cx)) {
            Some(Poll::Ready(frame)) => Poll::Ready(Step::Frame(frame)),
            Some(Poll::Pending) => Poll::Pending,
            None => Poll::Ready(Step::Swept),
        });
        tokio::select! {
            biased;
            step = frame => step,
            () = self.timer.as_mut() => Step::Timer,
            () = slot.taken() => Step::Swept,
        }
    }

    fn frame(&mut self, frame: &Bytes) -> Option<Bytes> {
        if self.watch.saw_done() {
            // Read only to keep the connection, and not for long: `last_frame` stays where the last word was.
            return None;
        }
        let before = self.flow.progress.output.pieces;
        let now = self.flow.shared.now();
        self.slot.with(|live| {
            if let Some(attempt) = &live.attempt {
                attempt.moved(now);
            }
        });
        let fed = self.watch.feed(frame, &mut self.flow.progress.output);
        // Comments and events without output move nothing on: an engine that sends only those is stalled.
        if self.flow.progress.output.pieces > before || self.watch.is_complete() {
            self.last_frame = Instant::now();
        }
        let (end, failure) = match fed.verdict {
            Verdict::Fine => {
                if self.watch.saw_done() {
                    self.completed();
                }
                return Some(fed.events);
            }
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

    /// The stream has said its last word. Settled before the client has it, so that a client that leaves at once has not
    /// cancelled anything; the rest of the body is only read to keep the connection.
    fn completed(&mut self) {
        if let Some(attempt) = self.slot.take_attempt() {
            attempt.complete(self.flow.progress.output.usage, self.flow.step());
            self.flow.end(Outcome::Completed, 200, None);
            self.arm();
        }
    }

    /// The engine's body is over, properly or not.
    fn ended(&mut self, error: Option<BodyError>) -> Option<Bytes> {
        if self.watch.is_complete() {
            self.completed();
            self.over = true;
            // A complete stream whose end mark got lost is given one: clients wait for it.
            return (!self.watch.saw_done()).then(|| self.watch.last_words());
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

    /// The client is back after all, but its request is not.
    fn swept(&mut self) -> Option<Bytes> {
        self.over = true;
        if self.watch.is_complete() {
            return None;
        }
        if self.slot.was_shutdown() {
            let message = "this gateway stopped before the stream was complete; repeat against another one";
            let failure = failure(Outcome::Cancelled, ErrorCode::ShuttingDown, message.to_owned());
            return Some(self.error_event(Bytes::new(), failure));
        }
        let message = "the client took nothing for longer than `streams.client_stall_timeout_ms`, or past its deadline";
        let failure = failure(Outcome::Cancelled, ErrorCode::DeadlineExceeded, message.to_owned());
        Some(self.error_event(Bytes::new(), failure))
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
        if let Some(attempt) = self.slot.take_attempt() {
            attempt.end(end, Some(failure.error.message.clone()));
        }
        self.error_event(before, failure)
    }

    /// Ends the stream with an error event and stops the engine.
    fn stop(&mut self, end: AttemptEnd, failure: Failure) -> Bytes {
        if let Some(attempt) = self.slot.take_attempt() {
            attempt.end_and_abort(end, Some(failure.error.message.clone()));
        }
        self.error_event(Bytes::new(), failure)
    }

    fn error_event(&mut self, before: Bytes, failure: Failure) -> Bytes {
        self.over = true;
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

/// A large non-streaming answer on its way, unchecked. The attempt is dropped before the flow.
struct Passing {
    attempt: Option<Box<Attempt>>,
    exchange: Exchange,
    flow: Box<Flow>,
}

/// Passes a large answer on. It has the same limits as any other; when it breaks off, the connection is reset.
pub fn pass(
    mut flow: Box<Flow>,
    attempt: Box<Attempt>,
    exchange: Exchange,
) -> impl Stream<Item = Result<Bytes, Cut>> + Send {
    flow.forget_body();
    flow.progress.output.piece(std::time::Instant::now());
    let state = Box::new(Passing { attempt: Some(attempt), exchange, flow });
    futures_util::stream::unfold(state, |mut state| async move {
        let Passing { attempt, exchange, flow } = &mut *state;
        attempt.as_ref()?.moved(flow.shared.now());
        let until = flow.deadline.min(Instant::now() + flow.idle_timeout());
        let (end, outcome, code) = match tokio::time::timeout_at(until, exchange.frame()).await {
            Ok(Some(Ok(bytes))) => return Some((Ok(bytes), state)),
            Ok(None) => {
                attempt.take()?.complete(None, None);
                flow.end(Outcome::Completed, 200, None);
                return None;
            }
            Ok(Some(Err(_))) => (AttemptEnd::Failed, Outcome::Truncated, ErrorCode::EngineTruncated),
            Err(_) if until == flow.deadline => {
                (AttemptEnd::Cancelled, Outcome::DeadlineExceeded, ErrorCode::DeadlineExceeded)
            }
            Err(_) => (AttemptEnd::Stalled, Outcome::Stalled, ErrorCode::EngineStalled),
        };
        attempt.take()?.end_and_abort(end, None);
        flow.end(outcome, 200, Some(code));
        Some((Err(Cut), state))
    })
}
