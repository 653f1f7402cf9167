//! Control: abort, flush.

use super::State;
use super::errors::ApiError;
use super::fields::Fields;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// No request has an id as long as this.
const TOO_LONG_BYTES: usize = 512;

/// `/abort_request`: ids that **start with** `rid` (SGLang's rule), or all. An unknown id is not an error.
pub(crate) fn abort(state: &State, body: &[u8]) -> Result<StatusCode, ApiError> {
    let fields = Fields::parse(body)?;
    let rid = fields.text("rid")?.unwrap_or_default();
    let taken = if fields.flag("abort_all")? {
        state.engine.handle().abort(None)
    } else if !rid.is_empty() && rid.len() < TOO_LONG_BYTES {
        state.engine.handle().abort(Some(rid))
    } else {
        Ok(())
    };
    taken.map_err(|error| ApiError::new(503, "too_many_aborts", error.to_string()))?;
    Ok(StatusCode::OK)
}

pub(crate) async fn flush(state: Arc<State>) -> Response {
    if state.engine.handle().flush().await {
        "Cache flushed.\n".into_response()
    } else {
        ApiError::new(400, "busy", "the cache is in use: flush when no request is running or waiting").into_response()
    }
}
