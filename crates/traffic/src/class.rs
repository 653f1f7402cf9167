//! Class from length and predicted cache hits (`design/traffic.md`, Class).
//!
//! Peers read a priority header and never the request; here the work a request causes decides: `n` input tokens, `h`
//! predicted hit tokens, `u = n - h` uncached.
//!
//! | class | rule |
//! |---|---|
//! | high | `u <= 2,000`, or `h/n >= 0.8` |
//! | low | `u > 16,000` and `h/n < 0.3` |
//! | medium | the rest, and what would be low of an established session |
//!
//! Unknown hits are not zero hits: the length rule for high then reads `u = n`, which can only be too careful, but low
//! needs a hit fraction that is *known* to be small. So a long request with unknown hits is medium. A turn that would be high if its
//! session's KV were still there is medium too: shedding it would lose what it will be worth again after one prefill. Only of sessions
//! that have found their KV before, and only where most of the prompt is what they were: a long new document is no less cold for coming
//! in an old conversation.

mod asked;
pub mod basis;
#[cfg(test)]
mod tests;

pub use asked::grant;

use plimsoll_core::Class;
use serde::{Deserialize, Serialize};

/// Bounds between the classes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassRules {
    /// At most this many uncached tokens: high.
    pub high_uncached_tokens: u64,
    /// At least this hit fraction: high.
    pub high_hit_fraction: f64,
    /// More uncached tokens than this and a hit fraction under `low_hit_fraction`: low.
    pub low_uncached_tokens: u64,
    pub low_hit_fraction: f64,
    /// Turns that found their KV, from which on a session may lose it and is not low for that.
    pub established_hit_rounds: u32,
}

impl Default for ClassRules {
    fn default() -> Self {
        ClassRules {
            high_uncached_tokens: 2_000,
            high_hit_fraction: 0.8,
            low_uncached_tokens: 16_000,
            low_hit_fraction: 0.3,
            established_hit_rounds: 1,
        }
    }
}

/// What is known of the session that a request goes on with. The default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Turns of it that found their KV.
    pub hit_rounds: u32,
    /// Tokens of this prompt that were the prompt of the turn before.
    pub known_tokens: u64,
}

/// The class and the rule that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClassVerdict {
    pub class: Class,
    /// `few_uncached_tokens`, `high_hit_fraction`, `long_and_cold`, `long_hits_unknown`, `established_session`, `between`, or
    /// from [`grant`] `asked_lower` or `asked_higher`.
    pub rule: &'static str,
}

/// Classifies a request of `input_tokens`, of which `predicted_hit_tokens` are expected in a cache (`None`: nothing is
/// known; more than the input counts as all of it) and that goes on with a session of this past.
#[must_use]
pub fn classify(rules: &ClassRules, input_tokens: u64, predicted_hit_tokens: Option<u64>, past: Past) -> ClassVerdict {
    let hit_tokens = predicted_hit_tokens.map(|hit| hit.min(input_tokens));
    let uncached_tokens = input_tokens - hit_tokens.unwrap_or(0);
    if uncached_tokens <= rules.high_uncached_tokens {
        return ClassVerdict { class: Class::High, rule: "few_uncached_tokens" };
    }
    // Here `input_tokens` is above zero.
    let long = uncached_tokens > rules.low_uncached_tokens;
    match hit_tokens.map(|hit| hit as f64 / input_tokens as f64) {
        Some(fraction) if fraction >= rules.high_hit_fraction => {
            ClassVerdict { class: Class::High, rule: "high_hit_fraction" }
        }
        Some(fraction) if long && fraction < rules.low_hit_fraction && established(rules, input_tokens, past) => {
            ClassVerdict { class: Class::Medium, rule: "established_session" }
        }
        Some(fraction) if long && fraction < rules.low_hit_fraction => {
            ClassVerdict { class: Class::Low, rule: "long_and_cold" }
        }
        None if long => ClassVerdict { class: Class::Medium, rule: "long_hits_unknown" },
        _ => ClassVerdict { class: Class::Medium, rule: "between" },
    }
}

/// Whether it would be high if its session's KV were still there.
fn established(rules: &ClassRules, input_tokens: u64, past: Past) -> bool {
    let known_tokens = past.known_tokens.min(input_tokens);
    past.hit_rounds >= rules.established_hit_rounds
        && (input_tokens - known_tokens <= rules.high_uncached_tokens
            || known_tokens as f64 / input_tokens as f64 >= rules.high_hit_fraction)
}
