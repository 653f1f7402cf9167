//! The model: a decoder-only transformer in f32, of the family of Llama, Qwen2 and Qwen3 (RMSNorm, rotary positions,
//! grouped-query attention, SwiGLU).
//!
//! Its own tiny one, made from a seed, is small enough for thousands of tokens per second on one core and real in every
//! other respect: what it says depends on every token before it, through a paged KV cache. Others come from a Hugging
//! Face folder. A forward pass takes a ragged batch of token runs; how the kernels keep a run's bits independent of the
//! rest of the batch is said in [`crate::kernels`].

use crate::kernels::Isa;
use crate::team::Team;
use crate::tokenizer::{FIRST_SPECIAL, FIRST_WORD, IM_END, VOCAB};
pub use attention::MOST_HEAD_DIM;
pub use kv::KvStore;
pub use rope::{Rope, Scaling};
use std::ops::Range;
use std::sync::Arc;
pub use weights::Weights;

pub mod attention;
mod fingerprint;
pub mod folder;
mod forward;
pub mod kv;
mod rope;
pub mod seeded;
mod weights;

#[cfg(test)]
pub(crate) mod tests;

/// The tiny model's logits begin at this id: byte tokens are never generated, so their head rows do not exist.
pub const FIRST_LOGIT: u32 = FIRST_SPECIAL;

/// Which of the supported architectures. They share one forward pass; biases and norms are fields of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Llama,
    Qwen2,
    Qwen3,
}

impl Family {
    /// Hugging Face's `model_type`.
    #[must_use]
    pub fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }

    /// The entry of Hugging Face's `architectures`.
    #[must_use]
    pub fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "LlamaForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
        }
    }
}

/// Dimensions and ids. Widths (`hidden`, `head_dim`, `ffn`) are multiples of 16.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub family: Family,
    /// Token ids are below this.
    pub vocab_tokens: usize,
    /// Tokens that end an answer.
    pub eos_tokens: Vec<u32>,
    /// Ids below this are never generated: the model has no logits for them.
    pub first_logit: u32,
    /// Further ids that are never generated: their logits are negative infinity.
    pub suppressed_tokens: Vec<Range<u32>>,
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Dimensions of one head, at most [`MOST_HEAD_DIM`].
    pub head_dim: usize,
    pub kv_heads: usize,
    /// Width of the feed-forward part.
    pub ffn: usize,
    /// Largest position + 1.
    pub context_tokens: usize,
    /// Added to the mean square before a norm divides by its root.
    pub norm_epsilon: f32,
    pub rope: Rope,
    /// Queries, keys and values have a bias (Qwen2).
    pub qkv_bias: bool,
    /// The attention's output has a bias.
    pub output_bias: bool,
    /// Gate, up and down have a bias.
    pub ffn_bias: bool,
    /// Each query and key head is normed before rotation (Qwen3).
    pub qk_norm: bool,
    /// The head is the embedding; `first_logit` is 0 then.
    pub tied_embeddings: bool,
    /// All weights follow from it, on every machine, unless they come from a file.
    pub seed: u64,
}

/// The tiny model.
impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            family: Family::Llama,
            vocab_tokens: VOCAB,
            eos_tokens: vec![IM_END],
            first_logit: FIRST_LOGIT,
            suppressed_tokens: vec![FIRST_LOGIT..IM_END, IM_END + 1..FIRST_WORD],
            layers: 2,
            hidden: 64,
            heads: 4,
            head_dim: 16,
            kv_heads: 2,
            ffn: 160,
            context_tokens: 1 << 20,
            norm_epsilon: 1e-6,
            rope: Rope::default(),
            qkv_bias: false,
            output_bias: false,
            ffn_bias: false,
            qk_norm: false,
            tied_embeddings: false,
            seed: 1876,
        }
    }
}

/// Dimensions of a head of [`ModelConfig::random`], and query heads that share one of keys and values.
const RANDOM_HEAD_DIM: usize = 64;
const RANDOM_SHARED: usize = 4;

