//! From an accepted request to the first thing worth sending: choose, send, wait, and try elsewhere while that is safe.
//!
//! Rules for a second attempt, in this order:
//! 1. Never once the client has been sent any part of an answer.
//! 2. A pooled connection that had been closed is replaced at once, at the same engine. If the request may have been
//!    read there, the engine is told to abort that try first and the new one has a new id: nothing runs twice.
//! 3. Work is moved off an engine that was taken out while it had produced nothing, and off one that cannot be
//!    connected to. Neither costs anybody anything, so neither touches the budget.
//! 4. Any other failure takes from the retry budget (`retry.budget_fraction`).
//! 5. A refusal (429, 503) is only tried elsewhere if somebody else has not just refused too: when all refuse, one attempt.

use crate::admit::admit;
use crate::api_error::ApiError;
use crate::attempt::{Attempt, new_rid};
use crate::cache_plan::Whose;
use crate::first_event::{StreamStart, first_event};
use crate::fleet::EngineHandle;
use crate::flow::{Failure, Flow};
use crate::metrics::{ModelLabel, WhyLabel};
use crate::no_engine::{no_capacity, refuse};
use crate::outbound::outbound;
use crate::owned::{Ownership, TokenRoute, shaper};
use crate::record::AttemptRecord;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use plimsoll_core::{EngineKind, ErrorCode, LegRole, Nanos, Outcome};
use plimsoll_load::{Ask, AttemptEnd, RouteSet};
use plimsoll_pools::chunk::{StreamDialect, inspect_error_body};
use plimsoll_pools::http::{Exchange, SendError};
use plimsoll_protocol::request::Api;
use std::future::Future;
use std::time::Duration;

/// Largest error body of an engine that is read, in bytes.
const ERROR_BODY_BYTES: usize = 64 << 10;

/// What there is to send.
pub enum Begun {
    /// A checked, complete answer (a generation, or the engine's own 4xx).
    Whole { status: StatusCode, headers: HeaderMap, body: Bytes },
    /// An answer too large to check, to be passed on as it comes.
    Unchecked(Box<(Box<Attempt>, Exchange)>),
    /// A stream whose first output is here.
    Stream(Box<StreamStart>),
}

/// Why one attempt gave nothing.
pub(crate) struct Miss {
    pub end: AttemptEnd,
    /// Told to the client if nothing else works.
    pub failure: Failure,
    pub again: Again,
    /// The engine may still be at it.
    pub abort: bool,
}

