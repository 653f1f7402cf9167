//! OpenAI's `/v1/completions`; `return_token_ids` as vLLM does (ids per chunk, prompt ids in the first).

use super::State;
use super::body::RankHeader;
use super::completion::{Head, SharedUsage, Usage, matched};
use super::errors::ApiError;
use super::fields::{Fields, token_ids};
use super::params::{LengthRule, check_model, generation, owner, rids, room_after, sampling};
use super::sse::{self, Framer, push_error, push_event};
use crate::mailbox::{Ticket, Update};
use crate::request::{Finish, Request};
use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

/// OpenAI's own default output length of this route.
const DEFAULT_TOKENS: usize = 16;
const MAX_PROMPTS: usize = 256;

pub(crate) async fn handle(state: Arc<State>, pinned: RankHeader, body: Bytes) -> Result<Response, ApiError> {
    let fields = Fields::parse(&body)?;
    check_model(&state, &fields)?;
    let prompts = prompts(&state, &fields)?;
    let length = LengthRule { names: &["max_tokens", "max_completion_tokens"], default: DEFAULT_TOKENS };
    let (owner, rank) = (owner(&fields)?, pinned.or_body(&fields)?);
    let echo = fields.flag("echo")?;
    let return_ids = fields.flag("return_token_ids")?;
    let include_usage = fields.object("stream_options")?.flag("include_usage")?;
    let stream = fields.flag("stream")?;
    let ids = rids(&fields, prompts.len())?;
    let head = Head::new(&state, ids.first().cloned().unwrap_or_default());
    let mut choices = Vec::new();
    let mut requests = Vec::new();
    for (index, (prompt, rid)) in prompts.into_iter().zip(ids).enumerate() {
        let room = room_after(&state, "prompt", prompt.len())?;
        let params = sampling(&fields, &length, room)?;
        choices.push(Choice {
            head: head.clone(),
            index,
            prompt_ids: return_ids.then(|| prompt.clone()),
            echo: echo.then(|| state.tokenizer.decode(&prompt)),
            return_ids,
            usage: SharedUsage::default(),
            whole: Update::default(),
        });
        requests.push(Request { rank, ..generation(rid, prompt, params, Arc::clone(&owner)) });
    }
    let tickets = state.submit_all(requests)?;
    let mut pairs: Vec<(Ticket, Choice)> = tickets.into_iter().zip(choices).collect();
    if stream {
        let usage = SharedUsage::default();
        for (_, choice) in &mut pairs {
            choice.usage = Arc::clone(&usage);
        }
        let parts = pairs.into_iter().map(|(ticket, choice)| (ticket, Box::new(choice) as Box<dyn Framer>)).collect();
        return Ok(sse::response(&state, parts, move |out| {
            if include_usage && usage.lock().prompt > 0 {
                let mut last = head.json("text_completion", Vec::new());
                last["usage"] = usage.lock().json();
                push_event(out, &last);
            }
        }));
    }
    let mut usage = Usage::default();
    let mut answers = Vec::with_capacity(pairs.len());
    for (mut ticket, mut choice) in pairs {
        let whole = sse::collect(&state, &mut ticket).await;
        if let Some(error) = whole.finish.as_ref().and_then(ApiError::of_finish) {
            return Err(error);
        }
        usage.add(&ticket, &whole);
        answers.push(choice.json(&whole, whole.finish.as_ref()));
    }
    let mut answer = head.json("text_completion", answers);
    answer["usage"] = usage.json();
    Ok(Json(answer).into_response())
}

/// `prompt`: a text, token ids, or a list of either.
fn prompts(state: &State, fields: &Fields) -> Result<Vec<Vec<u32>>, ApiError> {
    let wrong = || ApiError::field("prompt", "expected a string, a list of strings, token ids or lists of token ids");
    let one = |value: &Value| match value {
        Value::String(text) => Ok(state.tokenizer.encode(text)),
        Value::Array(ids) => token_ids("prompt", ids),
        _ => Err(wrong()),
    };
    match fields.get("prompt") {
        Some(Value::String(text)) => Ok(vec![state.tokenizer.encode(text)]),
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => Ok(vec![token_ids("prompt", list)?]),
        Some(Value::Array(list)) if (1..=MAX_PROMPTS).contains(&list.len()) => list.iter().map(one).collect(),
        Some(Value::Array(_)) => Err(ApiError::field("prompt", format!("send 1 to {MAX_PROMPTS} prompts"))),
        _ => Err(wrong()),
    }
}

struct Choice {
    head: Head,
    index: usize,
    /// Sent with the first chunk.
    prompt_ids: Option<Vec<u32>>,
    /// The prompt's text, sent before the answer.
    echo: Option<String>,
    return_ids: bool,
    usage: SharedUsage,
    whole: Update,
}

impl Choice {
    fn json(&mut self, update: &Update, finish: Option<&Finish>) -> Value {
        let text = self.echo.take().unwrap_or_default() + &update.text;
        let mut choice = json!({
            "index": self.index, "text": text, "logprobs": null,
            "finish_reason": finish.map(Finish::openai),
        });
        if finish.is_some() {
            choice["matched_stop"] = matched(finish);
        }
        if let Some(ids) = self.prompt_ids.take() {
            choice["prompt_token_ids"] = json!(ids);
        }
        if self.return_ids {
            choice["token_ids"] = json!(update.ids);
        }
        choice
    }
}

impl Framer for Choice {
    fn frame(&mut self, ticket: &Ticket, update: &Update, out: &mut String) {
        self.whole.ids.extend(&update.ids);
        self.whole.cached_tokens = update.cached_tokens;
        if let Some(error) = update.finish.as_ref().and_then(ApiError::of_finish) {
            push_error(out, &error);
            return;
        }
        if !update.text.is_empty() || update.finish.is_some() || self.return_ids {
            let choice = self.json(update, update.finish.as_ref());
            push_event(out, &self.head.json("text_completion", vec![choice]));
        }
        if update.finish.is_some() {
            self.usage.lock().add(ticket, &self.whole);
        }
    }
}
