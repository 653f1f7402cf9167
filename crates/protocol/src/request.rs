//! Reading a request body once, without building a tree and without changing a byte.
//!
//! The gateway needs a handful of top-level facts: model, stream, how long the prompt is, how much may be generated.
//! Everything else, known or unknown, belongs to the engine. So the body is scanned (and thereby validated as JSON)
//! with borrowed raw values: a 300 KB prompt costs one pass over its bytes. The one key that the gateway owns (`rid` on
//! SGLang) is spliced in by byte position.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

mod count;
mod prompt_ids;
mod splice;
#[cfg(test)]
mod tests;
mod text;

pub use prompt_ids::{PromptIds, prompt_ids};
pub use splice::{PIECES, Set, splice};
pub use text::{GRAM_BYTES, PromptText};

/// Which API a body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Completions,
    Embeddings,
    /// SGLang's own `/generate`.
    Generate,
}

/// What the gateway knows of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestFacts {
    pub model: Option<String>,
    pub stream: bool,
    pub prompt: PromptSize,
    /// `max_tokens` and its synonyms; `None` where the request names none.
    pub max_output_tokens: Option<u64>,
    /// Prompts in the body times `n`: sequences that will run.
    pub sequences: u64,
    /// True where the body holds a list of prompts.
    pub batch: bool,
    /// Byte range of the value of a top-level `rid`.
    pub rid: Option<std::ops::Range<usize>>,
    /// Top-level `priority`; the engines disagree on which end comes first.
    pub priority: Option<i64>,
    /// Byte range of its value, `null` included.
    pub priority_at: Option<std::ops::Range<usize>>,
    /// Top-level `service_tier`, OpenAI's word for a class of service; `None` where it is no string.
    pub service_tier: Option<String>,
    /// Where the prompt's text lies; `None` where it is no text, several, with media in it, or to be embedded.
    pub text: Option<PromptText>,
}

/// Size of the prompt: exact where token ids were sent, else the bytes of its text as it stands in the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptSize {
    Tokens(u64),
    TextBytes(u64),
}

/// Why a body cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    #[error("the body is empty: send a JSON object")]
    Empty,
    #[error("the body is not valid JSON: {0}")]
    Json(String),
    /// A field with a wrong type or value.
    #[error("{message}")]
    Field { param: &'static str, message: String },
}

#[derive(Deserialize)]
struct Scan<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    stream: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    input_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    input_embeds: Option<&'a RawValue>,
    #[serde(borrow)]
    max_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    max_completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    n: Option<&'a RawValue>,
    #[serde(borrow)]
    sampling_params: Option<&'a RawValue>,
    /// Kept even where it is `null`: its place in the text is what matters.
    #[serde(borrow, default, deserialize_with = "even_null")]
    rid: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "even_null")]
    priority: Option<&'a RawValue>,
    #[serde(borrow)]
    service_tier: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_salt: Option<&'a RawValue>,
    #[serde(borrow)]
    lora_path: Option<&'a RawValue>,
    #[serde(borrow)]
    extra_key: Option<&'a RawValue>,
}

fn even_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

#[derive(Deserialize)]
struct Sampling<'a> {
    #[serde(borrow)]
    max_new_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    n: Option<&'a RawValue>,
}

/// Most sequences (prompts times `n`) of one request: engines refuse fewer, and every one is tracked.
pub const MAX_SEQUENCES: u64 = 65_536;

/// Longest model name, in bytes. Names are kept in records and come back in errors.
pub const MAX_MODEL_BYTES: usize = 256;

