//! SGLang's `/generate`, with its framing: one object per chunk, **everything so far** in each unless incremental
//! streaming is on, aborts as a chunk inside a 200 stream.

use super::State;
use super::errors::ApiError;
use super::fields::{Fields, IdLists, known_ids, token_ids};
use super::logprobs::{Native, native_ask};
use super::params::{
    LengthRule, choices, errand, generation, of_choice, pinned_rank, refuse_unsupported, rids, room_after, sampling,
};
use super::prompts::{beside, encode};
use super::sse::{self, Framer, push_event};
use super::urgency::SloHeaders;
use crate::mailbox::{Ticket, Update};
use crate::migration::desk::Attached;
use crate::request::{Finish, Request, Task};
use crate::sampling::SamplingParams;
use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

/// Inputs of one body.
const MAX_BATCH: usize = 256;
/// Inputs times choices.
const MAX_ANSWERS: usize = 512;

pub(crate) async fn handle(state: Arc<State>, slo: SloHeaders, body: Bytes) -> Result<Response, ApiError> {
    let shared = Arc::clone(&state);
    let (fields, inputs) = beside(body.len(), move || {
        let fields = Fields::parse(&body)?;
        let inputs = inputs(&shared, &fields)?;
        Ok::<_, ApiError>((fields, inputs))
    })
    .await?;
    let stream = fields.flag("stream")?;
    let (requests, n) = requests(&state, &fields, slo, &inputs)?;
    // Several choices are a list too, as in SGLang.
    let list = inputs.batch || n > 1;
    let texts = fields.flag("return_text_in_logprobs")?;
    let forms: Vec<Form> = requests.iter().map(|request| Form::of(request, &state, texts)).collect();
    let tickets = state.submit_all(&fields, requests).await?;
    if stream {
        let incremental = state.config.incremental_streaming;
        let parts = tickets.into_iter().zip(forms).enumerate().map(|(index, (ticket, form))| {
            let framer = Chunks { form, incremental, index: list.then_some(index), whole: Update::default() };
            (ticket, Box::new(framer) as Box<dyn Framer>)
        });
        return Ok(sse::response(&state, parts.collect(), |_| {}));
    }
    let mut answers = Vec::with_capacity(tickets.len());
    for (mut ticket, form) in tickets.into_iter().zip(forms) {
        let whole = sse::collect(&state, &mut ticket).await;
        if let Some(error) = whole.finish.as_ref().and_then(ApiError::of_finish) {
            return Err(error);
        }
        answers.push(form.chunk(&ticket, &whole, &whole, None));
    }
    let answer = if list { Value::Array(answers) } else { answers.pop().unwrap_or_default() };
    Ok(Json(answer).into_response())
}

/// The requests of a body, choices of one prompt next to each other, and the number of choices.
fn requests(
    state: &State,
    fields: &Fields,
    slo: SloHeaders,
    inputs: &Inputs,
) -> Result<(Vec<Request>, usize), ApiError> {
    let length = LengthRule { names: &["max_new_tokens"], default: state.config.default_max_tokens };
    let count = inputs.prompts.len();
    // One object for all inputs, or a list with one per input.
    let per_input: Vec<Fields> = match fields.get("sampling_params") {
        Some(Value::Array(list)) if list.len() == count => {
            list.iter().map(|item| Fields::parse(item.to_string().as_bytes())).collect::<Result<_, _>>()?
        }
        Some(Value::Array(_)) => return Err(ApiError::field("sampling_params", "needs one object per input")),
        _ => vec![fields.object("sampling_params")?],
    };
    // Checked for the fields it shares with the OpenAI bodies, such as lora_path.
    refuse_unsupported(fields)?;
    let errand = errand(fields, pinned_rank(fields)?, slo)?;
    let n = choices(&per_input[0])?;
    if count * n > MAX_ANSWERS {
        return Err(ApiError::field("n", format!("inputs times n is more than {MAX_ANSWERS}")));
    }
    let mut ids = rids(fields, count * n)?.into_iter();
    let mut requests = Vec::with_capacity(count * n);
    for (index, prompt) in inputs.prompts.iter().enumerate() {
        let room = room_after(state, inputs.name, prompt.len())?;
        let own = per_input.get(index).unwrap_or(&per_input[0]);
        if choices(own)? != n {
            return Err(ApiError::field("n", "must be the same for all inputs"));
        }
        let params = SamplingParams {
            logprobs: native_ask(fields, index, count, prompt.len(), state.vocab_tokens)?,
            ..sampling(own, &length, room, state.vocab_tokens)?
        };
        for (choice, rid) in ids.by_ref().take(n).enumerate() {
            requests.push(generation(&errand, rid, prompt.clone(), of_choice(&params, choice)));
        }
    }
    Ok((requests, n))
}

