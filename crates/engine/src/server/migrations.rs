//! The verbs of a migration over HTTP: `/plimsoll/v1/migrations/{id}/{verb}`.
//!
//! Reports are made to be passed on: the answer to `offer` is the body of `reserve`, that of `reserve` the body of
//! `start`, that of `freeze` or `commit` the body of `verify` and `take_over`. Every verb may be repeated. A state that
//! nothing follows ends by itself, see [`crate::migration`].

use super::State;
use super::errors::ApiError;
use super::fields::Fields;
use super::generate;
use crate::migration::desk::{Reply, Reserve, Verb};
use crate::migration::notes::{digest_of, fence_of};
use crate::migration::protocol::Fence;
use crate::migration::protocol::source::When;
use crate::migration::protocol::target::Warrant;
use crate::migration::report::{Endpoint, Seal, VerbError};
use axum::Json;
use axum::http::HeaderMap;
use axum::http::header::HOST;
use axum::response::{IntoResponse, Response};
use plimsoll_cache::Digest;
use plimsoll_core::Nanos;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Longest that a state or a wait may be asked to last.
const MOST_MS: usize = 600_000;
/// How long a verb waits for what it sets off, unless it says otherwise.
const WAIT_MS: u64 = 2_000;

pub(crate) async fn list(state: Arc<State>) -> Result<Response, ApiError> {
    obey(state, None, Verb::List, Options { wait: Duration::ZERO, incremental: false }).await
}

pub(crate) async fn look(state: Arc<State>, id: String) -> Result<Response, ApiError> {
    obey(state, Some(id), Verb::Look, Options { wait: Duration::ZERO, incremental: false }).await
}

pub(crate) async fn verb(
    state: Arc<State>,
    id: String,
    name: String,
    headers: HeaderMap,
    body: &[u8],
) -> Result<Response, ApiError> {
    enabled(&state)?;
    let is_empty = body.iter().all(u8::is_ascii_whitespace);
    let fields = Fields::parse(if is_empty { b"{}" } else { body })?;
    let verb = match name.as_str() {
        "offer" => Verb::Offer {
            rid: rid(&fields)?,
            ship: span(&fields, "ship_ms", 60_000)?,
            freeze: span(&fields, "freeze_ms", 5_000)?,
            commit: span(&fields, "commit_ms", 10_000)?,
        },
        "reserve" => Verb::Reserve(Box::new(reserve(&state, &fields, &headers)?)),
        "start" => Verb::Start {
            to: read::<Endpoint>(&fields, "endpoint")?,
            first_page: whole(&fields, "have_pages")?.unwrap_or(0),
        },
        "freeze" => Verb::Freeze { delta: fields.flag_or("delta", true)?, commit: when(&fields)? },
        "delta" => Verb::Delta,
        "commit" => Verb::Commit,
        "release" => Verb::Release,
        "resume" => Verb::Resume { fence: fence(&fields)? },
        "verify" => Verb::Verify(Box::new(read::<Seal>(&fields, "seal")?)),
        "take_over" => Verb::TakeOver {
            warrant: warrant(&fields)?,
            expected: fields.get("seal").map(|_| read::<Seal>(&fields, "seal").map(Box::new)).transpose()?,
            from_token: whole(&fields, "from_token")?,
        },
        "follow" => Verb::Follow { from_token: whole(&fields, "from_token")? },
        "abort" => Verb::Abort,
        _ => return Err(ApiError::new(404, "not_found", "a migration has no such verb")),
    };
    let incremental = fields.flag_or("incremental", state.config.incremental_streaming)?;
    let wait = Duration::from_nanos(span(&fields, "wait_ms", WAIT_MS)?.0);
    obey(state, Some(id), verb, Options { wait, incremental }).await
}

struct Options {
    wait: Duration,
    incremental: bool,
}

async fn obey(state: Arc<State>, id: Option<String>, verb: Verb, options: Options) -> Result<Response, ApiError> {
    enabled(&state)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if id.as_ref().is_some_and(|id| id.is_empty() || id.len() > 128 || !id.bytes().all(fits)) {
        return Err(ApiError::new(400, "invalid_request", "a migration's id is 1 to 128 of a-z A-Z 0-9 - _ ."));
    }
    match state.engine.handle().migrate(id.as_deref().unwrap_or_default(), verb, options.wait).await? {
        Reply::Report(report) => Ok(Json(report).into_response()),
        Reply::List(reports) => Ok(Json(json!({"migrations": reports})).into_response()),
        Reply::Reader(attached) => Ok(generate::go_on(&state, *attached, options.incremental)),
    }
}

fn enabled(state: &State) -> Result<(), ApiError> {
    match state.carrier {
        Some(_) => Ok(()),
        None => Err(ApiError::new(404, "not_found", "migration is off: start the engine with --migration-listen")),
    }
}

