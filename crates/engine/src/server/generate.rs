//! SGLang's `/generate`, with its framing: one object per chunk, **everything so far** in each unless incremental
//! streaming is on, aborts as a chunk inside a 200 stream.

use super::State;
use super::errors::ApiError;
use super::fields::{Fields, token_ids};
use super::params::{LengthRule, generation, owner, pinned_rank, rids, room_after, sampling};
use super::sse::{self, Framer, push_event};
use crate::faults::FaultSwitch;
use crate::mailbox::{Ticket, Update};
use crate::request::{Finish, Request};
use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

/// Inputs of one body.
const MAX_BATCH: usize = 256;

pub(crate) async fn handle(state: Arc<State>, body: Bytes) -> Result<Response, ApiError> {
    let fields = Fields::parse(&body)?;
    let (prompts, name, batch) = inputs(&state, &fields)?;
    let requests = requests(&state, &fields, prompts, name)?;
    let stream = fields.flag("stream")?;
    let tickets = state.submit_all(requests)?;
    if stream {
        let incremental = state.config.incremental_streaming;
        let parts = tickets.into_iter().enumerate().map(|(index, ticket)| {
            let (index, clock) = (batch.then_some(index), state.faults.clone());
            let framer = Chunks { incremental, index, clock, whole: Update::default() };
            (ticket, Box::new(framer) as Box<dyn Framer>)
        });
        return Ok(sse::response(&state, parts.collect(), |_| {}));
    }
    let mut answers = Vec::with_capacity(tickets.len());
    for mut ticket in tickets {
        let whole = sse::collect(&state, &mut ticket).await;
        if let Some(error) = whole.finish.as_ref().and_then(ApiError::of_finish) {
            return Err(error);
        }
        answers.push(chunk(&ticket, &whole, &whole, &state.faults));
    }
    let answer = if batch { Value::Array(answers) } else { answers.pop().unwrap_or_default() };
    Ok(Json(answer).into_response())
}

fn requests(
    state: &State,
    fields: &Fields,
    prompts: Vec<Vec<u32>>,
    name: &'static str,
) -> Result<Vec<Request>, ApiError> {
    let length = LengthRule { names: &["max_new_tokens"], default: state.config.default_max_tokens };
    // One object for all inputs, or a list with one per input.
    let shared;
    let per_input: Vec<Fields> = match fields.get("sampling_params") {
        Some(Value::Array(list)) if list.len() == prompts.len() => {
            list.iter().map(|item| Fields::parse(item.to_string().as_bytes())).collect::<Result<_, _>>()?
        }
        Some(Value::Array(_)) => return Err(ApiError::field("sampling_params", "needs one object per input")),
        _ => Vec::new(),
    };
    shared = if per_input.is_empty() { Some(fields.object("sampling_params")?) } else { None };
    let (owner, rank) = (owner(fields)?, pinned_rank(fields)?);
    // Checked for the fields it shares with the OpenAI bodies (return_logprob, lora_path).
    sampling(fields, &LengthRule { names: &[], default: 1 }, 1)?;
    let ids = rids(fields, prompts.len())?;
    prompts
        .into_iter()
        .zip(ids)
        .enumerate()
        .map(|(index, (prompt, rid))| {
            let room = room_after(state, name, prompt.len())?;
            let own = per_input.get(index).or(shared.as_ref());
            let params = match own {
                Some(own) => sampling(own, &length, room)?,
                None => return Err(ApiError::field("sampling_params", "needs one object per input")),
            };
            Ok(Request { rank, ..generation(rid, prompt, params, Arc::clone(&owner)) })
        })
        .collect()
}

/// Prompts, the field they came from, and whether they came as a list.
fn inputs(state: &State, fields: &Fields) -> Result<(Vec<Vec<u32>>, &'static str, bool), ApiError> {
    let (prompts, name, batch) = match (fields.get("text"), fields.get("input_ids")) {
        (Some(Value::String(text)), None) => (vec![state.tokenizer.encode(text)], "text", false),
        (Some(Value::Array(_)), None) => {
            let texts = fields.texts("text")?;
            (texts.iter().map(|text| state.tokenizer.encode(text)).collect(), "text", true)
        }
        (None, Some(Value::Array(list))) if list.first().is_some_and(Value::is_array) => {
            let lists = list.iter().map(|item| match item {
                Value::Array(ids) => token_ids("input_ids", ids),
                _ => Err(ApiError::field("input_ids", "expected token ids or lists of token ids")),
            });
            (lists.collect::<Result<_, _>>()?, "input_ids", true)
        }
        (None, Some(Value::Array(ids))) => (vec![token_ids("input_ids", ids)?], "input_ids", false),
        (Some(_), Some(_)) => return Err(ApiError::field("text", "send either text or input_ids, not both")),
        (None, None) => return Err(ApiError::field("text", "send text or input_ids")),
        (Some(_), None) => return Err(ApiError::field("text", "expected a string or a list of strings")),
        (None, Some(_)) => return Err(ApiError::field("input_ids", "expected token ids or lists of token ids")),
    };
    if prompts.is_empty() || prompts.len() > MAX_BATCH {
        return Err(ApiError::field(name, format!("send 1 to {MAX_BATCH} inputs")));
    }
    Ok((prompts, name, batch))
}

struct Chunks {
    incremental: bool,
    index: Option<usize>,
    clock: FaultSwitch,
    /// Everything so far.
    whole: Update,
}

impl Framer for Chunks {
    fn frame(&mut self, ticket: &Ticket, update: &Update, out: &mut String) {
        self.whole.ids.extend(&update.ids);
        self.whole.text.push_str(&update.text);
        self.whole.cached_tokens = update.cached_tokens;
        self.whole.retractions = update.retractions;
        self.whole.finish.clone_from(&update.finish);
        let shown = if self.incremental { update } else { &self.whole };
        let mut value = chunk(ticket, shown, &self.whole, &self.clock);
        if let Some(index) = self.index {
            value["index"] = json!(index);
        }
        push_event(out, &value);
    }
}

/// One object of SGLang's native answer: text and ids of `shown`, counts of `whole`.
fn chunk(ticket: &Ticket, shown: &Update, whole: &Update, clock: &FaultSwitch) -> Value {
    let mut meta = json!({
        "id": ticket.rid,
        "finish_reason": whole.finish.as_ref().map(|finish| finish_reason(finish, whole.ids.len())),
        "prompt_tokens": ticket.prompt_tokens,
        "weight_version": "default",
        "num_retractions": whole.retractions,
        "completion_tokens": whole.ids.len(),
        "cached_tokens": whole.cached_tokens,
        "cached_tokens_details": {"device": whole.cached_tokens, "host": 0},
        "dp_rank": ticket.rank,
        "response_sent_to_client_ts": clock.wall_clock_s(),
    });
    if whole.finish.is_some() {
        meta["e2e_latency"] = json!(ticket.arrived.elapsed().as_secs_f64());
    }
    json!({"text": shown.text, "output_ids": shown.ids, "meta_info": meta})
}

fn finish_reason(finish: &Finish, generated: usize) -> Value {
    match finish {
        Finish::StopToken(id) => json!({"type": "stop", "matched": id}),
        Finish::StopText(text) => json!({"type": "stop", "matched": text}),
        Finish::Embedded => json!({"type": "stop", "matched": null}),
        Finish::Length => json!({"type": "length", "length": generated}),
        Finish::Abort { message, status } => json!({
            "type": "abort", "message": message, "status_code": status,
            "err_type": status.map(|_| "ServiceUnavailableError"),
        }),
    }
}
