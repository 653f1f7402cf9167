//! Error objects in the forms that engines write them.
//!
//! OpenAI's `{"error": {"message", "type", "code"}}`; the same with a bare string; vLLM's older
//! `{"object": "error", "message", "code"}`; FastAPI's `{"detail": ...}`.

use super::UpstreamError;
use serde_json::Value;

/// Messages are cut here: they go into logs and error objects.
const MAX_MESSAGE_BYTES: usize = 2048;

/// The error that an object holds, if it holds one.
pub(super) fn read(object: &Value) -> Option<UpstreamError> {
    let object = object.as_object()?;
    if let Some(error) = object.get("error").filter(|e| !e.is_null()) {
        return Some(match error {
            Value::String(text) => UpstreamError { status: None, message: cut(text) },
            Value::Object(map) => UpstreamError {
                status: status(map.get("code")).or_else(|| status(map.get("status"))),
                message: map.get("message").map(text).unwrap_or_default(),
            },
            other => UpstreamError { status: None, message: cut(&other.to_string()) },
        });
    }
    if object.get("object").and_then(Value::as_str) == Some("error") {
        return Some(UpstreamError {
            status: status(object.get("code")),
            message: object.get("message").map(text).unwrap_or_default(),
        });
    }
    let detail = object.get("detail").filter(|d| !d.is_null())?;
    Some(UpstreamError { status: None, message: text(detail) })
}

/// What an error answer says, for the message that the client gets: the engine's own words where the body is JSON, a
/// description of the body where it is not. The message is never empty.
#[must_use]
pub fn inspect_error_body(body: &[u8]) -> UpstreamError {
    let unreadable = |what: &str| UpstreamError { status: None, message: what.to_owned() };
    let mut error = match serde_json::from_slice::<Value>(body) {
        Ok(value) => read(&value).unwrap_or_else(|| unreadable("the engine's answer has no error object")),
        Err(_) if body.trim_ascii().is_empty() => unreadable("the engine's answer is empty"),
        Err(_) if body.trim_ascii_start().starts_with(b"<") => unreadable("the engine answered HTML, not JSON"),
        Err(_) => match std::str::from_utf8(body) {
            Ok(text) if text.len() <= 256 && !text.contains(|c: char| c.is_control() && c != '\n') => {
                unreadable(text.trim())
            }
            _ => unreadable("the engine's answer is not JSON"),
        },
    };
    if error.message.is_empty() {
        error.message = "the engine gave no reason".to_owned();
    }
    error
}

/// An HTTP error status written as a number or as digits.
pub(super) fn status(value: Option<&Value>) -> Option<u16> {
    let status = match value? {
        Value::Number(n) => n.as_u64()?,
        Value::String(s) => s.parse().ok()?,
        _ => return None,
    };
    u16::try_from(status).ok().filter(|s| (400..600).contains(s))
}

fn text(value: &Value) -> String {
    match value {
        Value::String(s) => cut(s),
        other => cut(&other.to_string()),
    }
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(MAX_MESSAGE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
