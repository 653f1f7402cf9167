//! One run for a request that is sent twice.
//!
//! A client that lost its connection, or lost patience, sends its request again while the first may still run. Under
//! overload that doubles the load exactly where it is too high already. A client that names its request
//! (`Idempotency-Key`) lets the gateway see that: the second attaches to the first and gets the same answer.
//!
//! Only what is in flight is shared; a finished answer is not kept, so the table holds one entry per running request with a key, and
//! nothing of it outlives the request. Keys are a tenant's own. What is not shared:
//! - *another body under the same key* is a mistake of the client: 422;
//! - *streams*: two clients read at two paces, and keeping what the slower one has not read is memory without bound. 409, with
//!   `Retry-After`; once the first stream has ended or its client has left, the key is free;
//! - *a first whose client left, or whose own deadline passed*: its end says nothing about the others, so the next takes its place and runs.

use crate::api_error::ApiError;
use crate::body::GatewayBody;
use crate::headers::IDEMPOTENCY_KEY;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use parking_lot::Mutex;
use plimsoll_core::ErrorCode;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tokio::sync::watch;

#[cfg(test)]
mod tests;

/// Most keys in flight. Further requests run as if they had none.
const MOST_KEYS: usize = 65_536;
/// Longest key, in bytes.
const KEY_BYTES: usize = 255;
/// Marks an answer that another request got too.
const ATTACHED: HeaderName = HeaderName::from_static("x-plimsoll-attached");

/// What a request is, to tell it from another under the same key.
pub(crate) type Digest = [u8; 32];

/// An answer that can be given twice.
#[derive(Clone, Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

#[derive(Clone, Debug)]
enum News {
    Running,
    Answered(Box<Answer>),
    /// It cannot be given twice.
    Unshared,
}

type Name = (Arc<str>, Box<[u8]>);

#[derive(Debug)]
struct Running {
    digest: Digest,
    stream: bool,
    news: watch::Receiver<News>,
}

/// Named requests in flight.
#[derive(Clone, Debug, Default)]
pub struct Idempotency {
    running: Arc<Mutex<HashMap<Name, Running>>>,
}

/// What became of a named request.
#[derive(Debug)]
pub(crate) enum Claim {
    /// It is the first, or there is no room to know: run it. Keep the guard for as long as it runs.
    Run(Option<Guard>),
    /// Another one runs: wait for it.
    Attach(Waiting),
}

impl Idempotency {
    /// Requests with a key in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.running.lock().len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// # Errors
    /// `idempotency_mismatch` for another request under the same key, `idempotency_in_flight` where the first one's answer
    /// is a stream.
    pub(crate) fn claim(&self, tenant: &Arc<str>, key: &[u8], digest: Digest, stream: bool) -> Result<Claim, ApiError> {
        let name = (tenant.clone(), Box::from(key));
        let mut running = self.running.lock();
        let full = running.len() >= MOST_KEYS;
        match running.entry(name) {
            Entry::Occupied(first) if first.get().digest != digest => Err(ApiError::new(
                ErrorCode::IdempotencyMismatch,
                "another request runs under this `Idempotency-Key`; use a new key for a new request",
            )),
            Entry::Occupied(first) if first.get().stream => Err(in_flight()),
            Entry::Occupied(first) => Ok(Claim::Attach(Waiting { news: first.get().news.clone() })),
            Entry::Vacant(_) if full => Ok(Claim::Run(None)),
            Entry::Vacant(place) => {
                let (told, news) = watch::channel(News::Running);
                let name = place.key().clone();
                place.insert(Running { digest, stream, news });
                Ok(Claim::Run(Some(Guard { table: self.clone(), name, told })))
            }
        }
    }
}

fn in_flight() -> ApiError {
    let message = "the request with this `Idempotency-Key` is still being answered, and its answer cannot be shared; repeat when \
                   it has ended";
    ApiError::new(ErrorCode::IdempotencyInFlight, message).retry_after(1)
}

/// Held by the request that runs. Dropped without an answer, it lets the next one run.
#[derive(Debug)]
pub(crate) struct Guard {
    table: Idempotency,
    name: Name,
    told: watch::Sender<News>,
}

impl Guard {
    /// Gives the answer to those who wait.
    pub(crate) fn answered(self, response: &Response<GatewayBody>) {
        let late = response.headers().get("x-plimsoll-code");
        if late.is_some_and(|code| code == ErrorCode::DeadlineExceeded.as_str()) {
            return;
        }
        let news = match response.body() {
            GatewayBody::Full(body) => News::Answered(Box::new(Answer {
                status: response.status(),
                headers: response.headers().clone(),
                body: body.clone().unwrap_or_default(),
            })),
            GatewayBody::Stream(_) | GatewayBody::Fallible(_) => News::Unshared,
        };
        self.told.send_replace(news);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.table.running.lock().remove(&self.name);
    }
}

/// Waits for the request that runs.
#[derive(Debug)]
pub(crate) struct Waiting {
    news: watch::Receiver<News>,
}

impl Waiting {
    /// Its answer. `None`: it ended without one, and its place is free.
    pub(crate) async fn answer(mut self) -> Option<Result<Response<GatewayBody>, ApiError>> {
        let news = self.news.wait_for(|news| !matches!(news, News::Running)).await.ok()?.clone();
        match news {
            News::Running => None,
            News::Unshared => Some(Err(in_flight())),
            News::Answered(answer) => {
                let mut response = Response::new(GatewayBody::full(answer.body));
                *response.status_mut() = answer.status;
                *response.headers_mut() = answer.headers;
                response.headers_mut().insert(ATTACHED, HeaderValue::from_static("true"));
                Some(Ok(response))
            }
        }
    }
}

/// The request's name, if it has one.
///
/// # Errors
/// `invalid_header` for an empty, overlong or repeated one, and for bytes that are not printable ASCII.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<&[u8]>, ApiError> {
    let mut all = headers.get_all(&IDEMPOTENCY_KEY).iter();
    let Some(value) = all.next() else { return Ok(None) };
    let key = value.as_bytes();
    let plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    if key.is_empty() || key.len() > KEY_BYTES || !key.iter().all(plain) || all.any(|other| other != value) {
        let message = format!("`Idempotency-Key` must be one value of 1 to {KEY_BYTES} printable ASCII characters");
        return Err(ApiError::new(ErrorCode::InvalidHeader, message));
    }
    Ok(Some(key))
}

/// Of everything that decides the answer.
pub(crate) fn digest(target: &str, model: Option<&str>, body: &[u8]) -> Digest {
    let mut hash = Sha256::new();
    for part in [target.as_bytes(), model.unwrap_or("").as_bytes()] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.update(body);
    hash.finalize().into()
}
