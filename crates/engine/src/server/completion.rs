//! What `/v1/completions` and `/v1/chat/completions` share: what they take besides sampling, usage, and the life of an
//! answer.

use super::State;
use super::errors::ApiError;
use super::fields::Fields;
use super::sse::push_event;
use crate::mailbox::{Ticket, Update};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Wishes about the form of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// Usage so far in every chunk (vLLM and SGLang).
    pub(crate) continuous_usage: bool,
    /// `return_token_ids`, in vLLM's form.
    pub(crate) token_ids: bool,
    /// vLLM's `return_tokens_as_token_ids`: log-probabilities name tokens by id.
    pub(crate) names_as_ids: bool,
    pub(crate) sglext: SglExt,
}

/// What SGLang puts into `sglext`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SglExt {
    pub(crate) cached_tokens_details: bool,
    /// Header `x-sglext-return-input-ids: 1`; chat only.
    pub(crate) input_ids: bool,
    /// Header `x-sglext-return-output-ids: 1`; chat only.
    pub(crate) output_ids: bool,
}

impl Wishes {
    pub(crate) fn read(fields: &Fields, headers: SglExt) -> Result<Self, ApiError> {
        let options = fields.object("stream_options")?;
        Ok(Wishes {
            stream: fields.flag("stream")?,
            include_usage: options.flag("include_usage")?,
            continuous_usage: options.flag("continuous_usage_stats")?,
            token_ids: fields.flag("return_token_ids")?,
            names_as_ids: fields.flag("return_tokens_as_token_ids")?,
            sglext: SglExt { cached_tokens_details: fields.flag("return_cached_tokens_details")?, ..headers },
        })
    }
}

/// Token counts of all choices of an answer; a prompt with several choices counts once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    prompt: usize,
    completion: usize,
    cached: usize,
    /// Of the cached ones, those from the offload tier.
    host: usize,
}

impl Usage {
    pub(crate) fn of(ticket: &Ticket, whole: &Update) -> Self {
        Usage {
            prompt: ticket.prompt_tokens,
            completion: whole.ids.len(),
            cached: whole.cached_tokens,
            host: whole.host_tokens,
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        })
    }
}

/// What all choices of an answer come to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    usage: Usage,
    /// Choices that ended well.
    ended: usize,
    prompt_ids: Vec<u32>,
    /// By choice.
    output_ids: Vec<Vec<u32>>,
}

impl Summary {
    pub(crate) fn new(prompt_ids: Vec<u32>, choices: usize) -> Self {
        Summary { prompt_ids, output_ids: vec![Vec::new(); choices], ..Summary::default() }
    }

    /// Takes the end of choice `index` of answers with `n` choices per prompt.
    pub(crate) fn end(&mut self, index: usize, n: usize, ticket: &Ticket, whole: &Update) {
        let own = Usage::of(ticket, whole);
        self.usage.completion += own.completion;
        if index.is_multiple_of(n) {
            self.usage.prompt += own.prompt;
            self.usage.cached += own.cached;
            self.usage.host += own.host;
        }
        self.ended += 1;
        if let Some(ids) = self.output_ids.get_mut(index) {
            ids.clone_from(&whole.ids);
        }
    }

    pub(crate) fn usage(&self) -> Value {
        self.usage.json()
    }

    /// SGLang's `sglext`, when something of it was asked for.
    pub(crate) fn sglext(&self, asked: SglExt) -> Option<Value> {
        let mut object = Map::new();
        if asked.cached_tokens_details {
            object.insert(
                "cached_tokens_details".to_owned(),
                json!({"device": self.usage.cached - self.usage.host, "host": self.usage.host}),
            );
        }
        if asked.input_ids {
            object.insert("input_ids".to_owned(), json!(self.prompt_ids));
        }
        if asked.output_ids {
            object.insert("output_ids".to_owned(), json!(self.output_ids));
        }
        (!object.is_empty()).then_some(Value::Object(object))
    }

    /// The chunks after the last choice of a stream ended; none when a choice failed.
    pub(crate) fn last_chunks(&self, head: &Head, object: &str, wishes: &Wishes, out: &mut String) {
        if self.ended < self.output_ids.len() {
            return;
        }
        if let Some(sglext) = self.sglext(wishes.sglext) {
            let mut chunk = head.json(object, Vec::new());
            chunk["sglext"] = sglext;
            push_event(out, &chunk);
        }
        if wishes.include_usage {
            let mut chunk = head.json(object, Vec::new());
            chunk["usage"] = self.usage();
            push_event(out, &chunk);
        }
    }
}

/// The summary that the streams of one answer add to.
pub(crate) type SharedSummary = Arc<Mutex<Summary>>;

/// Identity of an answer, repeated in every chunk.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

impl Head {
    pub(crate) fn new(state: &State, id: String) -> Self {
        Head { id, created: state.faults.wall_clock_s() as u64, model: state.config.model_name.clone() }
    }

    pub(crate) fn json(&self, object: &str, choices: Vec<Value>) -> Value {
        let mut value = json!({"id": self.id, "object": object, "created": self.created, "model": self.model});
        value["choices"] = Value::Array(choices);
        value
    }
}

/// `matched_stop`, which both stock engines add next to `finish_reason`.
pub(crate) fn matched(finish: Option<&crate::request::Finish>) -> Value {
    use crate::request::Finish;
    match finish {
        Some(Finish::StopToken(id)) => json!(id),
        Some(Finish::StopText(text)) => json!(text),
        _ => Value::Null,
    }
}
