//! OpenAI's `/v1/completions`; `return_token_ids` as vLLM does (ids per chunk, prompt ids in the first).

use super::State;
use super::body::RankHeader;
use super::completion::{Head, SglExt, SharedSummary, Summary, Usage, Wishes, matched};
use super::errors::ApiError;
use super::fields::Fields;
use super::logprobs::{Names, completion_ask};
use super::params::{LengthRule, check_model, choices, errand, generation, of_choice, rids, room_after, sampling};
use super::prompts::{beside, texts_or_ids};
use super::sse::{self, Framer, push_error, push_event};
use super::urgency::SloHeaders;
use crate::mailbox::{Ticket, Update};
use crate::request::Finish;
use crate::sampling::SamplingParams;
use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

/// OpenAI's own default output length of this route.
const DEFAULT_TOKENS: usize = 16;
/// Prompts times choices.
const MAX_ANSWERS: usize = 512;

pub(crate) async fn handle(
    state: Arc<State>,
    (pinned, slo): (RankHeader, SloHeaders),
    body: Bytes,
) -> Result<Response, ApiError> {
    let shared = Arc::clone(&state);
    let (fields, prompts) = beside(body.len(), move || {
        let fields = Fields::parse(&body)?;
        check_model(&shared, &fields)?;
        let prompts = texts_or_ids(&shared, &fields, "prompt")?;
        Ok::<_, ApiError>((fields, prompts))
    })
    .await?;
    let n = choices(&fields)?;
    if prompts.len() * n > MAX_ANSWERS {
        return Err(ApiError::field("n", format!("prompts times n is more than {MAX_ANSWERS}")));
    }
    let length = LengthRule { names: &["max_tokens", "max_completion_tokens"], default: DEFAULT_TOKENS };
    let errand = errand(&fields, pinned.or_body(&fields)?, slo)?;
    let echo = fields.flag("echo")?;
    let logprobs = completion_ask(&fields, echo)?;
    let wishes = Wishes::read(&fields, SglExt::default())?;
    let ids = rids(&fields, prompts.len() * n)?;
    let head = Head::new(&state, ids.first().cloned().unwrap_or_default());
    let summary = SharedSummary::new(Summary::new(Vec::new(), ids.len()).into());
    let mut parts = Vec::new();
    let mut requests = Vec::new();
    for (index, rid) in ids.into_iter().enumerate() {
        let prompt = &prompts[index / n];
        let room = room_after(&state, "prompt", prompt.len())?;
        let params = sampling(&fields, &length, room, state.vocab_tokens)?;
        let params = SamplingParams { logprobs: logprobs.clone(), ..of_choice(&params, index % n) };
        parts.push(Choice {
            state: Arc::clone(&state),
            head: head.clone(),
            wishes,
            index,
            n,
            prompt: prompt.clone(),
            echo,
            logprobs: logprobs.is_some(),
            began: false,
            offset: 0,
            summary: Arc::clone(&summary),
            whole: Update::default(),
        });
        requests.push(generation(&errand, rid, prompt.clone(), params));
    }
    let tickets = state.submit_all(&fields, requests).await?;
    if wishes.stream {
        let parts = tickets.into_iter().zip(parts).map(|(ticket, part)| (ticket, Box::new(part) as Box<dyn Framer>));
        return Ok(sse::response(&state, parts.collect(), move |out| {
            summary.lock().last_chunks(&head, "text_completion", &wishes, out);
        }));
    }
    let mut answers = Vec::with_capacity(parts.len());
    for (mut ticket, mut part) in tickets.into_iter().zip(parts) {
        let whole = sse::collect(&state, &mut ticket).await;
        if let Some(error) = whole.finish.as_ref().and_then(ApiError::of_finish) {
            return Err(error);
        }
        answers.push(part.json(&whole));
        summary.lock().end(part.index, n, &ticket, &whole);
    }
    let mut answer = head.json("text_completion", answers);
    let summary = summary.lock();
    answer["usage"] = summary.usage();
    if let Some(sglext) = summary.sglext(wishes.sglext) {
        answer["sglext"] = sglext;
    }
    Ok(Json(answer).into_response())
}

struct Choice {
    state: Arc<State>,
    head: Head,
    wishes: Wishes,
    index: usize,
    n: usize,
    prompt: Vec<u32>,
    /// The prompt's text comes before the answer.
    echo: bool,
    logprobs: bool,
    began: bool,
    /// Characters before the next token, for log-probabilities.
    offset: usize,
    summary: SharedSummary,
    whole: Update,
}

impl Choice {
    fn json(&mut self, update: &Update) -> Value {
        let first = !std::mem::replace(&mut self.began, true);
        let mut text = String::new();
        if first && self.echo {
            text = self.state.text().decode(&self.prompt);
        }
        text.push_str(&update.text);
        let mut logprobs = Value::Null;
        if self.logprobs {
            let names = Names { state: &self.state, as_ids: self.wishes.names_as_ids };
            let echoed = if first && self.echo { self.prompt.as_slice() } else { &[] };
            logprobs = names.completion(echoed, update, &mut self.offset);
        }
        let finish = update.finish.as_ref();
        let mut choice = json!({
            "index": self.index, "text": text, "logprobs": logprobs, "finish_reason": finish.map(Finish::openai),
        });
        if finish.is_some() {
            choice["matched_stop"] = matched(finish);
        }
        if self.wishes.token_ids {
            if first {
                choice["prompt_token_ids"] = json!(self.prompt);
            }
            choice["token_ids"] = json!(update.ids);
        }
        choice
    }
}

impl Framer for Choice {
    fn frame(&mut self, ticket: &Ticket, update: &Update, out: &mut String) {
        self.whole.absorb(update.clone());
        if let Some(error) = update.finish.as_ref().and_then(ApiError::of_finish) {
            push_error(out, &error);
            return;
        }
        if !update.text.is_empty() || update.finish.is_some() || self.wishes.token_ids || self.logprobs {
            let choice = self.json(update);
            let mut chunk = self.head.json("text_completion", vec![choice]);
            if self.wishes.continuous_usage {
                chunk["usage"] = Usage::of(ticket, &self.whole).json();
            }
            push_event(out, &chunk);
        }
        if update.finish.is_some() {
            self.summary.lock().end(self.index, self.n, ticket, &self.whole);
        }
    }
}
