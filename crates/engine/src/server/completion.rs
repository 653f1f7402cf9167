//! What `/v1/completions` and `/v1/chat/completions` share: usage, and the life of an answer.

use super::State;
use crate::mailbox::{Ticket, Update};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;

/// Token counts of all choices of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
    pub(crate) cached: usize,
}

impl Usage {
    pub(crate) fn add(&mut self, ticket: &Ticket, whole: &Update) {
        self.prompt += ticket.prompt_tokens;
        self.completion += whole.ids.len();
        self.cached += whole.cached_tokens;
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

/// Usage that several streams of one answer add to.
pub(crate) type SharedUsage = Arc<Mutex<Usage>>;

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
