//! Control: abort, flush, faults.

use super::State;
use super::errors::ApiError;
use super::fields::Fields;
use crate::faults::Faults;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::sync::Arc;

/// `/abort_request`: ids that **start with** `rid` (SGLang's rule), or all. An unknown id is not an error.
pub(crate) fn abort(state: &State, body: &[u8]) -> Result<StatusCode, ApiError> {
    let fields = Fields::parse(body)?;
    let rid = fields.text("rid")?.unwrap_or_default();
    if fields.flag("abort_all")? {
        state.engine.handle().abort(None);
    } else if !rid.is_empty() {
        state.engine.handle().abort(Some(rid));
    }
    Ok(StatusCode::OK)
}

pub(crate) async fn flush(state: Arc<State>) -> Response {
    if state.engine.handle().flush().await {
        "Cache flushed.\n".into_response()
    } else {
        ApiError::new(400, "busy", "the cache is in use: flush when no request is running or waiting").into_response()
    }
}

/// Changes the faults that the body names, keeps the others, and answers with all. `null` switches one off.
pub(crate) fn faults(state: &State, body: &[u8]) -> Result<Json<Faults>, ApiError> {
    if !state.config.faults {
        return Err(ApiError::new(404, "not_found", "faults are not enabled on this engine"));
    }
    let Ok(Value::Object(map)) = serde_json::from_slice::<Value>(body) else {
        return Err(ApiError::new(400, "invalid_json", "send a JSON object of faults"));
    };
    let fields = Fields::parse(body)?;
    let mut faults = state.faults.current();
    for name in map.keys() {
        match name.as_str() {
            "no_respond" => faults.no_respond = fields.flag(name)?,
            "torn_stream_after_tokens" => faults.torn_stream_after_tokens = fields.count(name)?,
            "torn_stream_clean" => faults.torn_stream_clean = fields.flag(name)?,
            "step_delay_us" => {
                faults.step_delay_us = match fields.integer(name)? {
                    None => None,
                    Some(us @ 0..=60_000_000) => Some(us as u64),
                    Some(us) => return Err(ApiError::field(name, format!("{us} is not between 0 and 60000000"))),
                }
            }
            "http_status" => {
                faults.http_status = match fields.integer(name)? {
                    None => None,
                    Some(status @ 400..=599) => Some(status as u16),
                    Some(status) => return Err(ApiError::field(name, format!("{status} is not between 400 and 599"))),
                }
            }
            _ => return Err(ApiError::field(name, "is not a fault of this engine")),
        }
    }
    state.faults.set(faults.clone());
    Ok(Json(faults))
}