struct Inputs {
    prompts: Vec<Vec<u32>>,
    /// The field they came from.
    name: &'static str,
    /// They came as a list.
    batch: bool,
}

fn inputs(state: &State, fields: &Fields) -> Result<Inputs, ApiError> {
    if let Some(ids) = fields.ids("input_ids") {
        return inputs_of_ids(state, fields, ids);
    }
    let (prompts, name, batch) = match (fields.get("text"), fields.get("input_ids")) {
        (Some(Value::String(text)), None) => (vec![encode(state, "text", text, true)?], "text", false),
        (Some(Value::Array(_)), None) => {
            let texts = fields.texts("text")?;
            let ids = texts.iter().map(|text| encode(state, "text", text, true));
            (ids.collect::<Result<_, _>>()?, "text", true)
        }
        (None, Some(Value::Array(list))) if list.first().is_some_and(Value::is_array) => {
            let lists = list.iter().map(|item| match item {
                Value::Array(ids) => token_ids("input_ids", ids, state.vocab_tokens),
                _ => Err(ApiError::field("input_ids", "expected token ids or lists of token ids")),
            });
            (lists.collect::<Result<_, _>>()?, "input_ids", true)
        }
        (None, Some(Value::Array(ids))) => (vec![token_ids("input_ids", ids, state.vocab_tokens)?], "input_ids", false),
        (Some(_), Some(_)) => return Err(ApiError::field("text", "send either text or input_ids, not both")),
        (None, None) => return Err(ApiError::field("text", "send text or input_ids")),
        (Some(_), None) => return Err(ApiError::field("text", "expected a string or a list of strings")),
        (None, Some(_)) => return Err(ApiError::field("input_ids", "expected token ids or lists of token ids")),
    };
    if prompts.is_empty() || prompts.len() > MAX_BATCH {
        return Err(ApiError::field(name, format!("send 1 to {MAX_BATCH} inputs")));
    }
    Ok(Inputs { prompts, name, batch })
}

fn inputs_of_ids(state: &State, fields: &Fields, ids: &IdLists) -> Result<Inputs, ApiError> {
    let name = "input_ids";
    let known = |ids: &Vec<u32>| known_ids(name, ids, state.vocab_tokens);
    if fields.get("text").is_some() {
        return Err(ApiError::field("text", "send either text or input_ids, not both"));
    }
    match ids {
        IdLists::One(ids) => Ok(Inputs { prompts: vec![known(ids)?], name, batch: false }),
        IdLists::Many(lists) if lists.len() > MAX_BATCH => {
            Err(ApiError::field(name, format!("send 1 to {MAX_BATCH} inputs")))
        }
        IdLists::Many(lists) => {
            Ok(Inputs { prompts: lists.iter().map(known).collect::<Result<_, _>>()?, name, batch: true })
        }
    }
}

