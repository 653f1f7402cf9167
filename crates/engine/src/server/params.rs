//! Sampling parameters and the parts that all generation bodies share.

use super::State;
use super::errors::ApiError;
use super::fields::{Fields, token_id, token_ids};
use super::urgency::SloHeaders;
use crate::kv_events::Owner;
use crate::namespace::{MAX_KEY_BYTES, Namespace};
use crate::request::{Request, Task};
use crate::sampling::SamplingParams;
use crate::sampling::limits::{MAX_BIASES, MAX_STOP_BYTES, MAX_STOP_IDS, MAX_STOPS};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a route names and defaults the output length.
pub(crate) struct LengthRule {
    /// First name that is present counts.
    pub(crate) names: &'static [&'static str],
    pub(crate) default: usize,
}

/// Fields that ask for something this engine cannot do, and the value that means "off".
pub(crate) fn refuse_unsupported(fields: &Fields) -> Result<(), ApiError> {
    let zero = |value: &Value| value.as_f64() == Some(0.0);
    let off = |value: &Value| matches!(value, Value::Bool(false)) || zero(value);
    let empty = |value: &Value| match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(list) => list.is_empty(),
        other => other == "",
    };
    type Off<'a> = &'a dyn Fn(&Value) -> bool;
    let checks: &[(&str, Off<'_>)] = &[
        ("best_of", &|value| value == &Value::from(1)),
        ("use_beam_search", &off),
        ("prompt_logprobs", &off),
        ("suffix", &empty),
        ("json_schema", &empty),
        ("regex", &empty),
        ("ebnf", &empty),
        ("structural_tag", &empty),
        ("structured_outputs", &empty),
        ("guided_json", &empty),
        ("guided_regex", &empty),
        ("guided_grammar", &empty),
        ("stop_regex", &empty),
        ("custom_logit_processor", &empty),
        ("guided_choice", &empty),
        ("allowed_token_ids", &empty),
        ("bad_words", &empty),
        ("logits_processors", &empty),
        ("logprob_token_ids", &empty),
        ("length_penalty", &|value| value.as_f64() == Some(1.0)),
        ("truncate_prompt_tokens", &|value| value == &Value::from(-1)),
        ("functions", &empty),
        ("function_call", &|value| value == "none" || value == "auto"),
        ("modalities", &|value| value == &Value::from(vec!["text"])),
        ("audio", &empty),
        ("prompt_embeds", &empty),
        ("input_embeds", &empty),
        ("lora_path", &empty),
        ("response_format", &|value| value.get("type") == Some(&Value::from("text"))),
    ];
    for (name, is_off) in checks {
        if let Some(value) = fields.get(name)
            && !is_off(value)
        {
            return Err(ApiError::field(name, format!("{value} is not supported by this engine")));
        }
    }
    Ok(())
}

/// Most answers to one prompt.
const MAX_CHOICES: i64 = 128;

/// How many answers to each prompt: `n`.
pub(crate) fn choices(fields: &Fields) -> Result<usize, ApiError> {
    match fields.integer("n")? {
        None => Ok(1),
        Some(n @ 1..=MAX_CHOICES) => Ok(n as usize),
        Some(n) => Err(ApiError::field("n", format!("{n} is not between 1 and {MAX_CHOICES}"))),
    }
}

/// The parameters of choice `index` of `n`: a seed that was given counts up (vLLM), so that the choices differ and each
/// can be had again.
pub(crate) fn of_choice(params: &SamplingParams, index: usize) -> SamplingParams {
    SamplingParams { seed: params.seed.map(|seed| seed.wrapping_add(index as u64)), ..params.clone() }
}

