//! How long a prompt is, from its raw JSON, in one pass and without allocating.

use super::{PromptSize, RequestError, wrong};
use serde_json::value::RawValue;

/// What an image or a recording that came as base64 is counted as: what a picture of a million pixels takes, in bytes of text.
const MEDIA_BYTES: u64 = 4_096;

/// Longest beginning of a data URL before its data.
const MOST_HEAD: usize = 128;

/// Bytes of a chat's JSON with its media counted as what they become, and whether there are any.
pub(super) fn chat(json: &str) -> (u64, bool) {
    let (mut bytes, mut media) = (json.len() as u64, false);
    let mut from = 0;
    while let Some(at) = memchr::memmem::find(&json.as_bytes()[from..], b";base64,").map(|at| from + at) {
        from = at + b";base64,".len();
        let head = &json.as_bytes()[at.saturating_sub(MOST_HEAD)..at];
        let text = memchr::memrchr(b'"', head).map_or(&[][..], |quote| &head[quote + 1..]);
        if !text.starts_with(b"data:") {
            continue;
        }
        let data = &json.as_bytes()[from..];
        let of_data = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_\\".contains(byte);
        let len = data.iter().position(|byte| !of_data(byte)).unwrap_or(data.len()) as u64;
        bytes = bytes - len + MEDIA_BYTES.min(len);
        media = true;
        from += len as usize;
    }
    (bytes, media)
}

/// A string, a list of strings, a list of ids, or a list of lists of ids.
pub(super) fn prompt(raw: &RawValue, param: &'static str, prompts: &mut u64) -> Result<PromptSize, RequestError> {
    let json = raw.get();
    if json.starts_with('"') {
        return Ok(PromptSize::TextBytes(json.len() as u64 - 2));
    }
    if !json.starts_with('[') {
        return Err(wrong(param, &format!("`{param}` must be a string or an array")));
    }
    match json[1..].trim_ascii_start().as_bytes().first() {
        Some(b'"') => {
            let (elements, bytes) = strings(json.as_bytes());
            *prompts = elements;
            Ok(PromptSize::TextBytes(bytes))
        }
        Some(b']') => Err(wrong(param, &format!("`{param}` is empty"))),
        // OpenAI's embeddings take objects too (multimodal inputs of some engines): sized by their bytes.
        Some(b'{') => Ok(PromptSize::TextBytes(json.len() as u64)),
        _ => ids(raw, param, prompts),
    }
}

/// A string or a list of strings.
pub(super) fn texts(raw: &RawValue, param: &'static str, prompts: &mut u64) -> Result<PromptSize, RequestError> {
    match prompt(raw, param, prompts)? {
        PromptSize::Tokens(_) => {
            Err(wrong(param, &format!("`{param}` must be a string or an array of strings; ids go into `input_ids`")))
        }
        text => Ok(text),
    }
}

/// A list of ids, or a list of such lists.
pub(super) fn ids(raw: &RawValue, param: &'static str, prompts: &mut u64) -> Result<PromptSize, RequestError> {
    let json = raw.get().as_bytes();
    if json.first() != Some(&b'[') {
        return Err(wrong(param, &format!("`{param}` must be an array of token ids")));
    }
    let mut lists = 0u64;
    let mut numbers = 0u64;
    let mut in_number = false;
    for &byte in json {
        match byte {
            b'0'..=b'9' => {
                numbers += u64::from(!in_number);
                in_number = true;
            }
            b'[' => {
                lists += 1;
                in_number = false;
            }
            b',' | b']' | b' ' | b'\n' | b'\r' | b'\t' => in_number = false,
            b'-' => return Err(wrong(param, &format!("`{param}` holds a negative token id"))),
            _ => return Err(wrong(param, &format!("`{param}` must hold token ids only"))),
        }
    }
    if numbers == 0 {
        return Err(wrong(param, &format!("`{param}` is empty")));
    }
    *prompts = if lists > 1 { lists - 1 } else { 1 };
    Ok(PromptSize::Tokens(numbers))
}

/// Number and total bytes of the strings of a valid JSON array.
fn strings(json: &[u8]) -> (u64, u64) {
    let (mut elements, mut bytes) = (0, 0);
    let mut at = 0;
    while let Some(open) = memchr::memchr(b'"', &json[at..]).map(|i| i + at) {
        let mut close = open + 1;
        while let Some(i) = memchr::memchr2(b'"', b'\\', &json[close..]).map(|i| i + close) {
            if json[i] == b'"' {
                close = i;
                break;
            }
            close = i + 2;
        }
        elements += 1;
        bytes += (close - open - 1) as u64;
        at = close + 1;
    }
    (elements, bytes)
}
