//! `continue_final_message`: the text ends inside the last message, as `transformers` cuts it.

use super::TemplateError;
use serde_json::Value as Json;

/// Cuts everything after the final message's content.
pub(super) fn cut(mut text: String, messages: &Json) -> Result<String, TemplateError> {
    let last = messages.as_array().and_then(|list| list.last()).ok_or(TemplateError::Continue("there is none"))?;
    let content = last_text(&last["content"]).ok_or(TemplateError::Continue("its content is no text"))?;
    let trimmed = content.trim();
    if trimmed.is_empty() {
        return Err(TemplateError::Continue("it is empty"));
    }
    let at = text.rfind(trimmed).ok_or(TemplateError::Continue("the chat template does not print it"))?;
    // Trailing space is kept where the template keeps it.
    let whole = content.trim_start();
    let length = if text[at..].starts_with(whole) { whole.len() } else { trimmed.len() };
    text.truncate(at + length);
    Ok(text)
}

/// A text, or the text of the last part that has one.
fn last_text(content: &Json) -> Option<&str> {
    match content {
        Json::String(text) => Some(text),
        Json::Array(parts) => parts.iter().rev().find_map(|part| part["text"].as_str()),
        _ => None,
    }
}
