//! From a body to the token ids of its prompts.

use super::State;
use super::errors::ApiError;
use super::fields::{Fields, IdLists, known_ids, token_ids};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use plimsoll_protocol::chat_template::messages::SGLANG_JOINT;
use plimsoll_protocol::chat_template::{Conversation, RESERVED, TemplateError};
use serde_json::{Map, Value};

/// Prompts, or inputs, of one body.
const MAX_PROMPTS: usize = 256;
/// Roles of OpenAI's API. Which of them a model takes is for its template to say.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
/// Bodies up to this size are read and tokenised where they arrive: a millisecond.
const SMALL_BYTES: usize = 32 << 10;

/// Does the work of a body of this size: on a thread of its own where it is so large that other requests would wait.
pub(crate) async fn beside<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= SMALL_BYTES {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // The work cannot be cancelled, so it has panicked: as it would have here.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Token ids of a plain prompt.
pub(crate) fn encode(state: &State, name: &str, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, ApiError> {
    state.text().encode(text, add_special_tokens).map_err(|error| ApiError::field(name, error))
}

/// `name`: a text, token ids, or a list of either.
pub(crate) fn texts_or_ids(state: &State, fields: &Fields, name: &str) -> Result<Vec<Vec<u32>>, ApiError> {
    let wrong = || ApiError::field(name, "expected a string, a list of strings, token ids or lists of token ids");
    let special = fields.flag_or("add_special_tokens", true)?;
    let one = |value: &Value| match value {
        Value::String(text) => encode(state, name, text, special),
        Value::Array(ids) => token_ids(name, ids, state.vocab_tokens),
        _ => Err(wrong()),
    };
    let known = |ids: &Vec<u32>| known_ids(name, ids, state.vocab_tokens);
    match fields.ids(name) {
        Some(IdLists::One(ids)) => return Ok(vec![known(ids)?]),
        Some(IdLists::Many(lists)) if lists.len() <= MAX_PROMPTS => return lists.iter().map(known).collect(),
        Some(IdLists::Many(_)) => return Err(ApiError::field(name, format!("send 1 to {MAX_PROMPTS}"))),
        None => {}
    }
    match fields.get(name) {
        Some(text @ Value::String(_)) => Ok(vec![one(text)?]),
        Some(ids @ Value::Array(list)) if list.first().is_some_and(Value::is_number) => Ok(vec![one(ids)?]),
        Some(Value::Array(list)) if (1..=MAX_PROMPTS).contains(&list.len()) => list.iter().map(one).collect(),
        Some(Value::Array(_)) => Err(ApiError::field(name, format!("send 1 to {MAX_PROMPTS}"))),
        _ => Err(wrong()),
    }
}

/// The prompt of a chat body: its conversation through the chat template, or `input_ids` (SGLang) as they are.
pub(crate) fn conversation(state: &State, fields: &Fields) -> Result<Vec<u32>, ApiError> {
    match fields.ids("input_ids") {
        Some(IdLists::One(ids)) => return known_ids("input_ids", ids, state.vocab_tokens),
        Some(IdLists::Many(_)) => return Err(ApiError::field("input_ids", "expected token ids")),
        None => {}
    }
    if let Some(ids) = fields.get("input_ids") {
        let Value::Array(ids) = ids else { return Err(ApiError::field("input_ids", "expected token ids")) };
        return token_ids("input_ids", ids, state.vocab_tokens);
    }
    let text = render(state, fields)?;
    encode(state, "messages", &text, fields.flag_or("add_special_tokens", false)?)
}

fn render(state: &State, fields: &Fields) -> Result<String, ApiError> {
    let list = messages(fields)?;
    let tools = tools(fields)?;
    let Some(template) = state.text().template(tools.is_some()) else {
        return Err(ApiError::field("messages", "this model has no chat template: use /v1/completions"));
    };
    for name in ["chat_template", "documents"] {
        if fields.get(name).is_some() {
            return Err(ApiError::field(name, "is not taken with a request"));
        }
    }
    let messages = template
        .prepare(list.to_vec(), SGLANG_JOINT)
        .map_err(|error| ApiError::field(&format!("messages[{}]{}", error.index, error.field), error.what))?;
    let go_on = fields.flag("continue_final_message")?;
    let asked = fields.flag_or("add_generation_prompt", !go_on)?;
    if go_on && asked {
        return Err(ApiError::field("continue_final_message", "cannot be had together with add_generation_prompt"));
    }
    let extra = extra(fields)?;
    let conversation = Conversation {
        messages: &messages,
        tools,
        add_generation_prompt: asked,
        continue_final_message: go_on,
        extra: Some(&extra),
        now: now(state),
    };
    template.render(&conversation).map_err(|error| match error {
        TemplateError::Continue(_) => ApiError::field("continue_final_message", error),
        // The template's own words about this conversation.
        _ => ApiError::field("messages", error),
    })
}

fn messages(fields: &Fields) -> Result<&[Value], ApiError> {
    let Some(Value::Array(list)) = fields.get("messages") else {
        return Err(ApiError::field("messages", "expected a list of messages"));
    };
    if list.is_empty() {
        return Err(ApiError::field("messages", "is empty"));
    }
    for (index, message) in list.iter().enumerate() {
        if let Some(role) = message.get("role").and_then(Value::as_str)
            && !ROLES.contains(&role)
        {
            let what = format!("{role:?} is not one of {}", ROLES.join(", "));
            return Err(ApiError::field(&format!("messages[{index}].role"), what));
        }
    }
    Ok(list)
}

/// The tools that the model may call; none with `tool_choice: "none"`, as in SGLang. Nothing can force a call here.
fn tools(fields: &Fields) -> Result<Option<&Value>, ApiError> {
    let choice = match fields.get("tool_choice") {
        None => "auto",
        Some(Value::String(choice)) if choice == "auto" || choice == "none" => choice,
        Some(other) => {
            return Err(ApiError::field("tool_choice", format!("{other} is not supported by this engine, use auto")));
        }
    };
    let tools = match fields.get("tools") {
        None => return Ok(None),
        Some(Value::Array(list)) if list.is_empty() => return Ok(None),
        Some(tools @ Value::Array(list)) => {
            let named = |tool: &Value| tool["function"]["name"].is_string();
            if let Some(index) = list.iter().position(|tool| !named(tool)) {
                return Err(ApiError::field(&format!("tools[{index}]"), "expected {\"function\": {\"name\": ...}}"));
            }
            tools
        }
        Some(_) => return Err(ApiError::field("tools", "expected a list of tools")),
    };
    Ok((choice == "auto").then_some(tools))
}

/// Variables for the template: `chat_template_kwargs`, and `reasoning_effort` under its name.
fn extra(fields: &Fields) -> Result<Map<String, Value>, ApiError> {
    let mut extra = match fields.get("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(_) => return Err(ApiError::field("chat_template_kwargs", "expected an object")),
    };
    if let Some(name) = extra.keys().find(|name| RESERVED.contains(&name.as_str())) {
        return Err(ApiError::field("chat_template_kwargs", format!("{name} is a field of the request")));
    }
    if let Some(effort) = fields.text("reasoning_effort")? {
        extra.insert("reasoning_effort".to_owned(), Value::from(effort));
    }
    Ok(extra)
}

/// The local time, for templates that print the date.
fn now(state: &State) -> DateTime {
    let now = Timestamp::from_second(state.faults.wall_clock_s() as i64).unwrap_or(Timestamp::UNIX_EPOCH);
    TimeZone::system().to_datetime(now)
}
