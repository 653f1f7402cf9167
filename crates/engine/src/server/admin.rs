//! Control: abort, flush.

use super::State;
use super::errors::ApiError;
use super::fields::Fields;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
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
