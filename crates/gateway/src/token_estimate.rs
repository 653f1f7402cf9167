//! Prompt tokens from prompt bytes, with a ratio that answers teach.
//!
//! Where a prompt cannot be tokenised here, its length is its text's bytes divided by a learned ratio: every answer with
//! `usage.prompt_tokens` is an example. Each model has its own, for its tokenizer and its users' languages; one that has taught nothing is
//! taken to be as all are.

use parking_lot::RwLock;
use plimsoll_protocol::request::PromptSize;
use std::collections::BTreeMap;

/// Least weight of one example; the first ones weigh as much as it takes to be their mean.
const LEARNING_RATE: f64 = 0.02;

/// A mean that forgets slowly.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    bytes_per_token: f64,
    examples: u32,
}

impl Ratio {
    fn learn(&mut self, example: f64) {
        self.examples = self.examples.saturating_add(1);
        let weight = (1.0 / f64::from(self.examples)).max(LEARNING_RATE);
        self.bytes_per_token += weight * (example - self.bytes_per_token);
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
        let all = Ratio { bytes_per_token: assumed_bytes_per_token, examples: 0 };
        TokenEstimate(RwLock::new(Ratios { all, by_model: BTreeMap::new() }))
    }

    /// Of a model, or of all where it has taught nothing.
    #[must_use]
    pub fn bytes_per_token(&self, model: &str) -> f64 {
        let ratios = self.0.read();
        ratios.by_model.get(model).unwrap_or(&ratios.all).bytes_per_token
    }

    /// Those of the models that have taught one.
    #[must_use]
    pub fn by_model(&self) -> Vec<(String, f64)> {
        self.0.read().by_model.iter().map(|(model, ratio)| (model.clone(), ratio.bytes_per_token)).collect()
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
        let example = (bytes as f64 / prompt_tokens as f64).clamp(0.25, 64.0);
        let mut ratios = self.0.write();
        ratios.all.learn(example);
        match ratios.by_model.get_mut(model) {
            Some(ratio) => ratio.learn(example),
            None => {
                ratios.by_model.insert(model.to_owned(), Ratio { bytes_per_token: example, examples: 1 });
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
        estimate.learn("a", PromptSize::TextBytes(400), 200);
        assert_eq!(estimate.tokens("a", PromptSize::TextBytes(400)), 200, "the first example is all there is");
        for _ in 0..400 {
            estimate.learn("b", PromptSize::TextBytes(600), 100);
        }
        assert_eq!(estimate.tokens("a", PromptSize::TextBytes(400)), 200);
        assert_eq!(estimate.tokens("b", PromptSize::TextBytes(600)), 100);
        let unknown = estimate.bytes_per_token("c");
        assert!((5.0..6.1).contains(&unknown), "{unknown}");
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
        estimate.learn("a", PromptSize::TextBytes(1 << 40), 1);
        assert!((estimate.bytes_per_token("a") - 64.0).abs() < 1e-9);
    }
}
