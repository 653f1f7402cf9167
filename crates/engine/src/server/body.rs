//! What a handler takes from a request: its whole body, or an error object in our form (too large, too slow, broken off),
//! and the header that pins a rank.

use super::State;
use super::errors::ApiError;
use super::fields::Fields;
use super::params::pinned_rank;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use futures_util::StreamExt;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for bodies, all connections together, in units of [`UNIT_BYTES`].
#[derive(Debug)]
pub(crate) struct Bodies(Arc<Semaphore>);

const UNIT_BYTES: usize = 1024;

impl Bodies {
    pub(crate) fn new(bytes: usize) -> Self {
        Bodies(Arc::new(Semaphore::new((bytes / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS))))
    }
}

/// A body, with the room that it takes as long as it is somewhere.
#[derive(Debug)]
pub(crate) struct Body(pub(crate) Bytes);

/// The bytes of a body so far. It holds room for those that have come, not for those that were announced: who sends slowly
/// keeps little from others.
#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Gathered {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Gathered {
    fn add(&mut self, piece: &[u8], limit: usize, bodies: &Bodies) -> Result<(), ApiError> {
        let length = self.bytes.len() + piece.len();
        if length > limit {
            return Err(ApiError::new(413, "body_too_large", "the body is larger than this engine takes"));
        }
        let units = |bytes: usize| bytes.div_ceil(UNIT_BYTES);
        let more = units(length) - units(self.bytes.len());
        // Nobody waits for room while holding some.
        let room = u32::try_from(more).ok().and_then(|more| Arc::clone(&bodies.0).try_acquire_many_owned(more).ok());
        let Some(room) = room else {
            let what = "too many large bodies are being read at once: repeat later";
            return Err(ApiError::new(503, "too_many_bodies", what));
        };
        match &mut self.room {
            Some(all) => all.merge(room),
            None => self.room = Some(room),
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

impl FromRequest<Arc<State>> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Arc<State>) -> Result<Self, ApiError> {
        let deadline = state.config.body_deadline;
        let read = tokio::time::timeout(deadline, read(request, state)).await;
        read.unwrap_or_else(|_| {
            let what = format!("the body has not arrived within {} ms", deadline.as_millis());
            Err(ApiError::new(408, "body_too_slow", what))
        })
    }
}

async fn read(request: Request, state: &State) -> Result<Body, ApiError> {
    let mut pieces = request.into_body().into_data_stream();
    let mut gathered = Gathered::default();
    while let Some(piece) = pieces.next().await {
        let piece =
            piece.map_err(|error| ApiError::new(400, "invalid_request", format!("the body broke off: {error}")))?;
        gathered.add(&piece, state.config.body_bytes, &state.bodies)?;
    }
    Ok(Body(Bytes::from_owner(gathered)))
}

/// `x-data-parallel-rank`, with which SGLang and vLLM let a router choose the rank on OpenAI's routes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankHeader(Option<usize>);

impl RankHeader {
    /// The header's rank, or else the body's.
    pub(crate) fn or_body(self, fields: &Fields) -> Result<Option<usize>, ApiError> {
        let body = pinned_rank(fields)?;
        Ok(self.0.or(body))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RankHeader {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        const NAME: &str = "x-data-parallel-rank";
        let Some(value) = parts.headers.get(NAME) else { return Ok(RankHeader(None)) };
        let rank = value.to_str().ok().and_then(|text| text.parse().ok());
        rank.map(|rank| RankHeader(Some(rank))).ok_or_else(|| ApiError::field(NAME, "expected a rank, from 0"))
    }
}