/// Everything but log-probabilities, which each API asks for in its own way.
pub(crate) fn sampling(
    fields: &Fields,
    length: &LengthRule,
    room: usize,
    vocab_tokens: usize,
) -> Result<SamplingParams, ApiError> {
    refuse_unsupported(fields)?;
    let mut max_new_tokens = None;
    for name in length.names {
        let asked = fields.count(name)?;
        if let Some(asked) = asked.filter(|asked| *asked > room) {
            return Err(ApiError::field(
                name,
                format!("{asked} more tokens do not fit: the context has room for {room} after the prompt"),
            ));
        }
        max_new_tokens = max_new_tokens.or(asked);
    }
    let stop = fields.texts("stop")?;
    if stop.len() > MAX_STOPS || stop.iter().any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        return Err(ApiError::field("stop", "use at most 16 strings of 1 to 1024 bytes"));
    }
    let stop_token_ids = match fields.get("stop_token_ids") {
        None => Vec::new(),
        Some(Value::Array(list)) if list.len() <= MAX_STOP_IDS => token_ids("stop_token_ids", list, vocab_tokens)?,
        Some(_) => return Err(ApiError::field("stop_token_ids", "expected a list of at most 64 token ids")),
    };
    let top_k = match fields.integer("top_k")? {
        None | Some(-1 | 0) => None,
        Some(k) if k > 0 => Some(k as usize),
        Some(k) => return Err(ApiError::field("top_k", format!("{k} is neither -1 nor at least 1"))),
    };
    let top_p = fields.number("top_p", 0.0, 1.0)?.unwrap_or(1.0);
    if top_p <= 0.0 {
        return Err(ApiError::field("top_p", "must be above 0"));
    }
    let seed = match fields.integer("seed")? {
        Some(seed) => Some(seed),
        None => fields.integer("sampling_seed")?,
    };
    let max_new_tokens = max_new_tokens.unwrap_or(length.default.min(room));
    let repetition_penalty = fields.number("repetition_penalty", 0.0, 2.0)?.unwrap_or(1.0);
    if repetition_penalty <= 0.0 {
        return Err(ApiError::field("repetition_penalty", "must be above 0"));
    }
    Ok(SamplingParams {
        max_new_tokens,
        min_new_tokens: min_tokens(fields, max_new_tokens)?,
        temperature: fields.number("temperature", 0.0, 100.0)?.unwrap_or(1.0),
        top_p,
        top_k,
        min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(0.0),
        seed: seed.map(|seed| seed as u64),
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        repetition_penalty,
        logit_bias: logit_bias(fields, vocab_tokens)?,
        stop,
        stop_token_ids,
        ignore_eos: fields.flag("ignore_eos")?,
        no_stop_trim: fields.flag("no_stop_trim")? || fields.flag("include_stop_str_in_output")?,
        skip_special_tokens: fields.flag_or("skip_special_tokens", true)?,
        logprobs: None,
    })
}

/// SGLang's and vLLM's names; at most the maximum.
fn min_tokens(fields: &Fields, max_new_tokens: usize) -> Result<usize, ApiError> {
    for name in ["min_new_tokens", "min_tokens"] {
        if let Some(asked) = fields.integer(name)? {
            let fits = usize::try_from(asked).ok().filter(|min| *min <= max_new_tokens);
            let wrong =
                || ApiError::field(name, format!("{asked} is not between 0 and the {max_new_tokens} output tokens"));
            return fits.ok_or_else(wrong);
        }
    }
    Ok(0)
}

/// OpenAI's object of token id -> -100 to 100.
fn logit_bias(fields: &Fields, vocab_tokens: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let wrong = |what: String| ApiError::field("logit_bias", what);
    let map = match fields.get("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) if map.len() <= MAX_BIASES => map,
        Some(_) => return Err(wrong(format!("expected an object of at most {MAX_BIASES} token ids"))),
    };
    let entry = |(id, bias): (&String, &Value)| {
        let id = token_id("logit_bias", id.parse().ok(), id, vocab_tokens)?;
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        Ok((id, bias.ok_or_else(|| wrong("every bias is a number from -100 to 100".to_owned()))? as f32))
    };
    // A map has each id once, but "7" and "07" are the same: the last one counts.
    let entries: BTreeMap<u32, f32> = map.iter().map(entry).collect::<Result<_, ApiError>>()?;
    Ok(entries.into_iter().collect())
}

