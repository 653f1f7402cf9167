//! OpenAI's `/v1/chat/completions`.

use super::State;
use super::body::RankHeader;
use super::completion::{Head, SharedUsage, Usage, matched};
use super::errors::ApiError;
use super::fields::Fields;
use super::params::{LengthRule, check_model, generation, owner, rids, room_after, sampling};
use super::sse::{self, Framer, push_error, push_event};
use crate::chat::{Message, ROLES, render};
use crate::mailbox::{Ticket, Update};
use crate::request::Request;
use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn handle(state: Arc<State>, pinned: RankHeader, body: Bytes) -> Result<Response, ApiError> {
    let fields = Fields::parse(&body)?;
    check_model(&state, &fields)?;
    let prompt = state.tokenizer.encode(&render(&messages(&fields)?));
    let room = room_after(&state, "messages", prompt.len())?;
    let length =
        LengthRule { names: &["max_completion_tokens", "max_tokens"], default: state.config.default_max_tokens };
    let params = sampling(&fields, &length, room)?;
    let rid = rids(&fields, 1)?.pop().unwrap_or_default();
    let head = Head::new(&state, rid.clone());
    let return_ids = fields.flag("return_token_ids")?;
    let prompt_ids = return_ids.then(|| prompt.clone());
    let include_usage = fields.object("stream_options")?.flag("include_usage")?;
    let stream = fields.flag("stream")?;
    let rank = pinned.or_body(&fields)?;
    let request = Request { rank, ..generation(rid, prompt, params, owner(&fields)?) };
    let mut tickets = state.submit_all(vec![request])?;
    if stream {
        let usage = SharedUsage::default();
        let parts = tickets.into_iter().map(|ticket| {
            let framer = Chunks {
                head: head.clone(),
                prompt_ids: prompt_ids.clone(),
                return_ids,
                began: false,
                usage: Arc::clone(&usage),
                whole: Update::default(),
            };
            (ticket, Box::new(framer) as Box<dyn Framer>)
        });
        let parts = parts.collect();
        return Ok(sse::response(&state, parts, move |out| {
            if include_usage && usage.lock().prompt > 0 {
                let mut last = head.json("chat.completion.chunk", Vec::new());
                last["usage"] = usage.lock().json();
                push_event(out, &last);
            }
        }));
    }
    let Some(mut ticket) = tickets.pop() else { return Err(ApiError::new(500, "engine_failed", "no request")) };
    let whole = sse::collect(&state, &mut ticket).await;
    if let Some(error) = whole.finish.as_ref().and_then(ApiError::of_finish) {
        return Err(error);
    }
    let mut choice = json!({
        "index": 0,
        "message": {"role": "assistant", "content": whole.text},
        "logprobs": null,
        "finish_reason": whole.finish.as_ref().map(|finish| finish.openai()),
        "matched_stop": matched(whole.finish.as_ref()),
    });
    if return_ids {
        choice["token_ids"] = json!(whole.ids);
    }
    let mut usage = Usage::default();
    usage.add(&ticket, &whole);
    let mut answer = head.json("chat.completion", vec![choice]);
    answer["usage"] = usage.json();
    if let Some(ids) = prompt_ids {
        answer["prompt_token_ids"] = json!(ids);
    }
    Ok(Json(answer).into_response())
}

/// The conversation of a body, content parts joined.
pub(crate) fn messages(fields: &Fields) -> Result<Vec<Message>, ApiError> {
    let Some(Value::Array(list)) = fields.get("messages") else {
        return Err(ApiError::field("messages", "expected a list of messages"));
    };
    if list.is_empty() {
        return Err(ApiError::field("messages", "is empty"));
    }
    list.iter().enumerate().map(|(index, message)| read_message(index, message)).collect()
}

fn read_message(index: usize, message: &Value) -> Result<Message, ApiError> {
    let wrong = |field: &str, what: &str| ApiError::field(&format!("messages[{index}]{field}"), what);
    let Value::Object(message) = message else { return Err(wrong("", "expected an object")) };
    let role = message.get("role").and_then(Value::as_str).ok_or_else(|| wrong(".role", "expected a string"))?;
    if !ROLES.contains(&role) {
        return Err(wrong(".role", &format!("{role:?} is not one of {}", ROLES.join(", "))));
    }
    let content = match message.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
                (Some("text"), Some(text)) => Ok(text),
                _ => Err(wrong(".content", "only parts {\"type\": \"text\", \"text\": ...} are supported")),
            })
            .collect::<Result<String, _>>()?,
        Some(_) => return Err(wrong(".content", "expected a string or a list of parts")),
    };
    Ok(Message { role: role.to_owned(), content })
}

struct Chunks {
    head: Head,
    /// Sent with the first chunk.
    prompt_ids: Option<Vec<u32>>,
    return_ids: bool,
    began: bool,
    usage: SharedUsage,
    whole: Update,
}

impl Chunks {
    fn chunk(&self, delta: &Value, ids: Option<&[u32]>, finish: Option<&crate::request::Finish>) -> Value {
        let mut choice = json!({
            "index": 0, "delta": delta, "logprobs": null,
            "finish_reason": finish.map(|finish| finish.openai()),
        });
        if finish.is_some() {
            choice["matched_stop"] = matched(finish);
        }
        if let Some(ids) = ids {
            choice["token_ids"] = json!(ids);
        }
        self.head.json("chat.completion.chunk", vec![choice])
    }
}

impl Framer for Chunks {
    fn frame(&mut self, ticket: &Ticket, update: &Update, out: &mut String) {
        self.whole.ids.extend(&update.ids);
        self.whole.cached_tokens = update.cached_tokens;
        if let Some(error) = update.finish.as_ref().and_then(ApiError::of_finish) {
            push_error(out, &error);
            return;
        }
        if !self.began {
            self.began = true;
            let mut first = self.chunk(&json!({"role": "assistant", "content": ""}), None, None);
            if let Some(ids) = self.prompt_ids.take() {
                first["prompt_token_ids"] = json!(ids);
            }
            push_event(out, &first);
        }
        // With ids asked for, a token without text (the end token) is a chunk too: none is lost.
        let ids = self.return_ids.then_some(update.ids.as_slice());
        if !update.text.is_empty() || ids.is_some_and(|ids| !ids.is_empty()) {
            push_event(out, &self.chunk(&json!({"content": update.text}), ids, None));
        }
        if update.finish.is_some() {
            push_event(out, &self.chunk(&json!({}), None, update.finish.as_ref()));
            self.usage.lock().add(ticket, &self.whole);
        }
    }
}
