//! Error answers: OpenAI's error object on every route.

use crate::driver::SubmitError;
use crate::refusal::Refusal;
use crate::request::Finish;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// An error that ends a request before its answer began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    pub(crate) message: String,
    pub(crate) kind: &'static str,
    pub(crate) code: &'static str,
    /// The field that is wrong.
    pub(crate) param: Option<String>,
    /// What the scheduler said.
    pub(crate) refusal: Option<Box<Refusal>>,
}

impl ApiError {
    pub(crate) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        let kind = match status {
            401 => "authentication_error",
            429 | 503 => "overloaded_error",
            400..=499 => "invalid_request_error",
            _ => "engine_error",
        };
        ApiError { status, message: message.into(), kind, code, param: None, refusal: None }
    }

    /// 400 about a field. The message starts with its name.
    pub(crate) fn field(name: &str, what: impl std::fmt::Display) -> Self {
        ApiError { param: Some(name.to_owned()), ..ApiError::new(400, "invalid_request", format!("{name}: {what}")) }
    }

    pub(crate) fn json(&self) -> Value {
        let mut error = json!({"message": self.message, "type": self.kind, "param": self.param, "code": self.code});
        if let Some(Refusal::SloUnattainable(late)) = self.refusal.as_deref() {
            error["goal"] = json!(late.goal);
            error["predicted_ms"] = json!(late.predicted.as_millis_f64());
            error["wanted_ms"] = json!(late.wanted.as_millis_f64());
        }
        json!({"error": error})
    }

    /// The error that the end of a request stands for, when it is one (a client's own abort is not).
    pub(crate) fn of_finish(finish: &Finish) -> Option<Self> {
        match finish {
            Finish::Abort { message, status: Some(status) } => {
                let code = if *status == 503 { "shutting_down" } else { "engine_failed" };
                Some(ApiError::new(*status, code, message))
            }
            Finish::Refused(refusal) => Some(refusal.clone().into()),
            _ => None,
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let error = ApiError::new(refusal.status(), refusal.code(), refusal.to_string());
        ApiError { refusal: Some(Box::new(refusal)), ..error }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::DuplicateRid(_) => {
                ApiError { param: Some("rid".to_owned()), ..ApiError::new(400, "invalid_request", message) }
            }
            SubmitError::NoSuchRank { .. } => {
                ApiError { param: Some("routed_dp_rank".to_owned()), ..ApiError::new(400, "invalid_request", message) }
            }
            SubmitError::QueueFull => Refusal::QueueFull.into(),
            SubmitError::Stopped => ApiError::new(503, "shutting_down", message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = self.json().to_string();
        let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        if let Some(seconds) = self.refusal.and_then(|refusal| refusal.retry_after_s()) {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