/// Scans a body. Unknown keys are neither read nor refused.
///
/// # Errors
/// See [`RequestError`]; a duplicate of a key that is read here is an error, since two readers could take different ones.
pub fn scan(api: Api, body: &Bytes) -> Result<RequestFacts, RequestError> {
    let text =
        std::str::from_utf8(body).map_err(|e| RequestError::Json(format!("byte {} is not UTF-8", e.valid_up_to())))?;
    match text.trim_ascii_start().as_bytes().first() {
        None => return Err(RequestError::Empty),
        Some(b'{') => {}
        Some(_) => return Err(RequestError::Json("expected an object".into())),
    }
    let scan: Scan<'_> = serde_json::from_str(text).map_err(|e| RequestError::Json(e.to_string()))?;
    let model = optional::<String>(scan.model, "model", "a string")?;
    if model.as_deref() == Some("") {
        return Err(wrong("model", "`model` must not be empty"));
    }
    if model.as_ref().is_some_and(|model| model.len() > MAX_MODEL_BYTES) {
        return Err(wrong("model", &format!("`model` is longer than {MAX_MODEL_BYTES} bytes")));
    }
    let stream = optional::<bool>(scan.stream, "stream", "true or false")?.unwrap_or(false);
    let mut n = count_of(scan.n, "n")?.unwrap_or(1);
    let mut max_output_tokens = match count_of(scan.max_completion_tokens, "max_completion_tokens")? {
        Some(tokens) => Some(tokens),
        None => count_of(scan.max_tokens, "max_tokens")?,
    };
    let (mut prompts, mut media) = (1, false);
    let prompt = match api {
        Api::Chat => {
            let messages = required(scan.messages, "messages")?;
            if !messages.get().starts_with('[') {
                return Err(wrong("messages", "`messages` must be an array"));
            }
            match present(scan.input_ids) {
                Some(ids) => count::ids(ids, "input_ids", &mut prompts)?,
                None => {
                    let (bytes, of_media) = count::chat(messages.get());
                    media = of_media;
                    PromptSize::TextBytes(bytes + present(scan.tools).map_or(0, text_bytes))
                }
            }
        }
        Api::Completions => count::prompt(required(scan.prompt, "prompt")?, "prompt", &mut prompts)?,
        Api::Embeddings => count::prompt(required(scan.input, "input")?, "input", &mut prompts)?,
        Api::Generate => {
            // SGLang reads neither at the top level here, and its own default applies.
            (max_output_tokens, n) = (None, 1);
            if let Some(sampling) = present(scan.sampling_params).filter(|s| s.get().starts_with('{')) {
                let sampling: Sampling<'_> = serde_json::from_str(sampling.get())
                    .map_err(|e| wrong("sampling_params", &format!("`sampling_params`: {e}")))?;
                max_output_tokens = count_of(sampling.max_new_tokens, "sampling_params.max_new_tokens")?;
                n = count_of(sampling.n, "sampling_params.n")?.unwrap_or(1);
            }
            match (present(scan.text), present(scan.input_ids), present(scan.input_embeds)) {
                (Some(text), None, None) => count::texts(text, "text", &mut prompts)?,
                (None, Some(ids), None) => count::ids(ids, "input_ids", &mut prompts)?,
                (None, None, Some(embeds)) => PromptSize::TextBytes(text_bytes(embeds)),
                _ => return Err(wrong("text", "send exactly one of `text`, `input_ids` and `input_embeds`")),
            }
        }
    };
    let sequences = prompts.max(1).saturating_mul(n.max(1));
    if sequences > MAX_SEQUENCES {
        return Err(wrong("n", &format!("prompts times `n` is {sequences}; at most {MAX_SEQUENCES} are served")));
    }
    let batch = prompts != 1 || scan.input_is_list(api);
    let of_text = matches!(prompt, PromptSize::TextBytes(_)) && !batch && !media;
    Ok(RequestFacts {
        text: scan.prompt_text(api).filter(|_| of_text).and_then(|raw| PromptText::of(text, raw)),
        model,
        stream: stream && api != Api::Embeddings,
        prompt,
        max_output_tokens,
        sequences,
        batch,
        rid: scan.rid.map(|raw| span(text, raw.get())),
        priority: optional(scan.priority, "priority", "an integer of 64 bits")?,
        priority_at: scan.priority.map(|raw| span(text, raw.get())),
        service_tier: present(scan.service_tier).and_then(|raw| serde_json::from_str(raw.get()).ok()),
    })
}

impl<'a> Scan<'a> {
    /// What a prompt's text is made of.
    fn prompt_text(&self, api: Api) -> Option<text::Raw<'a>> {
        let spans = match api {
            Api::Chat => [present(self.tools), self.messages],
            Api::Completions => [self.prompt, None],
            Api::Generate => [Some(present(self.text)?), None],
            Api::Embeddings => return None,
        };
        let (cache_salt, lora, extra_key) = (self.cache_salt, self.lora_path, self.extra_key);
        Some(text::Raw { spans, cache_salt, lora, extra_key })
    }

    /// `/generate` answers a list with a list even when it has one element.
    fn input_is_list(&self, api: Api) -> bool {
        let list_of_lists = |raw: &RawValue| raw.get()[1..].trim_ascii_start().starts_with('[');
        match api {
            Api::Generate => {
                present(self.text).is_some_and(|t| t.get().starts_with('['))
                    || present(self.input_ids).is_some_and(list_of_lists)
            }
            _ => false,
        }
    }
}

fn present(raw: Option<&RawValue>) -> Option<&RawValue> {
    raw.filter(|raw| raw.get() != "null")
}

fn required<'a>(raw: Option<&'a RawValue>, param: &'static str) -> Result<&'a RawValue, RequestError> {
    present(raw).ok_or_else(|| wrong(param, &format!("`{param}` is missing")))
}

fn wrong(param: &'static str, message: &str) -> RequestError {
    RequestError::Field { param, message: message.to_owned() }
}

fn optional<'a, T: Deserialize<'a>>(
    raw: Option<&'a RawValue>,
    param: &'static str,
    wanted: &str,
) -> Result<Option<T>, RequestError> {
    present(raw)
        .map(|raw| serde_json::from_str(raw.get()).map_err(|_| wrong(param, &format!("`{param}` must be {wanted}"))))
        .transpose()
}

/// A count that may be absent. Negative, fractional and overflowing values are the client's mistake.
fn count_of(raw: Option<&RawValue>, param: &'static str) -> Result<Option<u64>, RequestError> {
    let count = optional::<u64>(raw, param, "a whole number that is not negative")?;
    match count {
        Some(count) if count > u64::from(u32::MAX) => Err(wrong(param, &format!("`{param}` is absurdly large"))),
        other => Ok(other),
    }
}

fn text_bytes(raw: &RawValue) -> u64 {
    raw.get().len() as u64
}

/// Where `part` lies in `whole`; `part` was borrowed from it.
fn span(whole: &str, part: &str) -> std::ops::Range<usize> {
    let start = part.as_ptr() as usize - whole.as_ptr() as usize;
    start..start + part.len()
}
