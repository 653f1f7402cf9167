//! Prompt tokens from prompt bytes, with a ratio that answers teach.
//!
//! Where a prompt cannot be tokenised here, its length is its text's bytes divided by a learned ratio: every answer with
//! `usage.prompt_tokens` is an example. Each model has its own, for its tokenizer and its users' languages; one that has taught nothing is
//! taken to be as all are.

use parking_lot::RwLock;
use plimsoll_protocol::request::PromptSize;
use std::collections::BTreeMap;

/// What a sum keeps at each further example: some fifty of them count.
const KEPT: f64 = 0.98;

/// Tokens that the assumed ratio weighs at first: one odd short prompt does not turn it over.
const ASSUMED_TOKENS: f64 = 1_024.0;

/// Bytes and tokens of the last examples, summed: long prompts weigh more, as they do in the load.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    bytes: f64,
    tokens: f64,
}

impl Ratio {
    fn assumed(bytes_per_token: f64) -> Self {
        Ratio { bytes: bytes_per_token * ASSUMED_TOKENS, tokens: ASSUMED_TOKENS }
    }

    fn bytes_per_token(self) -> f64 {
        self.bytes / self.tokens
    }

    fn learn(&mut self, bytes: f64, tokens: f64) {
        (self.bytes, self.tokens) = (self.bytes * KEPT + bytes, self.tokens * KEPT + tokens);
    }
}

#[derive(Debug)]
struct Ratios {
    all: Ratio,
    by_model: BTreeMap<String, Ratio>,
}

/// Learned bytes per token.
#[derive(Debug)]
pub struct TokenEstimate(RwLock<Ratios>);

impl TokenEstimate {
    #[must_use]
    pub fn new(assumed_bytes_per_token: f64) -> Self {
        TokenEstimate(RwLock::new(Ratios { all: Ratio::assumed(assumed_bytes_per_token), by_model: BTreeMap::new() }))
    }

    /// Of a model, or of all where it has taught nothing.
    #[must_use]
    pub fn bytes_per_token(&self, model: &str) -> f64 {
        let ratios = self.0.read();
        ratios.by_model.get(model).unwrap_or(&ratios.all).bytes_per_token()
    }

    /// Those of the models that have taught one.
    #[must_use]
    pub fn by_model(&self) -> Vec<(String, f64)> {
        self.0.read().by_model.iter().map(|(model, ratio)| (model.clone(), ratio.bytes_per_token())).collect()
    }

    /// Prompt tokens of a request: exact for token ids, at least 1.
    #[must_use]
    pub fn tokens(&self, model: &str, size: PromptSize) -> u64 {
        match size {
            PromptSize::Tokens(tokens) => tokens,
            PromptSize::TextBytes(bytes) => ((bytes as f64 / self.bytes_per_token(model)) as u64).max(1),
        }
    }

    /// An answer said how many tokens the prompt had. Short prompts are dominated by the template and teach nothing. `model` is one
    /// that is served, or the word for all others: their number is what bounds this.
    pub fn learn(&self, model: &str, size: PromptSize, prompt_tokens: u64) {
        let PromptSize::TextBytes(bytes) = size else { return };
        if bytes < 256 || prompt_tokens == 0 {
            return;
        }
        let tokens = prompt_tokens as f64;
        let bytes = (bytes as f64 / tokens).clamp(0.25, 64.0) * tokens;
        let mut ratios = self.0.write();
        // A model begins with what all have taught, as if it had been assumed.
        let begin = Ratio::assumed(ratios.all.bytes_per_token());
        ratios.all.learn(bytes, tokens);
        match ratios.by_model.get_mut(model) {
            Some(ratio) => ratio.learn(bytes, tokens),
            None => {
                let mut ratio = begin;
                ratio.learn(bytes, tokens);
                ratios.by_model.insert(model.to_owned(), ratio);
            }
        }
    }

    /// Models that are served no more teach nobody.
    pub fn keep(&self, served: impl Fn(&str) -> bool) {
        self.0.write().by_model.retain(|model, _| served(model));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_teaches_its_own_and_a_new_one_is_as_all_are() {
        let estimate = TokenEstimate::new(4.0);
        assert_eq!(estimate.tokens("a", PromptSize::TextBytes(400)), 100);
        for _ in 0..200 {
            estimate.learn("a", PromptSize::TextBytes(4_000), 2_000);
            estimate.learn("b", PromptSize::TextBytes(60_000), 10_000);
        }
        assert_eq!(estimate.tokens("a", PromptSize::TextBytes(401)), 200);
        assert_eq!(estimate.tokens("b", PromptSize::TextBytes(601)), 100);
        let unknown = estimate.bytes_per_token("c");
        assert!((5.0..5.9).contains(&unknown), "long prompts weigh more: {unknown}");
        estimate.keep(|model| model == "b");
        assert!((estimate.bytes_per_token("a") - unknown).abs() < 1e-9);
    }

    #[test]
    fn ids_short_prompts_and_absurd_answers_teach_nothing_much() {
        let estimate = TokenEstimate::new(4.0);
        estimate.learn("a", PromptSize::Tokens(1_000), 10);
        estimate.learn("a", PromptSize::TextBytes(255), 10);
        estimate.learn("a", PromptSize::TextBytes(4_000), 0);
        assert!(estimate.by_model().is_empty());
        // A small prompt under a large template, and one that is nearly all image.
        estimate.learn("a", PromptSize::TextBytes(300), 1_200);
        assert!(estimate.bytes_per_token("a") > 1.5, "{}", estimate.bytes_per_token("a"));
        estimate.learn("b", PromptSize::TextBytes(1 << 40), 1);
        assert!(estimate.bytes_per_token("b") < 4.2, "{}", estimate.bytes_per_token("b"));
    }
}
