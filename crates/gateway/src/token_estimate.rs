//! Prompt tokens from prompt bytes, with a ratio that answers teach.
//!
//! Until the gateway tokenises itself, a prompt's length is its text's bytes divided by a learned ratio: every answer
//! with `usage.prompt_tokens` is an example. One ratio for all models: the figure feeds load estimates, not hits.

use plimsoll_protocol::request::PromptSize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Weight of one example.
const LEARNING_RATE: f64 = 0.02;

/// Learned bytes per token.
#[derive(Debug)]
pub struct TokenEstimate {
    bytes_per_token_bits: AtomicU64,
}

impl TokenEstimate {
    #[must_use]
    pub fn new(assumed_bytes_per_token: f64) -> Self {
        TokenEstimate { bytes_per_token_bits: AtomicU64::new(assumed_bytes_per_token.to_bits()) }
    }

    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        f64::from_bits(self.bytes_per_token_bits.load(Ordering::Relaxed))
    }

    /// Prompt tokens of a request: exact for token ids, at least 1.
    #[must_use]
    pub fn tokens(&self, size: PromptSize) -> u64 {
        match size {
            PromptSize::Tokens(tokens) => tokens,
            PromptSize::TextBytes(bytes) => ((bytes as f64 / self.bytes_per_token()) as u64).max(1),
        }
    }

    /// An answer said how many tokens the prompt had. Short prompts are dominated by the template and teach nothing.
    pub fn learn(&self, size: PromptSize, prompt_tokens: u64) {
        let PromptSize::TextBytes(bytes) = size else { return };
        if bytes < 256 || prompt_tokens == 0 {
            return;
        }
        let example = (bytes as f64 / prompt_tokens as f64).clamp(0.25, 64.0);
        let before = self.bytes_per_token();
        let after = before + LEARNING_RATE * (example - before);
        // Two answers at once may lose one example, which does not matter.
        self.bytes_per_token_bits.store(after.to_bits(), Ordering::Relaxed);
    }
}
