//! From logits to the next token.
//!
//! Randomness is a function of (seed, index of the token in the output): a request that was preempted and recomputed, or
//! shares its batch with others, draws the same numbers.

use crate::kernels::exp;
use crate::model::FIRST_LOGIT;
use crate::tokenizer::{FIRST_WORD, IM_END};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

#[cfg(test)]
mod tests;

/// What a request asks of sampling and of its end.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    pub max_new_tokens: usize,
    /// The end token is not generated before this many tokens.
    pub min_new_tokens: usize,
    /// 0 is greedy.
    pub temperature: f32,
    pub top_p: f32,
    /// `None`: off.
    pub top_k: Option<usize>,
    pub min_p: f32,
    /// `None`: a fresh one per request.
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    /// The end token is not generated at all.
    pub ignore_eos: bool,
    /// Leave a matched stop string in the text.
    pub no_stop_trim: bool,
    /// Special tokens are not written out in the text.
    pub skip_special_tokens: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            max_new_tokens: 128,
            min_new_tokens: 0,
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            seed: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            no_stop_trim: false,
            skip_special_tokens: true,
        }
    }
}

/// The next token id. `logits[i]` belongs to id `i + FIRST_LOGIT`; only words and the end token can be chosen.
#[must_use]
pub fn sample(logits: &[f32], params: &SamplingParams, seed: u64, index: usize) -> u32 {
    let allowed = |at: usize| {
        let id = FIRST_LOGIT + at as u32;
        id >= FIRST_WORD || (id == IM_END && !params.ignore_eos && index >= params.min_new_tokens)
    };
    // Temperatures below this are greedy: the quotient would overflow.
    if params.temperature < 1e-4 || params.top_k == Some(1) {
        return greedy(logits, allowed);
    }
    let mut choices: Vec<(f32, u32)> = logits
        .iter()
        .enumerate()
        .filter(|(at, _)| allowed(*at))
        .map(|(at, logit)| (logit / params.temperature, FIRST_LOGIT + at as u32))
        .collect();
    let largest = choices.iter().fold(f32::NEG_INFINITY, |m, (logit, _)| m.max(*logit));
    for (value, _) in &mut choices {
        *value = exp(*value - largest);
    }
    restrict(&mut choices, params);
    let total: f32 = choices.iter().map(|(weight, _)| weight).sum();
    let mut rest = uniform(seed, index) * total;
    for (weight, id) in &choices {
        rest -= weight;
        if rest < 0.0 {
            return *id;
        }
    }
    choices.last().map_or(FIRST_WORD, |(_, id)| *id)
}

/// top-k, then top-p, then min-p, as SGLang orders them. Weights are relative to the largest, which is 1.
fn restrict(choices: &mut Vec<(f32, u32)>, params: &SamplingParams) {
    if params.top_k.is_none() && params.top_p >= 1.0 && params.min_p <= 0.0 {
        return;
    }
    // Stable on ties: the smaller id first.
    choices.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if let Some(k) = params.top_k {
        choices.truncate(k.max(1));
    }
    if params.top_p < 1.0 {
        let total: f32 = choices.iter().map(|(weight, _)| weight).sum();
        let mut before = 0.0;
        let kept = choices.iter().take_while(|(weight, _)| {
            let keep = before < params.top_p * total;
            before += weight;
            keep
        });
        let kept = kept.count().max(1);
        choices.truncate(kept);
    }
    if params.min_p > 0.0 {
        let kept = choices.iter().take_while(|(weight, _)| *weight >= params.min_p).count().max(1);
        choices.truncate(kept);
    }
}

fn greedy(logits: &[f32], allowed: impl Fn(usize) -> bool) -> u32 {
    let mut best = (f32::NEG_INFINITY, FIRST_WORD);
    for (at, logit) in logits.iter().enumerate() {
        if *logit > best.0 && allowed(at) {
            best = (*logit, FIRST_LOGIT + at as u32);
        }
    }
    best.1
}

/// In `0 .. 1`, from 24 bits.
fn uniform(seed: u64, index: usize) -> f32 {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(bytes);
    rng.set_stream(index as u64);
    (rng.next_u32() >> 8) as f32 / (1u32 << 24) as f32
}