/// May it be tried elsewhere?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    No,
    /// Costs nobody anything.
    Free(&'static str),
    /// Takes from the retry budget.
    Budget(&'static str),
    /// Only if not everybody refuses.
    IfRoom,
}

/// Runs attempts until there is something to send or nothing more to try.
pub async fn begin(mut flow: Box<Flow>) -> (Box<Flow>, Result<Begun, ApiError>) {
    if let Err(failure) = admit(&mut flow).await {
        let error = flow.fail(failure);
        return (flow, Err(error));
    }
    let mut last: Option<Failure> = None;
    loop {
        let attempt = match place(&mut flow) {
            Ok(attempt) => attempt,
            Err(failure) => {
                // What an engine said tells more than that nobody else is left.
                let error = flow.fail(last.unwrap_or(failure));
                return (flow, Err(error));
            }
        };
        let engine = attempt.engine.id;
        match one_attempt(&mut flow, attempt).await {
            Ok(begun) => return (flow, Ok(begun)),
            Err((attempt, miss)) => {
                let why = Some(miss.failure.error.message.clone());
                if let Some(record) = flow.record.lock().attempts.last_mut() {
                    record.error = Some(miss.failure.error.code.to_string());
                }
                if miss.abort {
                    attempt.end_and_abort(miss.end, why);
                } else {
                    attempt.end(miss.end, why);
                }
                flow.progress.tried.push(engine);
                // Something may have run: nobody is told that nothing has.
                let told = match last.take() {
                    Some(before) if miss.end == AttemptEnd::ConnectFailed => before,
                    _ => miss.failure,
                };
                if !may_repeat(&flow, miss.again) {
                    let error = flow.fail(told);
                    return (flow, Err(error));
                }
                last = Some(told);
            }
        }
    }
}

fn may_repeat(flow: &Flow, again: Again) -> bool {
    let metrics = &flow.shared.metrics;
    let denied = |why| {
        metrics.retries_denied.get_or_create(&WhyLabel { why }).inc();
        false
    };
    let why = match again {
        Again::No => return false,
        _ if u32::from(flow.progress.attempts) >= flow.settings.retry.max_attempts => return denied("max_attempts"),
        Again::Free(why) => why,
        Again::IfRoom => {
            let (model, now) = (flow.model.as_deref(), flow.shared.now());
            if flow.shared.with_scheduler(|s| s.all_refusing(model, now, &flow.progress.tried)) {
                return denied("all_refusing");
            }
            if !flow.shared.retry_budget.lock().try_retry() {
                return denied("budget");
            }
            "refused"
        }
        Again::Budget(why) => {
            if !flow.shared.retry_budget.lock().try_retry() {
                return denied("budget");
            }
            why
        }
    };
    metrics.retries.get_or_create(&WhyLabel { why }).inc();
    true
}

/// Chooses an engine and charges the ledger, in one critical section.
fn place(flow: &mut Flow) -> Result<Box<Attempt>, Failure> {
    let kinds: Option<&[EngineKind]> = match flow.route.api {
        Api::Generate => Some(&[EngineKind::Sglang]),
        _ => None,
    };
    let clock = std::time::Instant::now();
    if let Some(plan) = &mut flow.cache
        && (flow.progress.attempts > 0 || plan.is_stale(&flow.shared))
    {
        plan.look(&flow.shared);
    }
    let ask = Ask {
        request: flow.id,
        attempt: flow.progress.attempts,
        leg: 0,
        role: LegRole::Unified,
        model: flow.model.as_deref(),
        kinds,
        route: match flow.route.api {
            Api::Chat => RouteSet::CHAT,
            Api::Completions => RouteSet::COMPLETIONS,
            Api::Embeddings => RouteSet::EMBEDDINGS,
            Api::Generate => RouteSet::GENERATE,
        },
        streams: flow.facts.stream,
        charge: flow.charge,
        hits: flow.cache.as_ref().map_or(&[], |plan| plan.hits()),
        exclude: &flow.progress.tried,
    };
    let placed = flow.shared.with_scheduler(|s| s.place(flow.shared.now(), &ask));
    let took = clock.elapsed();
    flow.shared.metrics.placement_seconds.observe(took.as_secs_f64());
    let mut placed = placed.map_err(|error| refuse(flow, &error))?;
    let Some(engine) = flow.shared.fleet.get(placed.target.instance) else {
        // Removed between the choice and here.
        flow.shared.settle(placed.ticket, AttemptEnd::Cancelled);
        return Err(no_capacity(flow, "the chosen engine has just been removed"));
    };
    if let Some(permit) = &mut flow.permit {
        permit.begun(placed.prefill_until);
    }
    flow.progress.attempts += 1;
    if let Some(plan) = &mut flow.cache {
        let tenant = flow.tenant.clone();
        let whose = Whose { request: flow.id, attempt: flow.progress.attempts - 1, class: flow.class, tenant };
        plan.placed(&flow.shared, placed.target, whose);
        let model = flow.shared.model_label(flow.model.as_deref());
        flow.shared.metrics.cache_predicted_tokens.get_or_create(&ModelLabel { model }).inc_by(placed.hit_tokens);
    }
    let rid = new_rid();
    let token_route = token_route(flow, &engine);
    let index = {
        let mut record = flow.record.lock();
        record.attempts.push(AttemptRecord {
            engine: engine.id,
            engine_url: engine.endpoint().url().to_owned(),
            rank: placed.target.rank,
            policy_reason: placed.reason.to_string(),
            expected_wait_ms: placed.expected_wait.map(Nanos::as_millis_f64),
            hit_tokens: flow.cache.is_some().then_some(placed.hit_tokens),
            candidates: std::mem::take(&mut placed.candidates),
            basis: placed.basis,
            considered: placed.considered,
            panic: placed.panic,
            half_open: placed.half_open,
            decided_ms: flow.started.elapsed().as_secs_f64() * 1e3,
            decision_us: took.as_secs_f64() * 1e6,
            rid: rid.clone(),
            token_route: token_route.map(TokenRoute::path),
            end: None,
            error: None,
        });
        record.attempts.len() - 1
    };
    let children = if flow.facts.batch { flow.facts.sequences } else { 1 };
    let mut attempt = Attempt::new(&flow.shared, engine, &placed, flow.record.clone(), index, rid, children);
    attempt.token_route = token_route;
    attempt.lane = flow.permit.as_ref().map(|permit| permit.lane().clone());
    Ok(Box::new(attempt))
}

/// How the engine takes the request's token ids, where the gateway may own them; counted.
fn token_route(flow: &Flow, engine: &EngineHandle) -> Option<TokenRoute> {
    let route = match &flow.ownership {
        Ownership::Off => return None,
        Ownership::Engine(why) => Err(*why),
        Ownership::Gateway(owned) => owned.route(engine),
    };
    let why = route.map_or_else(|why| why, |_| "owned");
    flow.shared.metrics.token_mode.get_or_create(&WhyLabel { why }).inc();
    route.ok()
}

/// One try on one engine, up to its first output.
async fn one_attempt(flow: &mut Flow, mut attempt: Box<Attempt>) -> Result<Begun, (Box<Attempt>, Miss)> {
    let exchange = match head(flow, &mut attempt).await {
        Ok(exchange) => exchange,
        Err(miss) => return Err((attempt, miss)),
    };
    let status = exchange.status;
    if !status.is_success() {
        return refused_by_engine(flow, attempt, exchange).await;
    }
    let is_stream = exchange
        .headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| v.trim_start().starts_with("text/event-stream"));
    if flow.facts.stream && is_stream {
        return first_event(flow, attempt, exchange).await.map(|start| Begun::Stream(Box::new(start)));
    }
    whole(flow, attempt, exchange).await
}

