//! The small GET routes: models, liveness, readiness.

use crate::api_error::ApiError;
use crate::body::GatewayBody;
use crate::state::Shared;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use plimsoll_core::ErrorCode;
use serde_json::{Value, json};

/// Paths this module answers.
#[must_use]
pub fn is_path(path: &str) -> bool {
    matches!(path, "/v1/models" | "/livez" | "/health" | "/ping" | "/readyz") || path.starts_with("/v1/models/")
}

/// Answers one of them.
///
/// # Errors
/// `unauthorized` on the model routes where keys are configured; `model_not_found`.
pub fn answer<B>(shared: &Shared, request: &Request<B>) -> Result<Response<GatewayBody>, ApiError> {
    match request.uri().path() {
        "/livez" | "/health" | "/ping" => Ok(json_response(StatusCode::OK, &json!({ "status": "alive" }))),
        "/readyz" => Ok(readiness(shared, request.uri().query())),
        path => {
            shared.keys.load().tenant(request.headers())?;
            models(shared, path.strip_prefix("/v1/models/"))
        }
    }
}

/// Every model that some engine serves, whatever the state of the others.
fn models(shared: &Shared, one: Option<&str>) -> Result<Response<GatewayBody>, ApiError> {
    let served = shared.served_models();
    let card = |id: &str| json!({ "id": id, "object": "model", "created": 0, "owned_by": "plimsoll" });
    match one {
        None => {
            let data: Vec<Value> = served.iter().map(|id| card(id)).collect();
            Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": data })))
        }
        // Model names hold slashes, and clients may escape them.
        Some(id) => match served.iter().find(|m| *m == id || m.replace('/', "%2F").eq_ignore_ascii_case(id)) {
            Some(id) => Ok(json_response(StatusCode::OK, &card(id))),
            None => Err(ApiError::new(ErrorCode::ModelNotFound, "this model is not served here")),
        },
    }
}

/// 200 while at least one model can be served (`?model=NAME`: that one); 503 with reasons otherwise and when stopping.
/// One model that is down must not take the gateway out for the others.
#[must_use]
pub fn readiness(shared: &Shared, query: Option<&str>) -> Response<GatewayBody> {
    let served = shared.served_models();
    let only = query.and_then(|q| q.split('&').find_map(|pair| pair.strip_prefix("model=")));
    let mut serving = false;
    let mut report = Vec::new();
    for model in served.iter().filter(|m| only.is_none_or(|only| only == m.as_str())) {
        let status = shared.with_scheduler(|s| s.model_status(model));
        serving |= status.serving;
        let reasons: Vec<Value> =
            status.reasons.iter().map(|(engine, why)| json!({ "engine": engine.0, "reason": why })).collect();
        report.push(json!({ "model": model, "ready": status.serving, "engines_out": reasons }));
    }
    let ready = serving && !shared.stopping();
    let why = if shared.stopping() {
        Some("stopping")
    } else if served.is_empty() {
        Some("no engine has told its models yet")
    } else if !serving {
        Some("no engine can serve it now")
    } else {
        None
    };
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = json!({ "ready": ready, "reason": why, "models": report });
    if let Some(degraded) = shared.leases.degraded(shared) {
        body["degraded"] = json!([degraded]);
    }
    let mut response = json_response(status, &body);
    if !ready {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// A JSON answer.
#[must_use]
pub fn json_response(status: StatusCode, value: &Value) -> Response<GatewayBody> {
    let mut response = Response::new(GatewayBody::full(Bytes::from(value.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