fn reserve(state: &State, fields: &Fields, headers: &HeaderMap) -> Result<Reserve, ApiError> {
    if !state.is_serving() {
        return Err(ApiError::new(503, "shutting_down", "The engine is shutting down."));
    }
    let chain = match fields.get("chain") {
        None => Vec::new(),
        Some(Value::Array(list)) => list.iter().map(digest).collect::<Result<_, _>>()?,
        Some(_) => return Err(ApiError::field("chain", "expected a list of digests")),
    };
    let count = |name: &str| Ok::<_, ApiError>(whole(fields, name)?.unwrap_or(0));
    let (host, port) = address(state, headers);
    Ok(Reserve {
        rid: rid(fields)?,
        tokens: fields.count("prompt_tokens")?.ok_or_else(|| ApiError::field("prompt_tokens", "is missing"))?
            + count("output_tokens")?,
        growth_tokens: whole(fields, "growth_tokens")?.unwrap_or(256),
        most_tokens: whole(fields, "most_tokens")?,
        chain,
        page_tokens: fields.count("page_tokens")?.ok_or_else(|| ApiError::field("page_tokens", "is missing"))?,
        rank: whole(fields, "target_dp_rank")?,
        host,
        port,
        reserve: span(fields, "expires_ms", 10_000)?,
        ready: span(fields, "ready_ms", 10_000)?,
        linger: Duration::from_nanos(span(fields, "linger_ms", 1_000)?.0),
    })
}

/// Where a source finds this engine: at the address it listens on, or if that is all of them, where the driver found it.
fn address(state: &State, headers: &HeaderMap) -> (String, u16) {
    let Some(address) = state.carrier.as_ref().map(crate::migration::carrier::Carrier::address) else {
        return (String::new(), 0);
    };
    let asked = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = match asked.and_then(|host| host.parse::<axum::http::uri::Authority>().ok()) {
        Some(asked) if address.ip().is_unspecified() => asked.host().trim_matches(['[', ']']).to_owned(),
        _ => address.ip().to_string(),
    };
    (host, address.port())
}

fn rid(fields: &Fields) -> Result<String, ApiError> {
    match fields.text("rid")? {
        Some(rid) if !rid.is_empty() && rid.len() <= 256 => Ok(rid.to_owned()),
        _ => Err(ApiError::field("rid", "name the request, in 1 to 256 bytes")),
    }
}

fn digest(value: &Value) -> Result<Digest, ApiError> {
    value.as_str().and_then(digest_of).ok_or_else(|| ApiError::field("chain", "expected 64 hexadecimal digits each"))
}

fn fence(fields: &Fields) -> Result<Option<Fence>, ApiError> {
    let read = |text: &str| fence_of(text).ok_or_else(|| ApiError::field("fence", "expected 32 hexadecimal digits"));
    fields.text("fence")?.map(read).transpose()
}

fn warrant(fields: &Fields) -> Result<Warrant, ApiError> {
    match (fence(fields)?, fields.flag("source_gone")?) {
        (Some(fence), _) => Ok(Warrant::Fence(fence)),
        (None, true) => Ok(Warrant::SourceGone),
        (None, false) => Err(ApiError::field("fence", "send what the source gave out at its commit")),
    }
}

fn when(fields: &Fields) -> Result<When, ApiError> {
    match fields.text("commit")? {
        None | Some("asked") => Ok(When::Asked),
        Some("confirmed") => Ok(When::Confirmed),
        Some("sent") => Ok(When::Sent),
        Some(other) => Err(ApiError::field("commit", format!("{other:?} is none of asked, confirmed, sent"))),
    }
}

/// A whole number from 0 on.
fn whole(fields: &Fields, name: &str) -> Result<Option<usize>, ApiError> {
    let read = |value: i64| usize::try_from(value).map_err(|_| ApiError::field(name, format!("{value} is below 0")));
    let number = fields.integer(name)?.map(read).transpose()?;
    match number {
        Some(number) if number > 1 << 32 => Err(ApiError::field(name, format!("{number} is too large"))),
        number => Ok(number),
    }
}

fn span(fields: &Fields, name: &str, default_ms: u64) -> Result<Nanos, ApiError> {
    match whole(fields, name)? {
        None => Ok(Nanos::from_millis(default_ms)),
        Some(ms) if ms <= MOST_MS => Ok(Nanos::from_millis(ms as u64)),
        Some(ms) => Err(ApiError::field(name, format!("{ms} is not between 0 and {MOST_MS}"))),
    }
}

fn read<T: serde::de::DeserializeOwned>(fields: &Fields, name: &str) -> Result<T, ApiError> {
    let value = fields.get(name).ok_or_else(|| ApiError::field(name, "is missing"))?;
    serde_json::from_value(value.clone()).map_err(|error| ApiError::field(name, error))
}

impl From<VerbError> for ApiError {
    fn from(error: VerbError) -> Self {
        let (status, code) = match &error {
            VerbError::Unknown => (404, "unknown_migration"),
            VerbError::NoSuchRequest => (404, "no_such_request"),
            VerbError::WrongState { .. } => (409, "wrong_state"),
            VerbError::Over { .. } => (410, "migration_over"),
            VerbError::BadFence => (409, "bad_fence"),
            VerbError::TakenOver => (409, "taken_over"),
            VerbError::CutOff => (409, "cut_off"),
            VerbError::Conflict(_) => (409, "migration_conflict"),
            VerbError::Moving(_) => (409, "already_migrating"),
            VerbError::RidInFlight => (409, "rid_in_flight"),
            VerbError::NotMovable(_) => (409, "not_movable"),
            VerbError::Mismatch { .. } => (409, "seal_mismatch"),
            VerbError::Incompatible { .. } => (409, "incompatible"),
            VerbError::NoRoom(_) => (503, "no_room"),
            VerbError::TooMany => (503, "too_many_migrations"),
            VerbError::NoAnswer => (503, "no_answer"),
        };
        ApiError::new(status, code, error.to_string())
    }
}