/// The stream of a request that came by migration, from where its reader is.
pub(crate) fn go_on(state: &Arc<State>, attached: Attached, incremental: bool) -> Response {
    let Attached { ticket, had, logprobs } = attached;
    let logprobs = logprobs.map(|ask| Native { ask, texts: false, first: 0 });
    let form = Form { state: Arc::clone(state), logprobs };
    let framer = Chunks { form, incremental, index: None, whole: had };
    sse::response(state, vec![(ticket, Box::new(framer) as Box<dyn Framer>)], |_| {})
}

struct Chunks {
    form: Form,
    incremental: bool,
    index: Option<usize>,
    /// Everything so far.
    whole: Update,
}

impl Framer for Chunks {
    fn frame(&mut self, ticket: &Ticket, update: &Update, out: &mut String) {
        self.whole.absorb(update.clone());
        let shown = if self.incremental { update } else { &self.whole };
        push_event(out, &self.form.chunk(ticket, shown, &self.whole, self.index));
    }
}

/// How one request's answer is written.
struct Form {
    state: Arc<State>,
    logprobs: Option<Native>,
}

impl Form {
    fn of(request: &Request, state: &Arc<State>, texts: bool) -> Self {
        let ask = match &request.task {
            Task::Generate(params) => params.logprobs.clone(),
            Task::Embed => None,
        };
        let logprobs = ask.map(|ask| {
            let first = ask.prompt_from.and_then(|from| request.prompt.get(from)).copied().unwrap_or_default();
            Native { ask, texts, first }
        });
        Form { state: Arc::clone(state), logprobs }
    }

    /// One object of SGLang's native answer: text and ids of `shown`, counts of `whole`.
    fn chunk(&self, ticket: &Ticket, shown: &Update, whole: &Update, index: Option<usize>) -> Value {
        let mut meta = json!({
            "id": ticket.rid,
            "finish_reason": whole.finish.as_ref().map(|finish| finish_reason(finish, whole.ids.len())),
            "prompt_tokens": ticket.prompt_tokens,
            "weight_version": "default",
            "num_retractions": whole.retractions,
            "completion_tokens": whole.ids.len(),
            "cached_tokens": whole.cached_tokens,
            "cached_tokens_details": {"device": whole.cached_tokens - whole.host_tokens, "host": whole.host_tokens},
            "dp_rank": ticket.rank,
            "response_sent_to_client_ts": self.state.faults.wall_clock_s(),
        });
        if let (Some(native), Some(meta)) = (&self.logprobs, meta.as_object_mut()) {
            native.add(&self.state, shown, whole, meta);
        }
        if whole.finish.is_some() {
            meta["e2e_latency"] = json!(ticket.arrived.elapsed().as_secs_f64());
        }
        let mut value = json!({"text": shown.text, "output_ids": shown.ids, "meta_info": meta});
        if let Some(index) = index {
            value["index"] = json!(index);
        }
        value
    }
}

fn finish_reason(finish: &Finish, generated: usize) -> Value {
    match finish {
        Finish::StopToken(id) => json!({"type": "stop", "matched": id}),
        Finish::StopText(text) => json!({"type": "stop", "matched": text}),
        Finish::Embedded => json!({"type": "stop", "matched": null}),
        Finish::Length => json!({"type": "length", "length": generated}),
        // As SGLang's prefill engines have it.
        Finish::HandedOver => json!({"type": "length", "length": 0}),
        Finish::Refused(refusal) => json!({
            "type": "abort", "message": refusal.to_string(), "status_code": refusal.status(),
            "err_type": refusal.err_type(), "code": refusal.code(), "retry_after": refusal.retry_after_s(),
        }),
        Finish::Migrated { migration, output_tokens, fence } => json!({
            "type": "migrated", "migration": migration, "output_tokens": output_tokens, "fence": fence,
        }),
        Finish::Abort { message, status } => json!({
            "type": "abort", "message": message, "status_code": status,
            "err_type": status.map(|_| "ServiceUnavailableError"),
        }),
    }
}