/// Room for output after a prompt, or why the prompt cannot be served.
pub(crate) fn room_after(state: &State, name: &str, prompt_tokens: usize) -> Result<usize, ApiError> {
    let context = state.context_tokens;
    if prompt_tokens == 0 {
        return Err(ApiError::field(name, "is empty"));
    }
    if prompt_tokens >= context {
        return Err(ApiError {
            code: "context_length_exceeded",
            ..ApiError::field(
                name,
                format!(
                    "The input ({prompt_tokens} tokens) is longer than the model's context length ({context} tokens)."
                ),
            )
        });
    }
    Ok(context - prompt_tokens)
}

/// Whose KV the request computes: requests with different salts or extra keys share none.
fn owner(fields: &Fields) -> Result<Arc<Owner>, ApiError> {
    let key = |name| match fields.text(name)? {
        Some(text) if text.len() > MAX_KEY_BYTES => {
            Err(ApiError::field(name, format!("use at most {MAX_KEY_BYTES} bytes")))
        }
        text => Ok(text.map(Arc::from)),
    };
    let namespace = Namespace { extra_key: key("extra_key")?, cache_salt: key("cache_salt")?, lora: None };
    Ok(Arc::new(Owner { namespace, session_id: key("session_id")? }))
}

/// Request ids of a body with `count` inputs: given ones, `{rid}_{i}` for a batch under one, else fresh.
pub(crate) fn rids(fields: &Fields, count: usize) -> Result<Vec<String>, ApiError> {
    let given = fields.texts("rid")?;
    let single = !matches!(fields.get("rid"), Some(Value::Array(_)));
    if given.iter().any(|rid| rid.is_empty() || rid.len() > 256) {
        return Err(ApiError::field("rid", "use 1 to 256 bytes"));
    }
    match given.as_slice() {
        [] => Ok((0..count).map(|_| fresh_id()).collect()),
        [rid] if single && count > 1 => Ok((0..count).map(|index| format!("{rid}_{index}")).collect()),
        list if list.len() == count => Ok(given),
        list => Err(ApiError::field("rid", format!("{} ids for {count} inputs", list.len()))),
    }
}

pub(crate) fn fresh_id() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

/// The model's name when the body names one.
pub(crate) fn check_model(state: &State, fields: &Fields) -> Result<(), ApiError> {
    match fields.text("model")? {
        Some(model) if model != state.config.model_name => Err(ApiError {
            param: Some("model".to_owned()),
            ..ApiError::new(
                404,
                "model_not_found",
                format!("model: {model:?} is not served here, {:?} is", state.config.model_name),
            )
        }),
        _ => Ok(()),
    }
}

/// What a body says about how its requests are to be served, whatever they are: a request without id, prompt and task.
pub(crate) fn errand(fields: &Fields, rank: Option<usize>, slo: SloHeaders) -> Result<Request, ApiError> {
    let urgency = slo.and_body(fields)?;
    Ok(Request { owner: owner(fields)?, rank, urgency, ..Request::new(String::new(), Vec::new(), Task::Embed) })
}

/// A generation request from its parts.
pub(crate) fn generation(errand: &Request, rid: String, prompt: Vec<u32>, params: SamplingParams) -> Request {
    Request { rid, prompt, task: Task::Generate(params), ..errand.clone() }
}

/// The rank that a body pins its requests to, under SGLang's name or its older one.
pub(crate) fn pinned_rank(fields: &Fields) -> Result<Option<usize>, ApiError> {
    for name in ["routed_dp_rank", "data_parallel_rank"] {
        if let Some(rank) = fields.integer(name)? {
            return usize::try_from(rank).map(Some).map_err(|_| ApiError::field(name, "must not be negative"));
        }
    }
    Ok(None)
}
