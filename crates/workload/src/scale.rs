//! Divisors that make a data-centre trace small enough for a CPU, always stated next to a result.
//!
//! Prompts are divided block by block, never as a whole, so prefixes stay exactly as shared as in the source. Answers
//! have a divisor of their own: at the prompt's divisor most answers would be one or two tokens and no time between
//! tokens could be measured.

use crate::plan::{Prompt, Session, Tail};
use plimsoll_core::Nanos;

/// How much smaller and faster a workload runs than its source. All divisors are at least 1 (time: above 0).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub prompt_divisor: u64,
    pub output_divisor: u64,
    pub time_divisor: f64,
    /// Pauses longer than this (before the division) are cut to it: people go home, a benchmark does not wait.
    pub pause_limit: Option<Nanos>,
}

impl Scale {
    /// The source as it is.
    pub const NONE: Scale = Scale { prompt_divisor: 1, output_divisor: 1, time_divisor: 1.0, pause_limit: None };

    /// Words that stand for `tokens` tokens of a block; at least 1 where there was a token.
    #[must_use]
    pub fn words(&self, tokens: u64) -> u64 {
        if tokens == 0 { 0 } else { (tokens / self.prompt_divisor.max(1)).max(1) }
    }

    /// Tokens to generate, rounded up.
    #[must_use]
    pub fn output(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.output_divisor.max(1)).max(1)
    }

    /// A session with the lengths that its texts will have; times stay as they are.
    #[must_use]
    pub fn lengths(&self, mut session: Session) -> Session {
        for call in &mut session.calls {
            let Prompt { block_tokens, tail, .. } = &mut call.prompt;
            *tail = tail.map(|tail| Tail { tokens: self.words(tail.tokens), ..tail });
            *block_tokens = self.words(*block_tokens);
            call.echo_tokens = self.words(call.echo_tokens);
            call.output_tokens = self.output(call.output_tokens);
            call.max_output_tokens = call.max_output_tokens.map(|most| self.output(most));
        }
        session
    }

    /// A start time.
    #[must_use]
    pub fn time(&self, time: Nanos) -> Nanos {
        Nanos((time.0 as f64 / self.time_divisor) as u64)
    }

    /// A pause between two calls.
    #[must_use]
    pub fn pause(&self, pause: Nanos) -> Nanos {
        self.time(self.pause_limit.map_or(pause, |limit| pause.min(limit)))
    }
}
