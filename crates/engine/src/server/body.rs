//! The whole body of a request, or an error object in our form (too large, broken off).

use super::errors::ApiError;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;

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
