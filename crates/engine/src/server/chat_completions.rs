//! OpenAI's `/v1/chat/completions`.

use super::State;
use super::body::RankHeader;
use super::completion::{Head, SglExt, SharedSummary, Summary, Usage, Wishes, matched};
use super::errors::ApiError;
use super::fields::Fields;
use super::logprobs::{Names, chat_ask};
use super::params::{LengthRule, check_model, choices, errand, generation, of_choice, rids, room_after, sampling};
use super::prompts::{beside, conversation};
use super::sse::{self, Framer, push_error, push_event};
use super::urgency::SloHeaders;
use crate::mailbox::{Ticket, Update};
use crate::request::Finish;
use crate::sampling::SamplingParams;
use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn handle(
    state: Arc<State>,
    (pinned, slo): (RankHeader, SloHeaders),
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let shared = Arc::clone(&state);
    let (fields, prompt) = beside(body.len(), move || {
        let fields = Fields::parse(&body)?;
        check_model(&shared, &fields)?;
        let prompt = conversation(&shared, &fields)?;
        Ok::<_, ApiError>((fields, prompt))
    })
    .await?;
    let room = room_after(&state, "messages", prompt.len())?;
    let length =
        LengthRule { names: &["max_completion_tokens", "max_tokens"], default: state.config.default_max_tokens };
    let params =
        SamplingParams { logprobs: chat_ask(&fields)?, ..sampling(&fields, &length, room, state.vocab_tokens)? };
    let (n, errand) = (choices(&fields)?, errand(&fields, pinned.or_body(&fields)?, slo)?);
    let wishes = Wishes::read(&fields, wanted_ids(&headers))?;
    let ids = rids(&fields, n)?;
    let head = Head::new(&state, ids.first().cloned().unwrap_or_default());
    let summary = SharedSummary::new(Summary::new(prompt.clone(), n).into());
    let choice = |index| Choice {
        state: Arc::clone(&state),
        head: head.clone(),
        wishes,
        index,
        n,
        prompt_ids: (index == 0 && wishes.token_ids).then(|| prompt.clone()),
        logprobs: params.logprobs.is_some(),
        began: false,
        summary: Arc::clone(&summary),
        whole: Update::default(),
    };
    let parts: Vec<Choice> = (0..n).map(choice).collect();
    let requests = ids.into_iter().enumerate();
    let requests = requests.map(|(index, rid)| generation(&errand, rid, prompt.clone(), of_choice(&params, index)));
    let tickets = state.submit_all(&fields, requests.collect()).await?;
    if wishes.stream {
        let parts = tickets.into_iter().zip(parts).map(|(ticket, part)| (ticket, Box::new(part) as Box<dyn Framer>));
        return Ok(sse::response(&state, parts.collect(), move |out| {
            summary.lock().last_chunks(&head, "chat.completion.chunk", &wishes, out);
        }));
    }
    let mut answers = Vec::with_capacity(n);
    for (mut ticket, part) in tickets.into_iter().zip(parts) {
        let whole = sse::collect(&state, &mut ticket).await;
        if let Some(error) = whole.finish.as_ref().and_then(ApiError::of_finish) {
            return Err(error);
        }
        answers.push(part.json(&whole));
        summary.lock().end(part.index, n, &ticket, &whole);
    }
    let mut answer = head.json("chat.completion", answers);
    let summary = summary.lock();
    answer["usage"] = summary.usage();
    if wishes.token_ids {
        answer["prompt_token_ids"] = json!(prompt);
    }
    if let Some(sglext) = summary.sglext(wishes.sglext) {
        answer["sglext"] = sglext;
    }
    Ok(Json(answer).into_response())
}

fn wanted_ids(headers: &HeaderMap) -> SglExt {
    let wanted = |name: &str| headers.get(name).is_some_and(|value| value == "1");
    SglExt {
        input_ids: wanted("x-sglext-return-input-ids"),
        output_ids: wanted("x-sglext-return-output-ids"),
        ..SglExt::default()
    }
}

struct Choice {
    state: Arc<State>,
    head: Head,
    wishes: Wishes,
    index: usize,
    n: usize,
    /// Sent with the first chunk of a stream.
    prompt_ids: Option<Vec<u32>>,
    logprobs: bool,
    began: bool,
    summary: SharedSummary,
    whole: Update,
}

impl Choice {
    /// The choice of an answer without a stream.
    fn json(&self, whole: &Update) -> Value {
        let message = json!({"role": "assistant", "content": whole.text});
        let mut choice = self.choice("message", message, Some(whole), whole.finish.as_ref());
        choice["matched_stop"] = matched(whole.finish.as_ref());
        choice
    }

    /// `part` is `message` or `delta`; `tokens` those that it stands for.
    fn choice(&self, part: &str, value: Value, tokens: Option<&Update>, finish: Option<&Finish>) -> Value {
        let mut choice = json!({"index": self.index});
        choice[part] = value;
        choice["logprobs"] = tokens.filter(|_| self.logprobs).map_or(Value::Null, |tokens| {
            Names { state: &self.state, as_ids: self.wishes.names_as_ids }.chat(&tokens.logprobs)
        });
        choice["finish_reason"] = json!(finish.map(Finish::openai));
        if let Some(tokens) = tokens.filter(|_| self.wishes.token_ids) {
            choice["token_ids"] = json!(tokens.ids);
        }
        choice
    }

    fn push(&self, ticket: &Ticket, choice: Value, out: &mut String) {
        let mut chunk = self.head.json("chat.completion.chunk", vec![choice]);
        if self.wishes.continuous_usage {
            chunk["usage"] = Usage::of(ticket, &self.whole).json();
        }
        push_event(out, &chunk);
    }
}

impl Framer for Choice {
    fn frame(&mut self, ticket: &Ticket, update: &Update, out: &mut String) {
        self.whole.absorb(update.clone());
        if let Some(error) = update.finish.as_ref().and_then(ApiError::of_finish) {
            push_error(out, &error);
            return;
        }
        if !self.began {
            self.began = true;
            let choice = self.choice("delta", json!({"role": "assistant", "content": ""}), None, None);
            let mut first = self.head.json("chat.completion.chunk", vec![choice]);
            if let Some(ids) = self.prompt_ids.take() {
                first["prompt_token_ids"] = json!(ids);
            }
            push_event(out, &first);
        }
        // With ids or log-probabilities asked for, a token without text (the end token) is a chunk too: none is lost.
        let each = self.wishes.token_ids || self.logprobs;
        if !update.text.is_empty() || (each && !update.ids.is_empty()) {
            self.push(ticket, self.choice("delta", json!({"content": update.text}), Some(update), None), out);
        }
        if update.finish.is_some() {
            let mut last = self.choice("delta", json!({}), None, update.finish.as_ref());
            last["matched_stop"] = matched(update.finish.as_ref());
            self.push(ticket, last, out);
            self.summary.lock().end(self.index, self.n, ticket, &self.whole);
        }
    }
}