/// Sends and waits for the head, replacing a stale pooled connection once.
async fn head(flow: &mut Flow, attempt: &mut Attempt) -> Result<Exchange, Miss> {
    let (mut fresh, mut maybe_ran) = (false, false);
    loop {
        let request = outbound(flow, attempt);
        attempt.mark_sent();
        let endpoint = attempt.engine.endpoint();
        let sending = async { if fresh { endpoint.send_fresh(request).await } else { endpoint.send(request).await } };
        // Where every engine is out there is no ejection to wait for: the class's patience bounds the wait.
        let idle = attempt.is_panic().then(|| flow.idle_timeout());
        match guarded(flow, attempt, idle, sending).await? {
            Ok(exchange) => return Ok(exchange),
            Err(SendError::Stale { sent }) if !fresh => {
                if sent {
                    // It may have been read: stop it by its old id before it runs under a new one.
                    attempt.replace_rid().await;
                    maybe_ran = true;
                }
                fresh = true;
            }
            Err(error) => {
                let mut miss = send_miss(&error);
                if maybe_ran {
                    // The engine may have died of this very request: a next one is not free.
                    miss.again = Again::Budget("broken");
                    miss.failure.error = ApiError::new(ErrorCode::EngineFailed, error.to_string());
                }
                return Err(miss);
            }
        }
    }
}

fn send_miss(error: &SendError) -> Miss {
    let message = error.to_string();
    let failed = |code, end, again| Miss {
        end,
        failure: Failure { outcome: Outcome::EngineFailed, error: ApiError::new(code, message.clone()) },
        again,
        abort: false,
    };
    match error {
        // Nothing was begun anywhere: what is left of it is that there is no engine.
        SendError::Connect(_) => Miss {
            end: AttemptEnd::ConnectFailed,
            failure: Failure {
                outcome: Outcome::EngineFailed,
                error: ApiError::new(ErrorCode::NoCapacity, message).retry_after(1),
            },
            again: Again::Free("connect"),
            abort: false,
        },
        SendError::Exhausted(_) => Miss {
            end: AttemptEnd::Cancelled,
            failure: Failure {
                outcome: Outcome::Refused,
                error: ApiError::new(ErrorCode::NoCapacity, message).retry_after(1),
            },
            again: Again::No,
            abort: false,
        },
        SendError::Stale { .. } | SendError::Broken(_) => {
            failed(ErrorCode::EngineFailed, AttemptEnd::Failed, Again::Budget("broken"))
        }
        SendError::BadAnswer(_) => {
            failed(ErrorCode::EngineBadResponse, AttemptEnd::Failed, Again::Budget("bad_answer"))
        }
    }
}

/// Awaits `work` unless the engine is taken out, the request's deadline passes, or `idle` does.
pub(crate) async fn guarded<T>(
    flow: &Flow,
    attempt: &mut Attempt,
    idle: Option<Duration>,
    work: impl Future<Output = T>,
) -> Result<T, Miss> {
    let idle_at = idle.map(|idle| tokio::time::Instant::now() + idle);
    let until = idle_at.map_or(flow.deadline, |at| at.min(flow.deadline));
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = attempt.ejected() => Err(Miss {
            end: AttemptEnd::Cancelled,
            failure: Failure {
                outcome: Outcome::EngineFailed,
                error: ApiError::new(ErrorCode::EngineFailed, "the engine was taken out before it produced anything"),
            },
            again: Again::Free("evacuated"),
            abort: true,
        }),
        () = tokio::time::sleep_until(until) => Err(if until == flow.deadline { deadline_miss() } else { stall_miss() }),
    }
}

