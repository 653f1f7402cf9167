//! Presence, frequency and repetition penalties, from the tokens so far and nothing else.
//!
//! The counts are a cache: [`Tally::read`] brings them up to a sequence's tokens, from nothing as well as from the last
//! step, so that recomputing or moving a request cannot change its answer. Presence and frequency look at the output
//! (OpenAI, vLLM, SGLang); repetition looks at prompt and output (Hugging Face, vLLM; SGLang looks at the output only).

use super::SamplingParams;
use std::collections::BTreeMap;

/// What was said how often.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Times in the output; 0 for ids that are only in the prompt. Ordered, so that float operations are too.
    counts: BTreeMap<u32, u32>,
    /// Tokens counted so far.
    read: usize,
}

impl Tally {
    /// Whether a request has any penalty.
    #[must_use]
    pub fn needed(params: &SamplingParams) -> bool {
        params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 || params.repetition_penalty != 1.0
    }

    /// Counts the tokens (prompt, then output) that are new since the last call.
    pub fn read(&mut self, tokens: &[u32], prompt_len: usize) {
        for (at, token) in tokens.iter().enumerate().skip(self.read) {
            *self.counts.entry(*token).or_default() += u32::from(at >= prompt_len);
        }
        self.read = tokens.len();
    }

    /// Applies the penalties to logits of ids from `first_logit` on.
    pub(super) fn apply(&self, logits: &mut [f32], first_logit: u32, params: &SamplingParams) {
        for (id, count) in self.counts.range(first_logit..) {
            let Some(logit) = logits.get_mut((id - first_logit) as usize) else { return };
            if *logit > 0.0 {
                *logit /= params.repetition_penalty;
            } else {
                *logit *= params.repetition_penalty;
            }
            if *count > 0 {
                *logit -= params.frequency_penalty * *count as f32 + params.presence_penalty;
            }
        }
    }
}
