//! The error object every client of OpenAI's API knows, and its form inside a stream.

use bytes::Bytes;
use plimsoll_core::ErrorCode;
use serde::Serialize;

#[derive(Serialize)]
struct Outer<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    r#type: &'static str,
    code: &'static str,
    param: Option<&'a str>,
}

/// `{"error":{"message","type","code","param"}}`.
#[must_use]
pub fn error_json(code: ErrorCode, message: &str, param: Option<&str>) -> Bytes {
    let object = Outer { error: Inner { message, r#type: code.kind(), code: code.as_str(), param } };
    // Strings and an option serialise without failing.
    Bytes::from(serde_json::to_vec(&object).unwrap_or_default())
}

/// The error object as the last event of a stream, followed by `[DONE]` so that clients that only wait for that end.
#[must_use]
pub fn error_event(code: ErrorCode, message: &str) -> Bytes {
    let object = error_json(code, message, None);
    let mut event = Vec::with_capacity(object.len() + 24);
    event.extend_from_slice(b"data: ");
    event.extend_from_slice(&object);
    event.extend_from_slice(b"\n\ndata: [DONE]\n\n");
    Bytes::from(event)
}
