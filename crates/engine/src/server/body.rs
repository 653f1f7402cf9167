//! What a handler takes from a request: its whole body, or an error object in our form (too large, broken off), and the
//! header that pins a rank.

use super::errors::ApiError;
use super::fields::Fields;
use super::params::pinned_rank;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;

pub(crate) struct Body(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match Bytes::from_request(request, state).await {
            Ok(bytes) => Ok(Body(bytes)),
            Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(ApiError::new(413, "body_too_large", "the body is larger than this engine takes"))
            }
            Err(rejection) => Err(ApiError::new(400, "invalid_request", rejection.body_text())),
        }
    }
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
