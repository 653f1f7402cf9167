//! An answer that says what went wrong: code, sentence, and when to come back.

use crate::body::GatewayBody;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use plimsoll_core::ErrorCode;
use plimsoll_protocol::error_body::{error_event, error_json};
use plimsoll_protocol::request::RequestError;
use plimsoll_protocol::wishes::{Place, SPELLINGS, WishError};

/// An error on its way to a client, before or inside a stream.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub code: ErrorCode,
    pub message: String,
    pub param: Option<&'static str>,
    /// Seconds for `Retry-After`; kept for 429 and 503.
    pub retry_after_s: Option<u64>,
    pub allow: Option<&'static str>,
}

impl ApiError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        ApiError { code, message: message.into(), param: None, retry_after_s: None, allow: None }
    }

    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds.max(1));
        self
    }

    #[must_use]
    pub fn into_response(self) -> Response<GatewayBody> {
        let mut response = Response::new(GatewayBody::full(error_json(self.code, &self.message, self.param)));
        *response.status_mut() = StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(HeaderName::from_static("x-plimsoll-code"), HeaderValue::from_static(self.code.as_str()));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }

    /// The same error as the end of a stream.
    #[must_use]
    pub fn into_event(self) -> bytes::Bytes {
        error_event(self.code, &self.message)
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let message = error.to_string();
        match error {
            RequestError::Empty => ApiError::new(ErrorCode::EmptyBody, message),
            RequestError::Json(_) => ApiError::new(ErrorCode::InvalidJson, message),
            RequestError::Field { param, .. } => {
                ApiError { param: Some(param), ..ApiError::new(ErrorCode::InvalidRequest, message) }
            }
        }
    }
}

impl From<WishError> for ApiError {
    fn from(error: WishError) -> Self {
        let in_body = SPELLINGS.iter().any(|s| s.place == Place::Body && s.name == error.name());
        let code = if in_body { ErrorCode::InvalidRequest } else { ErrorCode::InvalidHeader };
        ApiError { param: Some(error.name()), ..ApiError::new(code, error.to_string()) }
    }
}
