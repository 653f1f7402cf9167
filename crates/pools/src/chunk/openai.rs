//! Events of `/v1/chat/completions` and `/v1/completions`.

use super::scan::{self, Counts};
use super::{AbortInfo, ChunkFacts, ChunkKind, FinishReason, UpstreamError, finish, wire_error};
use serde_json::Value;

/// Facts of one event of an OpenAI stream. Runs for every event of every stream.
#[must_use]
pub fn inspect_openai_chunk(data: &[u8]) -> ChunkFacts {
    let mut facts = ChunkFacts { kind: scan::kind(data), ..ChunkFacts::default() };
    if facts.kind != ChunkKind::Event {
        return facts;
    }
    let mut counts = Counts::default();
    let (mut has_usage, mut must_parse) = (false, false);
    for (key, value) in scan::keys(data) {
        match key {
            b"content" => facts.tokens |= value.starts_with(b"\"") && scan::is_filled(value),
            b"text" | b"reasoning_content" | b"reasoning" | b"refusal" | b"tool_calls" | b"function_call"
            | b"token_ids" | b"audio" => facts.tokens |= scan::is_filled(value),
            b"finish_reason" | b"error" | b"detail" => must_parse |= !scan::is_null(value),
            b"object" => must_parse |= value.starts_with(b"\"error\""),
            b"usage" => has_usage |= scan::is_filled(value),
            _ => counts.see(key, value),
        }
    }
    if has_usage {
        facts.usage = counts.usage();
    }
    if must_parse {
        match serde_json::from_slice::<Value>(data) {
            Ok(event) => parse(&event, &mut facts),
            Err(_) => return scan::garbage(),
        }
    }
    facts
}

#[cold]
fn parse(event: &Value, facts: &mut ChunkFacts) {
    facts.error = wire_error::read(event);
    let choices = event.get("choices").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for choice in choices {
        let index = finish::index(choice.get("index"));
        facts.index = index;
        let Some((finish, abort)) = finish::read(index, choice.get("finish_reason")) else { continue };
        note(&finish.reason, abort, &mut facts.error, &mut facts.abort);
        facts.finishes.push(finish);
    }
}

/// An abort or a failure that is only told by the finish reason.
pub(super) fn note(
    reason: &FinishReason,
    abort: Option<AbortInfo>,
    error: &mut Option<UpstreamError>,
    aborted: &mut Option<AbortInfo>,
) {
    if aborted.is_none() {
        *aborted = abort;
    }
    if *reason == FinishReason::Error && error.is_none() {
        *error = Some(UpstreamError { status: None, message: "the engine ended the request with an error".to_owned() });
    }
}
