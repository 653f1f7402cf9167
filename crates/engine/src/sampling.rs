//! From logits to the next token.
//!
//! Randomness is a function of (seed, index of the token in the output), and penalties of the tokens so far: a request
//! that was preempted and recomputed, moved to another engine, or shares its batch with others, gets the same tokens.
//!
//! Order, as vLLM has it: bias, penalties, end tokens held back, temperature, top-k, top-p, min-p.

use crate::kernels::exp;
use crate::model::FIRST_LOGIT;
use crate::text::Text;
use crate::tokenizer::IM_END;
use penalties::Tally;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

pub(crate) mod limits;
pub mod logprobs;
pub mod penalties;
#[cfg(test)]
mod tests;

/// What a request asks of sampling and of its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingParams {
    pub max_new_tokens: usize,
    /// No end token and none of `stop_token_ids` is generated before this many tokens.
    pub min_new_tokens: usize,
    /// 0 is greedy.
    pub temperature: f32,
    pub top_p: f32,
    /// `None`: off.
    pub top_k: Option<usize>,
    pub min_p: f32,
    /// `None`: a fresh one per request.
    pub seed: Option<u64>,
    /// Taken off the logit of every token that was generated at least once, -2 to 2.
    pub presence_penalty: f32,
    /// Taken off per time that a token was generated, -2 to 2.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output, above 0; 1 is off.
    pub repetition_penalty: f32,
    /// Added to the logits of these ids; at most one entry per id.
    pub logit_bias: Vec<(u32, f32)>,
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    /// The answer does not end at an end token.
    pub ignore_eos: bool,
    /// Leave a matched stop string in the text.
    pub no_stop_trim: bool,
    /// Special tokens are not written out in the text.
    pub skip_special_tokens: bool,
    /// `None`: no log-probabilities.
    pub logprobs: Option<logprobs::LogprobAsk>,
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
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            no_stop_trim: false,
            skip_special_tokens: true,
            logprobs: None,
        }
    }
}

/// Which ids a model's logits belong to, which of them end an answer, and how they read.
#[derive(Clone, Debug)]
pub struct TokenRules {
    /// `logits[i]` belongs to id `i + first_logit`. Ids that are never generated have negative infinity.
    pub first_logit: u32,
    pub end_tokens: Vec<u32>,
    /// With `ignore_eos` the end tokens are not generated at all, so that an answer of the tiny model has one word per
    /// token; without, the answer goes on after them, as in stock engines.
    pub end_is_silent: bool,
    pub text: Text,
}

impl Default for TokenRules {
    /// Those of the tiny model.
    fn default() -> Self {
        TokenRules { first_logit: FIRST_LOGIT, end_tokens: vec![IM_END], end_is_silent: true, text: Text::default() }
    }
}

impl TokenRules {
    /// Whether the answer ends with this token.
    #[must_use]
    pub fn ends(&self, token: u32, params: &SamplingParams) -> bool {
        (!params.ignore_eos && self.end_tokens.contains(&token)) || params.stop_token_ids.contains(&token)
    }

    /// Ids that must not come now, at the output's token `index`.
    fn held_back<'a>(&'a self, params: &'a SamplingParams, index: usize) -> impl Iterator<Item = u32> + 'a {
        let early = index < params.min_new_tokens;
        let ends = early || (params.ignore_eos && self.end_is_silent);
        let ends = self.end_tokens.iter().filter(move |_| ends);
        ends.chain(params.stop_token_ids.iter().filter(move |_| early)).copied()
    }

    fn position(&self, id: u32) -> Option<usize> {
        id.checked_sub(self.first_logit).map(|at| at as usize)
    }
}

/// The next token id: number `index` of the output. `tally` is read only where [`Tally::needed`] says so.
#[must_use]
pub fn sample(
    logits: &[f32],
    rules: &TokenRules,
    params: &SamplingParams,
    tally: &Tally,
    seed: u64,
    index: usize,
) -> u32 {
    let logits = adjusted(logits, rules, params, tally, index);
    // Temperatures below this are greedy: the quotient would overflow.
    if params.temperature < 1e-4 || params.top_k == Some(1) {
        return greedy(&logits, rules.first_logit);
    }
    let mut choices: Vec<(f32, u32)> = logits
        .iter()
        .zip(rules.first_logit..)
        .filter(|(logit, _)| **logit > f32::NEG_INFINITY)
        .map(|(logit, id)| (logit / params.temperature, id))
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
    choices.last().map_or(rules.first_logit, |(_, id)| *id)
}

/// The logits after bias, penalties and ids that may not come now.
fn adjusted<'a>(
    logits: &'a [f32],
    rules: &TokenRules,
    params: &SamplingParams,
    tally: &Tally,
    index: usize,
) -> Cow<'a, [f32]> {
    let mut logits = Cow::Borrowed(logits);
    for (id, bias) in &params.logit_bias {
        if let Some(logit) = rules.position(*id).and_then(|at| logits.to_mut().get_mut(at)) {
            *logit += bias;
        }
    }
    if Tally::needed(params) {
        tally.apply(logits.to_mut(), rules.first_logit, params);
    }
    for id in rules.held_back(params, index) {
        if let Some(logit) = rules.position(id).and_then(|at| logits.to_mut().get_mut(at)) {
            *logit = f32::NEG_INFINITY;
        }
    }
    logits
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

/// The id of the largest logit, the smallest such id on ties.
fn greedy(logits: &[f32], first_logit: u32) -> u32 {
    let mut best = (f32::NEG_INFINITY, first_logit);
    for (logit, id) in logits.iter().zip(first_logit..) {
        if *logit > best.0 {
            best = (*logit, id);
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
