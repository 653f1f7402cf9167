//! Finish reasons, and how many of them a stream still owes.

use super::{AbortInfo, ChunkFacts};
use serde_json::Value;
use smallvec::SmallVec;

/// Why a choice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    Stop,
    Length,
    ToolCalls,
    ContentFilter,
    /// The engine gave the request up, by itself or because it was told to.
    Abort,
    /// vLLM's `error`: the engine failed inside the request.
    Error,
    Other(Box<str>),
}

impl FinishReason {
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        match name {
            "stop" => FinishReason::Stop,
            "length" => FinishReason::Length,
            "tool_calls" | "function_call" => FinishReason::ToolCalls,
            "content_filter" => FinishReason::ContentFilter,
            "abort" => FinishReason::Abort,
            "error" => FinishReason::Error,
            other => FinishReason::Other(other.into()),
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::ContentFilter => "content_filter",
            FinishReason::Abort => "abort",
            FinishReason::Error => "error",
            FinishReason::Other(name) => name,
        }
    }
}

/// One choice has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    pub index: u32,
    pub reason: FinishReason,
}

/// Reads a finish reason in either form: OpenAI's word, or SGLang's `{"type": "abort", "status_code": ...}`.
/// `None` for null and for what is neither.
pub(super) fn read(index: u32, reason: Option<&Value>) -> Option<(Finish, Option<AbortInfo>)> {
    let (name, details) = match reason? {
        Value::String(name) => (name.as_str(), None),
        Value::Object(map) => (map.get("type")?.as_str()?, Some(map)),
        _ => return None,
    };
    let reason = FinishReason::from_name(name);
    let abort = (reason == FinishReason::Abort).then(|| {
        let text = |key: &str| details?.get(key)?.as_str().map(str::to_owned);
        AbortInfo {
            status_code: details.and_then(|d| super::wire_error::status(d.get("status_code"))),
            message: text("message").unwrap_or_default(),
            err_type: text("err_type"),
        }
    });
    Some((Finish { index, reason }, abort))
}

/// A JSON number as a choice index; 0 where it is absent or no index.
pub(super) fn index(value: Option<&Value>) -> u32 {
    value.and_then(Value::as_u64).and_then(|i| u32::try_from(i).ok()).unwrap_or(0)
}

/// Counts which choices of a stream have finished. A choice counts once, however often its finish is repeated.
#[derive(Clone, Debug)]
pub struct FinishCounter {
    expected: u32,
    finished: u32,
    seen: SmallVec<[u64; 1]>,
}

/// More choices than this in one request are counted as this many.
const MAX_CHOICES: u32 = 1 << 16;

impl FinishCounter {
    /// `expected`: prompts times `n` of the request, at least 1.
    #[must_use]
    pub fn new(expected: u32) -> Self {
        FinishCounter { expected: expected.clamp(1, MAX_CHOICES), finished: 0, seen: SmallVec::new() }
    }

    pub fn observe(&mut self, facts: &ChunkFacts) {
        for finish in &facts.finishes {
            let (word, bit) = ((finish.index / 64) as usize, 1 << (finish.index % 64));
            if finish.index >= MAX_CHOICES {
                continue;
            }
            if self.seen.len() <= word {
                self.seen.resize(word + 1, 0);
            }
            if self.seen[word] & bit == 0 {
                self.seen[word] |= bit;
                self.finished += 1;
            }
        }
    }

    #[must_use]
    pub fn finished(&self) -> u32 {
        self.finished
    }

    /// Every choice has its finish reason: an end of the stream from now on is a complete one.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.finished >= self.expected
    }
}
