//! An inference engine as its clients feel it, step by step.
//!
//! Continuous batching as SGLang, vLLM and this repository's own engine do it: every step serves the requests that decode (one
//! token each), then chunks of prompts, then admits who waits, within a token budget; pages of KV are given out as contexts
//! grow, and when there are none the last admitted request gives up its own and is computed again. What a step takes comes
//! from a cost model ([`crate::step_time`]), what is cached from real block names ([`crate::prefix_cache`]).
//!
//! `workloads.md` section 2 is the model; section 6 says what it was held against.

mod decode_batch;
mod instance;
mod job;
mod plan;
mod rank;
#[cfg(test)]
mod tests;

pub use instance::{Instance, InstanceTotals, StepReport};
pub use job::{Job, Key};
pub use rank::{Below, Happened, Rank};

/// For what pages are taken when a request is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// The whole prompt, and a page of growth for everybody who runs: fewer preemptions (SGLang, the built-in engine).
    Prompt,
    /// The next chunk (vLLM).
    Chunk,
}

/// Ranks in lock-step wait for each other with their prompts: a step in which one rank computes a prompt takes as long for those
/// that only decode. TensorRT-LLM's attention-DP balance (its technical blog 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextWait {
    /// Steps for which prompts wait until every rank has one.
    pub timeout_steps: u64,
    /// Further steps in which more of them may gather.
    pub batching_steps: u64,
}

/// Sizes and limits of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineShape {
    /// Divides `block_tokens`.
    pub page_tokens: u64,
    /// Tokens of KV that fit.
    pub kv_tokens: u64,
    /// Longest prompt plus output.
    pub context_tokens: u64,
    /// Tokens computed in one step.
    pub token_budget: u64,
    pub max_running: u64,
    /// Tokens of a named block; caches know nothing smaller.
    pub block_tokens: u64,
    pub reserve: Reserve,
    /// `None`: a prompt is computed as soon as there is room.
    pub context_wait: Option<ContextWait>,
}

impl EngineShape {
    /// As a profile says.
    #[must_use]
    pub fn of(serving: &plimsoll_timing::profile::Serving, block_tokens: u64) -> Self {
        EngineShape {
            page_tokens: gcd(serving.page_tokens, block_tokens),
            kv_tokens: serving.kv_tokens,
            context_tokens: serving.context_tokens,
            token_budget: serving.token_budget,
            max_running: serving.max_running,
            block_tokens,
            reserve: Reserve::Prompt,
            context_wait: None,
        }
    }

    pub(crate) fn pages(&self) -> u64 {
        self.kv_tokens / self.page_tokens
    }

    /// Blocks are whole pages.
    pub(crate) fn block_pages(&self) -> u64 {
        self.block_tokens / self.page_tokens
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