fn deadline_miss() -> Miss {
    Miss {
        end: AttemptEnd::Cancelled,
        failure: Failure {
            outcome: Outcome::DeadlineExceeded,
            error: ApiError::new(
                ErrorCode::DeadlineExceeded,
                "the request's deadline passed before the engine produced anything",
            ),
        },
        again: Again::No,
        abort: true,
    }
}

fn stall_miss() -> Miss {
    Miss {
        end: AttemptEnd::Stalled,
        failure: Failure {
            outcome: Outcome::Stalled,
            error: ApiError::new(ErrorCode::EngineStalled, "the engine sent nothing within the idle time-out"),
        },
        again: Again::No,
        abort: true,
    }
}

/// The engine answered with an error status.
async fn refused_by_engine(
    flow: &mut Flow,
    mut attempt: Box<Attempt>,
    mut exchange: Exchange,
) -> Result<Begun, (Box<Attempt>, Miss)> {
    let status = exchange.status;
    let headers = exchange.headers.clone();
    let body =
        match guarded(flow, &mut attempt, Some(Duration::from_secs(10)), exchange.collect(ERROR_BODY_BYTES)).await {
            Ok(collected) => collected.unwrap_or_default(),
            Err(miss) => return Err((attempt, miss)),
        };
    let said = inspect_error_body(&body);
    if matches!(status.as_u16(), 429 | 503) {
        let retry_after_s = retry_after(&headers);
        let seconds = retry_after_s.unwrap_or(flow.settings.retry.retry_after_s);
        let message = format!("the engine refused for lack of room: {}", bounded(&said.message));
        let miss = Miss {
            end: AttemptEnd::Refused { retry_after: retry_after_s.map(Nanos::from_secs) },
            failure: Failure {
                outcome: Outcome::EngineOverloaded,
                error: ApiError::new(ErrorCode::EngineOverloaded, message).retry_after(seconds),
            },
            again: Again::IfRoom,
            abort: false,
        };
        return Err((attempt, miss));
    }
    let ours_to_prove = attempt.engine.has_key() || flow.shared.keys.load().required();
    if matches!(status.as_u16(), 401 | 403) && ours_to_prove {
        let message = format!("the engine refuses this gateway's key ({}): set `engines.api_key`", status.as_u16());
        let miss = failed(ErrorCode::EngineFailed, message, Again::Budget("key"));
        return Err((attempt, Miss { end: AttemptEnd::ClientFault, ..miss }));
    }
    if status.is_client_error() && !matches!(body.trim_ascii_start().first(), Some(b'{' | b'[')) {
        let message = format!("the engine answered {} with something that is not JSON", status.as_u16());
        let miss = failed(ErrorCode::EngineBadResponse, message, Again::No);
        return Err((attempt, Miss { end: AttemptEnd::ClientFault, ..miss }));
    }
    if status.is_client_error() {
        attempt.end(AttemptEnd::ClientFault, Some(format!("engine answered {status}")));
        flow.end(Outcome::EngineRejected, status.as_u16(), None);
        return Ok(Begun::Whole { status, headers, body });
    }
    let (code, word) = if status.is_server_error() {
        (ErrorCode::EngineFailed, "status")
    } else {
        (ErrorCode::EngineBadResponse, "bad_answer")
    };
    let message = format!("the engine answered {}: {}", status.as_u16(), bounded(&said.message));
    let failure = Failure { outcome: Outcome::EngineFailed, error: ApiError::new(code, message) };
    Err((attempt, Miss { end: AttemptEnd::Failed, failure, again: Again::Budget(word), abort: false }))
}

/// Seconds of an engine's `Retry-After`, if it is a number; capped at an hour.
fn retry_after(headers: &HeaderMap) -> Option<u64> {
    headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim().parse::<u64>().ok().map(|s| s.clamp(1, 3600))
}

/// An engine's words inside one of our sentences.
pub(crate) fn bounded(message: &str) -> String {
    let mut text: String = message.chars().take(500).collect();
    if text.is_empty() {
        text.push_str("no message");
    }
    text
}