impl ModelConfig {
    /// The tiny model's words with so many layers of this width, shaped as a small Llama: as much arithmetic as a model of
    /// its size, and nothing to say.
    ///
    /// # Errors
    /// With the rule that is broken.
    pub fn random(layers: usize, width: usize) -> Result<Self, &'static str> {
        if !(1..=64).contains(&layers) || !(256..=4_096).contains(&width) || !width.is_multiple_of(256) {
            return Err("use 1 to 64 layers, and a width of 256 to 4096 that is a multiple of 256");
        }
        let heads = width / RANDOM_HEAD_DIM;
        let kv_heads = heads / RANDOM_SHARED;
        // Llama's 8/3 of the width.
        let ffn = (width * 8 / 3).next_multiple_of(16);
        let tiny = ModelConfig::default();
        Ok(ModelConfig { layers, hidden: width, heads, head_dim: RANDOM_HEAD_DIM, kv_heads, ffn, ..tiny })
    }

    /// Width of the queries of one position and layer.
    #[must_use]
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of the keys (and of the values) of one position and layer.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Logits per position.
    #[must_use]
    pub fn logit_count(&self) -> usize {
        self.vocab_tokens - self.first_logit as usize
    }

    /// The rule that these dimensions break, if any.
    #[must_use]
    pub fn broken_rule(&self) -> Option<&'static str> {
        let rules = [
            (
                self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads.max(1)),
                "heads must be a multiple of KV heads",
            ),
            (self.heads > 0 && self.layers > 0, "there must be heads and layers"),
            (
                self.head_dim > 0 && self.head_dim.is_multiple_of(16),
                "the dimensions of a head must be a multiple of 16",
            ),
            (self.head_dim <= MOST_HEAD_DIM, "a head may have 256 dimensions at most"),
            (self.hidden > 0 && self.hidden.is_multiple_of(16), "the hidden size must be a multiple of 16"),
            (self.ffn > 0 && self.ffn.is_multiple_of(16), "the feed-forward size must be a multiple of 16"),
            (self.vocab_tokens > self.first_logit as usize, "the vocabulary must not be empty"),
            (!self.tied_embeddings || self.first_logit == 0, "with tied embeddings every token has a logit"),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map(|(_, rule)| rule)
    }
}

/// New tokens of one sequence in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Tokens at positions `start ..`.
    pub tokens: &'a [u32],
    pub start: usize,
    /// Pages that hold positions `0 .. start + tokens.len()`.
    pub pages: &'a [u32],
    pub want: Want,
}

/// What a run shall leave behind besides its KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    Nothing,
    /// Logits after its last token.
    Logits,
    /// Logits after each of its tokens from this one on, for log-probabilities of the prompt.
    LogitsFrom(usize),
    /// The final hidden states of all its tokens.
    Hidden,
}

/// Results of a forward pass, in the order of the runs that wanted them.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// `[positions that want logits][logit_count]`, token id = index + [`ModelConfig::first_logit`]. Ids that the model never
    /// generates have negative infinity.
    pub logits: Vec<f32>,
    /// `[tokens of runs that want hidden states][hidden]`.
    pub hidden: Vec<f32>,
}

/// Weights and scratch space of one model. A clone shares the weights and the threads.
#[derive(Clone, Debug)]
pub struct Model {
    config: ModelConfig,
    weights: Arc<Weights>,
    rope: rope::Table,
    isa: Isa,
    team: Arc<Team>,
    buffers: forward::Buffers,
    /// Room for the next results.
    spare: Output,
}

/// Numbers that are worth keeping room for between steps: a fresh megabyte costs the system more than to fill it. Not the
/// logits of a long prompt.
const MOST_SPARE: usize = 1 << 22;

impl Model {
    /// Makes the weights from the seed (tens of milliseconds for the default size); computes on the caller's thread.
    ///
    /// # Panics
    /// When the dimensions break the rules of [`ModelConfig`].
    #[must_use]
    pub fn new(config: ModelConfig) -> Self {
        assert!(config.broken_rule().is_none(), "{}", config.broken_rule().unwrap_or_default());
        let weights = Arc::new(seeded::generate(&config));
        Model::with_weights(config, weights)
    }

    /// A model with weights of these dimensions.
    #[must_use]
    pub fn with_weights(config: ModelConfig, weights: Arc<Weights>) -> Self {
        let rope = rope::Table::new(&config.rope, config.head_dim);
        let team = Arc::new(Team::alone());
        let (buffers, spare) = (forward::Buffers::default(), Output::default());
        Model { config, weights, rope, isa: Isa::best(), team, buffers, spare }
    }

    /// Computes on these threads from now on. Results are the same on any number of them.
    pub fn set_team(&mut self, team: Arc<Team>) {
        self.team = team;
    }

    /// Computes with this instruction set from now on. Results are the same with any of them.
    pub fn set_isa(&mut self, isa: Isa) {
        self.isa = isa;
    }

    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    #[must_use]
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.weights.len_bytes()
    }

    /// Logits per position.
    #[must_use]
    pub fn logit_count(&self) -> usize {
        self.config.logit_count()
    }

    /// Runs a ragged batch: writes the KV of every token into its page and returns what was wanted.
    pub fn forward(&mut self, runs: &[Run<'_>], kv: &mut KvStore) -> Output {
        let positions = runs.iter().map(|run| run.start + run.tokens.len()).max().unwrap_or(0);
        self.rope.grow(positions);
        let Model { config, weights, rope, isa, team, buffers, spare } = self;
        let pass = forward::Pass { config, weights, rope, isa: *isa, team };
        let output = std::mem::take(spare);
        team.enter(|| pass.run(runs, kv, buffers, output))
    }

    /// Gives back results that are no longer needed, for the room that they take.
    pub fn give_back(&mut self, output: Output) {
        if output.logits.capacity() + output.hidden.capacity() <= MOST_SPARE {
            self.spare = output;
        }
    }
}
