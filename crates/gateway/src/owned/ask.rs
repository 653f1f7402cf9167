//! What a body asks for besides its prompt, as far as it is understood here in full.

use plimsoll_protocol::chat_template::RESERVED;
use plimsoll_protocol::request::{Api, RequestFacts};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::HashMap;

#[cfg(test)]
mod tests;

/// Understood in full: an engine's token route can be asked for the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask {
    /// Text completions instead of a chat.
    pub plain: bool,
    pub stream: bool,
    /// `stream_options.include_usage`.
    pub include_usage: bool,
    pub max_tokens: Option<u64>,
    pub stops: Vec<String>,
    pub skip_special_tokens: bool,
    /// Other sampling parameters under OpenAI's and vLLM's names, as the client wrote them.
    pub sampling: Vec<(&'static str, Value)>,
    /// What the model's `generation_config.json` recommends and the request leaves open.
    pub recommended: Vec<(&'static str, Value)>,
}

/// Names in `generation_config.json` that engines may take as defaults.
pub(crate) const RECOMMENDED: [&str; 5] = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];

/// Parameters that are copied, and what they must be.
type Fits = fn(&Value) -> bool;
const COPIED: [(&str, Fits); 11] = [
    ("temperature", Value::is_number),
    ("top_p", Value::is_number),
    ("min_p", Value::is_number),
    ("top_k", Value::is_i64),
    ("frequency_penalty", Value::is_number),
    ("presence_penalty", Value::is_number),
    ("repetition_penalty", Value::is_number),
    ("seed", Value::is_i64),
    ("ignore_eos", Value::is_boolean),
    ("logit_bias", Value::is_object),
    ("stop_token_ids", |value| value.as_array().is_some_and(|list| list.iter().all(Value::is_u64))),
];
/// Read elsewhere: by the scan, or by whoever renders the prompt.
const ELSEWHERE: [&str; 11] = [
    "model",
    "messages",
    "prompt",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "rid",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
];

/// # Errors
/// In a word, why the engine has to read the body itself.
pub(crate) fn read(
    api: Api,
    facts: &RequestFacts,
    body: &[u8],
    config: &Map<String, Value>,
) -> Result<Ask, &'static str> {
    if !matches!(api, Api::Chat | Api::Completions) {
        return Err("route");
    }
    if facts.sequences != 1 || facts.batch {
        return Err("n");
    }
    let fields: HashMap<String, &RawValue> = serde_json::from_slice(body).map_err(|_| "field")?;
    if api == Api::Chat && !usual(&fields) {
        return Err("value");
    }
    if facts.max_output_tokens == Some(0) {
        return Err("value");
    }
    let mut ask = Ask {
        plain: api == Api::Completions,
        stream: facts.stream,
        max_tokens: facts.max_output_tokens,
        skip_special_tokens: true,
        ..Ask::default()
    };
    let mut min_tokens = false;
    for (name, raw) in &fields {
        let name = name.as_str();
        if raw.get() == "null" || ELSEWHERE.contains(&name) {
            continue;
        }
        if raw.get().len() > MOST_BYTES {
            return Err("field");
        }
        let value: Value = serde_json::from_str(raw.get()).map_err(|_| "field")?;
        if let Some((name, fits)) = COPIED.iter().find(|(copied, _)| *copied == name) {
            if !fits(&value) {
                return Err("value");
            }
            ask.sampling.push((name, value));
            continue;
        }
        match name {
            "stop" => ask.stops = stops(value).ok_or("value")?,
            "skip_special_tokens" => ask.skip_special_tokens = value.as_bool().ok_or("value")?,
            "min_tokens" => {
                min_tokens = value.as_u64().ok_or("value")? > 0;
                ask.sampling.push(("min_tokens", value));
            }
            "stream_options" => ask.include_usage = include_usage(&value).ok_or("stream_options")?,
            "reasoning_effort" if value.is_string() => {}
            "n" | "best_of" if value == 1 => {}
            "logprobs" | "echo" | "parallel_tool_calls" if value == false => {}
            "tools" if value.as_array().is_some_and(Vec::is_empty) => {}
            "tool_choice" if value == "none" || value == "auto" => {}
            "response_format" if value["type"] == "text" => {}
            // Said about the client, for logs; said to the gateway.
            "user" | "service_tier" if value.is_string() => {}
            "priority" if value.is_i64() => {}
            "logprobs" | "top_logprobs" | "prompt_logprobs" => return Err("logprobs"),
            "tools" | "tool_choice" | "parallel_tool_calls" | "functions" | "function_call" => return Err("tools"),
            "response_format" => return Err("response_format"),
            _ => return Err("field"),
        }
    }
    // Some engines look for stop strings before the minimum is reached, others do not.
    if min_tokens && !ask.stops.is_empty() {
        return Err("min_tokens");
    }
    let open = |name: &&str| !ask.sampling.iter().any(|(given, _)| given == name);
    let recommended = RECOMMENDED.into_iter().filter(open);
    ask.recommended = recommended.filter_map(|name| Some((name, config.get(name)?.clone()))).collect();
    Ok(ask)
}

/// A chat that engines agree on. What is odd about another one is for its engine to refuse, or to make sense of.
fn usual(fields: &HashMap<String, &RawValue>) -> bool {
    #[derive(serde::Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        role: Cow<'a, str>,
    }
    const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
    let flag = |name: &str| fields.get(name).map(|raw| raw.get());
    let messages = fields.get("messages").and_then(|raw| serde_json::from_str::<Vec<Message<'_>>>(raw.get()).ok());
    let known = messages.is_some_and(|messages| {
        !messages.is_empty() && messages.iter().all(|message| ROLES.contains(&message.role.as_ref()))
    });
    let kwargs = fields.get("chat_template_kwargs").filter(|raw| raw.get() != "null");
    let kwargs = kwargs.map(|raw| serde_json::from_str::<Map<String, Value>>(raw.get()));
    let own = |name: &String| RESERVED.contains(&name.as_str()) || name == "continue_final_message";
    let free = kwargs.is_none_or(|kwargs| kwargs.is_ok_and(|kwargs| !kwargs.keys().any(own)));
    let both = flag("continue_final_message") == Some("true") && flag("add_generation_prompt") == Some("true");
    known && free && !both
}

/// Parameters are small; a tool list or a schema is the engine's to read.
const MOST_BYTES: usize = 64 << 10;

fn stops(value: Value) -> Option<Vec<String>> {
    let list = match value {
        Value::String(stop) => vec![stop],
        Value::Array(list) => list
            .into_iter()
            .map(|stop| if let Value::String(stop) = stop { Some(stop) } else { None })
            .collect::<Option<_>>()?,
        _ => return None,
    };
    list.iter().all(|stop| !stop.is_empty()).then_some(list)
}

/// `None` where something else is asked for.
fn include_usage(options: &Value) -> Option<bool> {
    let options = options.as_object()?;
    options.keys().all(|name| name == "include_usage").then_some(())?;
    options.get("include_usage").map_or(Some(false), Value::as_bool)
}