/// A non-streaming answer: read, checked, then sent.
async fn whole(
    flow: &mut Flow,
    mut attempt: Box<Attempt>,
    mut exchange: Exchange,
) -> Result<Begun, (Box<Attempt>, Miss)> {
    let limit = flow.settings.limits.answer_bytes;
    let announced =
        exchange.headers.get(http::header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > limit) && attempt.token_route.is_none() {
        attempt.first_token();
        return Ok(Begun::Unchecked(Box::new((attempt, exchange))));
    }
    // The head of a whole answer comes with the answer: what follows it may not stop for longer than a stream may.
    let idle = flow.idle_timeout();
    let collected = match guarded(flow, &mut attempt, Some(idle), exchange.collect(limit)).await {
        Ok(collected) => collected,
        Err(miss) => return Err((attempt, miss)),
    };
    let body = match collected {
        Ok(body) => body,
        Err(Some(error)) => {
            return Err((attempt, failed(ErrorCode::EngineTruncated, error.to_string(), Again::Budget("truncated"))));
        }
        Err(None) => {
            let message = format!("the engine's answer is larger than {limit} bytes (`limits.answer_bytes`)");
            return Err((attempt, Miss { abort: true, ..failed(ErrorCode::EngineBadResponse, message, Again::No) }));
        }
    };
    let dialect = dialect(flow.route.api, &attempt);
    let facts = match dialect.inspect_answer(&body) {
        Ok(facts) => facts,
        Err(error) => {
            return Err((
                attempt,
                failed(ErrorCode::EngineBadResponse, error.to_string(), Again::Budget("bad_answer")),
            ));
        }
    };
    if let Some(error) = facts.error {
        let miss = upstream_error_miss(flow, error.status, &error.message, false);
        return Err((attempt, miss));
    }
    if let Some(abort) = facts.abort {
        let miss = upstream_error_miss(flow, abort.status_code, &abort.message, true);
        return Err((attempt, miss));
    }
    let body = match shaper(flow, attempt.token_route).map(|mut shaper| shaper.answer(&body)) {
        None => body,
        Some(Ok(body)) => body,
        Some(Err(why)) => {
            return Err((attempt, failed(ErrorCode::EngineBadResponse, why, Again::Budget("bad_answer"))));
        }
    };
    flow.progress.output.piece(std::time::Instant::now());
    flow.progress.output.usage = facts.usage;
    // No first token is noted: when it came inside this answer is not known, and would be taken for prefill time.
    attempt.complete(facts.usage, None);
    flow.end(Outcome::Completed, exchange.status.as_u16(), None);
    Ok(Begun::Whole { status: exchange.status, headers: exchange.headers.clone(), body })
}

pub(crate) fn dialect(api: Api, attempt: &Attempt) -> StreamDialect {
    match (attempt.token_route, api) {
        (Some(route), _) => route.dialect(),
        (None, Api::Generate) => StreamDialect::SglangNative,
        (None, _) => StreamDialect::Openai,
    }
}

fn failed(code: ErrorCode, message: String, again: Again) -> Miss {
    let failure = Failure { outcome: Outcome::EngineFailed, error: ApiError::new(code, message) };
    Miss { end: AttemptEnd::Failed, failure, again, abort: false }
}

/// An error or abort that an engine put where an answer was due.
pub(crate) fn upstream_error_miss(flow: &Flow, status: Option<u16>, message: &str, aborted: bool) -> Miss {
    let message = bounded(message);
    match status {
        Some(429 | 503) => Miss {
            end: AttemptEnd::Refused { retry_after: None },
            failure: Failure {
                outcome: Outcome::EngineOverloaded,
                error: ApiError::new(
                    ErrorCode::EngineOverloaded,
                    format!("the engine refused for lack of room: {message}"),
                )
                .retry_after(flow.settings.retry.retry_after_s),
            },
            again: Again::IfRoom,
            abort: false,
        },
        Some(400..=499) => Miss {
            end: AttemptEnd::ClientFault,
            failure: Failure {
                outcome: Outcome::EngineRejected,
                error: ApiError::new(ErrorCode::InvalidRequest, message),
            },
            again: Again::No,
            abort: false,
        },
        _ if aborted => Miss {
            end: AttemptEnd::Failed,
            failure: Failure {
                outcome: Outcome::Aborted,
                error: ApiError::new(ErrorCode::EngineAborted, format!("the engine aborted the request: {message}")),
            },
            again: Again::Budget("aborted"),
            abort: false,
        },
        _ => failed(ErrorCode::EngineFailed, format!("the engine failed: {message}"), Again::Budget("error")),
    }
}
