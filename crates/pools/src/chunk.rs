//! What one stream event, or one whole answer, of an engine says: output, finish, usage, error, abort.
//!
//! Why: an HTTP status says little about a generation. SGLang sends 200 and headers before a request is admitted, so a
//! full queue or a time-out arrives *inside* the stream; vLLM and SGLang both end aborted requests with an ordinary
//! chunk whose finish reason is `abort`; a stream that just ends was truncated. The relay therefore looks at every
//! event, and must not pay for it: the scan visits only the object keys of the event (a colon behind an unescaped
//! quote is always a key) and gives the rest to a JSON parser only when a finish reason or an error is in it.
//!
//! Rules for batches (`n` > 1, several prompts): each index finishes on its own, [`FinishCounter`] counts them. Native
//! SGLang events are cumulative by default and always carry `"finish_reason": null` and token counts; text on an abort
//! event may repeat and never counts as output.
//!
//! Source: reference on SGLang, 1.4 (framing and errors); recorded engine behaviour of vLLM 0.32 and SGLang 0.5.23.

mod answer;
mod finish;
mod native;
mod object;
mod openai;
mod scan;
mod wire_error;

pub use answer::{AnswerError, AnswerFacts, inspect_openai_answer, inspect_sglang_answer};
pub use finish::{Finish, FinishCounter, FinishReason};
pub use native::inspect_sglang_chunk;
pub use openai::inspect_openai_chunk;
pub use wire_error::inspect_error_body;

use smallvec::SmallVec;

/// What one `data:` payload of an event stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChunkKind {
    /// A JSON object, judged by its first and last byte unless it had to be parsed.
    #[default]
    Event,
    /// `[DONE]`.
    Done,
    /// Neither: the engine sent something that is no event.
    Garbage,
}

/// What the relay needs to know of one event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChunkFacts {
    pub kind: ChunkKind,
    /// The event carries output (text, reasoning, tool call, token ids). On native SGLang streams, which are
    /// cumulative, it means that there is output so far.
    pub tokens: bool,
    /// Which choice the event is about; 0 where it does not say.
    pub index: u32,
    pub finishes: SmallVec<[Finish; 1]>,
    pub usage: Option<Usage>,
    pub error: Option<UpstreamError>,
    pub abort: Option<AbortInfo>,
}

/// Token counts as the engine reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u64,
    /// Of one index on native streams, of all choices elsewhere.
    pub completion_tokens: u64,
    /// Prompt tokens that came from the prefix cache. `None` where the engine does not report them.
    pub cached_tokens: Option<u64>,
    /// The same by where they came from: device, host memory, storage. `None` where the engine does not say.
    pub cached_by_tier: Option<[u64; 3]>,
}

/// An engine that counts more is not counting.
const MOST_TOKENS: u64 = 1 << 32;

impl Usage {
    /// As far as it can be true: absurd counts are none, and more tokens from the cache than the prompt has are not known.
    #[must_use]
    pub(crate) fn plausible(self) -> Option<Usage> {
        let within = |tokens: &u64| *tokens <= self.prompt_tokens;
        let cached_by_tier = self.cached_by_tier.filter(|tiers| tiers.iter().all(within));
        let usage = Usage { cached_tokens: self.cached_tokens.filter(within), cached_by_tier, ..self };
        (usage.prompt_tokens <= MOST_TOKENS && usage.completion_tokens <= MOST_TOKENS).then_some(usage)
    }

    /// Of several prompts together; what one of them does not say is not known of all.
    #[must_use]
    pub fn plus(self, other: Usage) -> Usage {
        let sum = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a.saturating_add(b));
        let tiers = self.cached_by_tier.zip(other.cached_by_tier);
        Usage {
            prompt_tokens: self.prompt_tokens.saturating_add(other.prompt_tokens),
            completion_tokens: self.completion_tokens.saturating_add(other.completion_tokens),
            cached_tokens: sum(self.cached_tokens, other.cached_tokens),
            cached_by_tier: tiers.map(|(a, b)| std::array::from_fn(|tier| a[tier].saturating_add(b[tier]))),
        }
    }
}

/// An error object in place of, or inside, an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamError {
    /// HTTP status that the object names, 400 to 599.
    pub status: Option<u16>,
    pub message: String,
}

/// The engine gave up a request that it had accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbortInfo {
    pub status_code: Option<u16>,
    pub message: String,
    pub err_type: Option<String>,
}

impl UpstreamError {
    /// The engine refused for lack of room: not its fault, and worth a try elsewhere.
    #[must_use]
    pub fn is_overload(&self) -> bool {
        matches!(self.status, Some(429 | 503))
    }

    /// The client's fault: the same body fails everywhere.
    #[must_use]
    pub fn is_client_fault(&self) -> bool {
        matches!(self.status, Some(400..=499)) && !self.is_overload()
    }
}

impl AbortInfo {
    /// The engine refused for lack of room, such as SGLang's full request queue.
    #[must_use]
    pub fn is_overload(&self) -> bool {
        matches!(self.status_code, Some(429 | 503))
    }

    #[must_use]
    pub fn is_client_fault(&self) -> bool {
        matches!(self.status_code, Some(400..=499)) && !self.is_overload()
    }
}

/// How a stream of a route is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamDialect {
    /// `/v1/chat/completions` and `/v1/completions` of every engine.
    Openai,
    /// `/generate`.
    SglangNative,
}

impl StreamDialect {
    /// Facts of one event's data, without `data: ` and line ends.
    #[must_use]
    pub fn inspect(self, data: &[u8]) -> ChunkFacts {
        match self {
            StreamDialect::Openai => inspect_openai_chunk(data),
            StreamDialect::SglangNative => inspect_sglang_chunk(data),
        }
    }

    /// Facts of a whole answer.
    ///
    /// # Errors
    /// See [`AnswerError`].
    pub fn inspect_answer(self, body: &[u8]) -> Result<AnswerFacts, AnswerError> {
        match self {
            StreamDialect::Openai => inspect_openai_answer(body),
            StreamDialect::SglangNative => inspect_sglang_answer(body),
        }
    }
}

#[cfg(test)]
mod tests;
