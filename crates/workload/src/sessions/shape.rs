//! The numbers behind generated sessions, measured on `agentic_weka_compact` (main chains of its 481 sessions; the
//! published ones are in `shared/traces/README.md`, the rest was computed from the same file).

use crate::quantiles::Quantiles;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Distributions of the generator. Tokens and seconds are those of the source, before any scaling.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Calls of a session: p50 44, p90 170.
    pub turns: Quantiles,
    /// Cut for long sessions, so that a demonstration ends.
    pub turn_limit: u64,
    /// Prompt of a session's first call: p50 25,564. The upper third resumes an old conversation.
    pub first_tokens: Quantiles,
    /// What a turn adds to the context where it is not rewritten: the last answer, tool results, a person's words.
    pub turn_tokens: Quantiles,
    /// Answer: mean 454, p50 221.
    pub output_tokens: Quantiles,
    /// Pause before a call: p50 10 s, mean 170 s.
    pub think_s: Quantiles,
    /// Share of turns that rewrite the context behind the system prompt for another reason than a full window. Both
    /// together: 1.9 %.
    pub rewrite_share: f64,
    /// Context after a rewrite in terms of before.
    pub rewrite_ratio: Quantiles,
    /// A context that would grow beyond its window is rewritten to a quarter of it. Most windows are small ones.
    pub small_context_tokens: u64,
    pub large_context_share: f64,
    /// The large window, and the largest context of all.
    pub context_limit_tokens: u64,
    /// Mean gap between session starts (Poisson), seconds.
    pub arrival_gap_s: f64,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            turns: Quantiles(&[
                (0.0, 3.0),
                (0.05, 4.0),
                (0.1, 7.0),
                (0.25, 18.0),
                (0.5, 44.0),
                (0.75, 94.0),
                (0.9, 170.0),
                (0.95, 234.0),
                (0.99, 330.0),
                (1.0, 514.0),
            ]),
            turn_limit: u64::MAX,
            first_tokens: Quantiles(&[
                (0.0, 6_343.0),
                (0.05, 13_021.0),
                (0.1, 15_688.0),
                (0.25, 18_847.0),
                (0.5, 25_564.0),
                (0.75, 102_088.0),
                (0.9, 244_546.0),
                (0.95, 323_452.0),
                (0.99, 576_445.0),
                (1.0, 851_858.0),
            ]),
            turn_tokens: Quantiles(&[
                (0.0, 41.0),
                (0.01, 145.0),
                (0.05, 190.0),
                (0.1, 229.0),
                (0.25, 364.0),
                (0.5, 685.0),
                (0.75, 1_587.0),
                (0.9, 3_565.0),
                (0.95, 6_150.0),
                (0.98, 10_469.0),
                (0.99, 15_996.0),
                (0.999, 59_975.0),
                (1.0, 235_102.0),
            ]),
            output_tokens: Quantiles(&[
                (0.0, 1.0),
                (0.01, 62.0),
                (0.05, 92.0),
                (0.1, 107.0),
                (0.25, 139.0),
                (0.5, 220.0),
                (0.75, 442.0),
                (0.9, 924.0),
                (0.95, 1_603.0),
                (0.99, 3_837.0),
                (0.999, 8_013.0),
                (1.0, 15_390.0),
            ]),
            think_s: Quantiles(&[
                (0.0, 0.5),
                (0.01, 2.0),
                (0.05, 4.0),
                (0.25, 6.0),
                (0.5, 10.0),
                (0.75, 36.0),
                (0.9, 174.0),
                (0.95, 472.0),
                (0.98, 1_521.0),
                (0.99, 3_070.0),
                (0.995, 3_996.0),
                (0.999, 20_167.0),
                (1.0, 77_589.0),
            ]),
            rewrite_share: 0.012,
            rewrite_ratio: Quantiles(&[
                (0.0, 0.034),
                (0.05, 0.17),
                (0.1, 0.22),
                (0.25, 0.641),
                (0.5, 1.003),
                (0.75, 1.023),
                (0.9, 1.152),
                (0.95, 1.593),
                (1.0, 4.0),
            ]),
            small_context_tokens: 155_000,
            large_context_share: 0.08,
            context_limit_tokens: 900_000,
            arrival_gap_s: 30.0,
        }
    }
}

impl Shape {
    /// Tool and system tokens: 75 tool sizes of falling popularity (in the trace the biggest group is 62 of 481
    /// sessions) with long-tailed system prompts behind each (261 pairs, the biggest 17).
    pub(super) fn prefix(&self, rng: &mut ChaCha8Rng) -> (u64, u64) {
        let tool_kind = zipf(rng, 75, 0.8);
        let system_kind = zipf(rng, 24, 1.05);
        // Spread over the trace's ranges (tools p10 9,292 to p90 12,974; system p10 2,048 to p90 3,445), all distinct.
        (9_292 + tool_kind * 29 % 75 * 49, 2_048 + system_kind * 7 % 24 * 58)
    }

    /// The context window of one session: most are small, and no window is smaller than what it starts with.
    pub(super) fn window_tokens(&self, first_tokens: u64, rng: &mut ChaCha8Rng) -> u64 {
        let small = rng.random::<f64>() >= self.large_context_share && first_tokens < self.small_context_tokens;
        if small { self.small_context_tokens.min(self.context_limit_tokens) } else { self.context_limit_tokens }
    }
}

/// `0..kinds` with weights `1 / (k + 1)^exponent`.
fn zipf(rng: &mut ChaCha8Rng, kinds: u64, exponent: f64) -> u64 {
    let weight = |kind: u64| ((kind + 1) as f64).powf(-exponent);
    let mut left = rng.random::<f64>() * (0..kinds).map(weight).sum::<f64>();
    (0..kinds)
        .find(|&kind| {
            left -= weight(kind);
            left <= 0.0
        })
        .unwrap_or(kinds - 1)
}
