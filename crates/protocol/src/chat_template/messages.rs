//! Messages of a chat request, made ready for a template the way stock engines do it.

use super::ChatTemplate;
use serde_json::Value as Json;
use std::borrow::Cow;

/// What stands between the text parts of one message when a template wants a single text: SGLang joins with a space, vLLM
/// with a line break.
pub const SGLANG_JOINT: &str = " ";
pub const VLLM_JOINT: &str = "\n";

/// A message that no template can be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("messages[{index}]{field}: {what}")]
pub struct MessageError {
    pub index: usize,
    /// With its leading dot; empty for the message itself.
    pub field: &'static str,
    pub what: String,
}

impl ChatTemplate {
    /// The messages as this template wants them: text parts joined by `joint` unless it takes parts, `content: null` as no
    /// text, arguments of tool calls as objects (OpenAI sends them as text; templates print them with `tojson`).
    ///
    /// # Errors
    /// Names the first message that is no object, has no role, or has content that is not text.
    pub fn prepare(&self, mut messages: Vec<Json>, joint: &str) -> Result<Json, MessageError> {
        for (index, message) in messages.iter_mut().enumerate() {
            let wrong = |field: &'static str, what: &str| MessageError { index, field, what: what.to_owned() };
            let Json::Object(message) = message else { return Err(wrong("", "expected an object")) };
            if !message.get("role").is_some_and(Json::is_string) {
                return Err(wrong(".role", "expected a string"));
            }
            message.retain(|_, value| !value.is_null());
            let joined = match message.get("content") {
                None => Some(String::new()),
                Some(Json::String(_)) => None,
                Some(Json::Array(parts)) => {
                    let texts: Option<Vec<&str>> = parts.iter().map(part_text).collect();
                    let texts = texts.ok_or_else(|| {
                        wrong(".content", "only parts {\"type\": \"text\", \"text\": ...} are supported")
                    })?;
                    (!self.wants_parts()).then(|| texts.join(joint))
                }
                Some(_) => return Err(wrong(".content", "expected a string or a list of parts")),
            };
            if let Some(text) = joined {
                message.insert("content".to_owned(), Json::String(text));
            }
            if let Some(calls) = message.get_mut("tool_calls") {
                let Json::Array(calls) = calls else { return Err(wrong(".tool_calls", "expected a list")) };
                calls.iter_mut().for_each(open_arguments);
            }
        }
        Ok(Json::Array(messages))
    }
}

fn part_text(part: &Json) -> Option<&str> {
    match part["type"].as_str() {
        Some("text") | None => part["text"].as_str(),
        Some(_) => None,
    }
}

/// Arguments that are the text of a JSON object become that object.
fn open_arguments(call: &mut Json) {
    let Some(arguments) = call.get_mut("function").and_then(|function| function.get_mut("arguments")) else { return };
    let text = match &*arguments {
        Json::String(text) if text.trim().is_empty() => Cow::Borrowed("{}"),
        Json::String(text) => Cow::Owned(text.clone()),
        _ => return,
    };
    if let Ok(object @ Json::Object(_)) = serde_json::from_str(&text) {
        *arguments = object;
    }
}
