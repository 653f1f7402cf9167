//! Whole (non-streaming) answers: is it an answer at all, and how did it end?

use super::object::Object;
use super::{AbortInfo, Finish, UpstreamError, Usage, finish, openai, wire_error};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use smallvec::SmallVec;
use thiserror::Error;

/// What a whole answer says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerFacts {
    /// One per choice that has ended; empty for embeddings and the like.
    pub finishes: SmallVec<[Finish; 1]>,
    /// Summed over a native batch.
    pub usage: Option<Usage>,
    pub error: Option<UpstreamError>,
    pub abort: Option<AbortInfo>,
}

/// Why a body is no answer of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AnswerError {
    #[error("the engine's answer is empty")]
    Empty,
    #[error("the engine answered HTML, not JSON: check that its url is the engine's own address")]
    Html,
    #[error("the engine's answer is not valid JSON ({0})")]
    NotJson(String),
    #[error("the engine's answer is JSON, but not an object of this API")]
    Shape,
}

/// Everything that is not looked at is skipped, not stored: an embedding answer may have megabytes of numbers.
#[derive(Deserialize)]
struct Answer {
    choices: Option<Vec<Object<Choice>>>,
    usage: Option<Value>,
    /// SGLang's own.
    sglext: Option<Value>,
    error: Option<Value>,
    detail: Option<Value>,
    object: Option<Value>,
    message: Option<Value>,
    code: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    index: Option<Value>,
    finish_reason: Option<Value>,
}

#[derive(Deserialize)]
struct Native {
    index: Option<Value>,
    meta_info: Option<Object<Meta>>,
    error: Option<Value>,
    detail: Option<Value>,
    object: Option<Value>,
    message: Option<Value>,
    code: Option<Value>,
}

#[derive(Deserialize)]
struct Meta {
    finish_reason: Option<Value>,
    prompt_tokens: Option<Value>,
    completion_tokens: Option<Value>,
    cached_tokens: Option<Value>,
    cached_tokens_details: Option<Value>,
}

/// Facts of an answer of an OpenAI route.
///
/// # Errors
/// See [`AnswerError`]. An error object is no error here: it is in the facts.
pub fn inspect_openai_answer(body: &[u8]) -> Result<AnswerFacts, AnswerError> {
    let Object(answer): Object<Answer> = parse(body)?;
    let Answer { choices, usage: counts, sglext, error, detail, object, message, code } = answer;
    let fields = [("error", error), ("detail", detail), ("object", object), ("message", message), ("code", code)];
    let mut facts = AnswerFacts { error: error_of(fields), ..AnswerFacts::default() };
    for Object(choice) in choices.unwrap_or_default() {
        let index = finish::index(choice.index.as_ref());
        if let Some((finish, abort)) = finish::read(index, choice.finish_reason.as_ref()) {
            openai::note(&finish.reason, abort, &mut facts.error, &mut facts.abort);
            facts.finishes.push(finish);
        }
    }
    facts.usage = counts.as_ref().and_then(usage).map(|usage| {
        let details = sglext.as_ref().and_then(|own| own.get("cached_tokens_details"));
        Usage { cached_by_tier: details.and_then(tiers), ..usage }
    });
    Ok(facts)
}

/// Facts of an answer of `/generate`: an object, or a list of them for a batch.
///
/// # Errors
/// See [`AnswerError`].
pub fn inspect_sglang_answer(body: &[u8]) -> Result<AnswerFacts, AnswerError> {
    let items: Vec<Object<Native>> = match body.trim_ascii_start().first() {
        Some(b'[') => parse(body)?,
        _ => vec![parse(body)?],
    };
    let mut facts = AnswerFacts::default();
    for (position, Object(item)) in items.into_iter().enumerate() {
        let Native { index, meta_info, error, detail, object, message, code } = item;
        let fields = [("error", error), ("detail", detail), ("object", object), ("message", message), ("code", code)];
        if facts.error.is_none() {
            facts.error = error_of(fields);
        }
        let Some(Object(meta)) = meta_info else { continue };
        // A list is in the order of its prompts; `index` is there in streams only.
        let index = match &index {
            Some(_) => finish::index(index.as_ref()),
            None => u32::try_from(position).unwrap_or(u32::MAX),
        };
        facts.usage = add(facts.usage, meta_usage(&meta));
        if let Some((finish, abort)) = finish::read(index, meta.finish_reason.as_ref()) {
            openai::note(&finish.reason, abort, &mut facts.error, &mut facts.abort);
            facts.finishes.push(finish);
        }
    }
    Ok(facts)
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, AnswerError> {
    match body.trim_ascii_start().first() {
        None => return Err(AnswerError::Empty),
        Some(b'<') => return Err(AnswerError::Html),
        Some(_) => {}
    }
    // What is skipped is not looked at by the parser, and goes on to the client all the same.
    let text = std::str::from_utf8(body)
        .map_err(|e| AnswerError::NotJson(format!("byte {} is not UTF-8", e.valid_up_to())))?;
    serde_json::from_str(text).map_err(|e| {
        // A type that does not fit is a data error; then the text may still be JSON throughout.
        if e.is_data() && serde_json::from_str::<IgnoredAny>(text).is_ok() {
            AnswerError::Shape
        } else {
            AnswerError::NotJson(format!("line {}, column {}", e.line(), e.column()))
        }
    })
}

/// Hands the few fields that can make an error object to the reader of error objects.
fn error_of<const N: usize>(fields: [(&str, Option<Value>); N]) -> Option<UpstreamError> {
    let present = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    wire_error::read(&Value::Object(present.collect()))
}

fn usage(value: &Value) -> Option<Usage> {
    let count = |key: &str| value.get(key).and_then(Value::as_u64);
    let prompt_tokens = count("prompt_tokens")?;
    let usage = Usage {
        prompt_tokens,
        completion_tokens: count("completion_tokens").or_else(|| count("total_tokens")?.checked_sub(prompt_tokens))?,
        cached_tokens: value.pointer("/prompt_tokens_details/cached_tokens").and_then(Value::as_u64),
        cached_by_tier: None,
    };
    usage.plausible()
}

fn meta_usage(meta: &Meta) -> Option<Usage> {
    let count = |v: &Option<Value>| v.as_ref().and_then(Value::as_u64);
    let usage = Usage {
        prompt_tokens: count(&meta.prompt_tokens)?,
        completion_tokens: count(&meta.completion_tokens)?,
        cached_tokens: count(&meta.cached_tokens),
        cached_by_tier: meta.cached_tokens_details.as_ref().and_then(tiers),
    };
    usage.plausible()
}

/// `{"device": 96, "host": 32, "storage": 0}`, with the device at least.
fn tiers(details: &Value) -> Option<[u64; 3]> {
    let tier = |name: &str| details.get(name).and_then(Value::as_u64);
    Some([tier("device")?, tier("host").unwrap_or(0), tier("storage").unwrap_or(0)])
}

fn add(a: Option<Usage>, b: Option<Usage>) -> Option<Usage> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    Some(a.plus(b))
}
