//! What goes into the engine and how it comes out.

use crate::disagg::Bootstrap;
use crate::kv_events::Owner;
use crate::refusal::Refusal;
use crate::sampling::SamplingParams;
use crate::urgency::Urgency;
use std::sync::Arc;

/// A tokenised request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Unique among the requests in flight.
    pub rid: String,
    pub prompt: Vec<u32>,
    pub task: Task,
    /// Whose KV it computes: requests of different namespaces share none.
    pub owner: Arc<Owner>,
    /// The data-parallel rank that it must run on; `None`: the engine chooses.
    pub rank: Option<usize>,
    /// Where its other leg is, on a prefill or decode engine.
    pub bootstrap: Option<Bootstrap>,
    pub urgency: Urgency,
}

impl Request {
    /// A request of nobody in particular, on any rank.
    #[must_use]
    pub fn new(rid: String, prompt: Vec<u32>, task: Task) -> Self {
        let (owner, urgency) = Default::default();
        Request { rid, prompt, task, owner, rank: None, bootstrap: None, urgency }
    }
}

#[derive(Clone, Debug)]
pub enum Task {
    Generate(SamplingParams),
    /// Mean of the final hidden states, normalised.
    Embed,
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    StopToken(u32),
    StopText(String),
    Length,
    /// A prefill leg is over: its first token and its KV are with the decode leg.
    HandedOver,
    Abort {
        message: String,
        /// HTTP status that says the same; `None` when the client asked for the abort.
        status: Option<u16>,
    },
    /// It was turned away.
    Refused(Refusal),
    /// An embedding is complete.
    Embedded,
    /// It goes on in another engine.
    Migrated {
        migration: String,
        /// Output tokens so far, all of them posted here; the other engine goes on with the next.
        output_tokens: usize,
        /// What the other engine must be shown to take over, in hexadecimal.
        fence: String,
    },
}

impl Finish {
    /// OpenAI's `finish_reason`.
    #[must_use]
    pub fn openai(&self) -> &'static str {
        match self {
            Finish::StopToken(_) | Finish::StopText(_) | Finish::Embedded => "stop",
            Finish::Length | Finish::HandedOver => "length",
            Finish::Abort { .. } | Finish::Refused(_) => "abort",
            Finish::Migrated { .. } => "migrated",
        }
    }
}
