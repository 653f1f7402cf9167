//! One request inside an engine.

use crate::prefix_cache::{Edge, ROOT};
use plimsoll_core::BlockName;

/// The caller's name for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// A request as an engine needs it.
#[derive(Debug)]
pub struct Job {
    pub key: Key,
    /// Names of its full blocks; grows by what it generated when it is preempted.
    pub names: Vec<BlockName>,
    pub prompt_tokens: u64,
    /// At least 1.
    pub output_tokens: u64,
    /// Tokens that came out.
    pub generated: u64,
    /// KV that is there; of a decoding one, when it began to decode.
    pub(crate) kv_tokens: u64,
    /// KV that must be there before the next token comes out.
    pub(crate) goal_tokens: u64,
    /// Decode steps of its rank when it began to decode.
    pub(crate) joined_step: u64,
    /// Place among the running: who was admitted last gives way first.
    pub(crate) admitted: u64,
    /// Where its held path in the cache ends, and how many blocks that is.
    pub(crate) end: Edge,
    pub(crate) path_blocks: u64,
    /// Pages of its own, besides the path's.
    pub(crate) own_pages: u64,
    /// Prompt tokens that it found at its first admission.
    pub(crate) cached_tokens: Option<u64>,
    /// Blocks that come from a place below, and when they are there.
    pub(crate) loading: Option<Loading>,
    /// Its KV comes with it: computed elsewhere.
    pub(crate) handed_over: bool,
}

/// A load that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loading {
    pub(crate) until_fs: u128,
    /// Of its chain, from the first.
    pub(crate) blocks: u64,
}

impl Job {
    #[must_use]
    pub fn new(key: Key, names: Vec<BlockName>, prompt_tokens: u64, output_tokens: u64) -> Self {
        Job {
            key,
            names,
            prompt_tokens,
            output_tokens: output_tokens.max(1),
            generated: 0,
            kv_tokens: 0,
            goal_tokens: prompt_tokens.max(1),
            joined_step: 0,
            admitted: 0,
            end: ROOT,
            path_blocks: 0,
            own_pages: 0,
            cached_tokens: None,
            loading: None,
            handed_over: false,
        }
    }

    /// A request whose prompt was computed elsewhere, with its KV and the first `generated` tokens of its answer, at least one and not all.
    #[must_use]
    pub fn handed_over(
        key: Key,
        names: Vec<BlockName>,
        prompt_tokens: u64,
        output_tokens: u64,
        generated: u64,
    ) -> Self {
        let mut job = Job::new(key, names, prompt_tokens, output_tokens);
        job.generated = generated.clamp(1, job.output_tokens.max(2) - 1);
        job.goal_tokens = job.prompt_tokens.max(1) + job.generated - 1;
        job.cached_tokens = Some(job.prompt_tokens);
        job.handed_over = true;
        job
    }

    /// KV tokens it will hold at its end; the last token that comes out is never computed.
    #[must_use]
    pub fn most_tokens(&self) -> u64 {
        self.prompt_tokens.max(1) + self.output_tokens - 1
    }

    /// KV that is there, between two steps.
    #[must_use]
    pub fn kv_tokens(&self) -> u64 {
        self.kv_tokens
    }

    pub(crate) fn rest_tokens(&self) -> u64 {
        self.goal_tokens - self.kv_tokens
    }
}
