//! The model: a decoder-only transformer in f32, Llama's shape (RMSNorm, rotary positions, grouped-query attention,
//! SwiGLU, untied head).
//!
//! Small enough for thousands of tokens per second on one core, real in every other respect: what it says depends on
//! every token before it, through a paged KV cache. A forward pass takes a ragged batch of token runs; how the kernels
//! keep a run's bits independent of the rest of the batch is said in [`crate::kernels`].

use crate::kernels::{rms_norm, swiglu};
use crate::tokenizer::{FIRST_SPECIAL, IM_END, VOCAB};
use attention::{HEAD_DIM, Scratch};
pub use kv::KvStore;
use std::sync::Arc;
use weights::{Layer, Weights};

pub mod attention;
pub mod kv;
mod rope;
mod weights;

#[cfg(test)]
mod tests;

/// Logits are computed from this id on: byte tokens are never generated, so their head rows do not exist.
pub const FIRST_LOGIT: u32 = FIRST_SPECIAL;

/// Dimensions and ids. For now the head size is 16, `hidden` is `heads * head_dim`, and query heads per KV head are 1 or 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// Token ids are below this.
    pub vocab_tokens: usize,
    /// Tokens that end an answer.
    pub eos_tokens: Vec<u32>,
    /// Ids below this are never generated: the model has no logits for them.
    pub first_logit: u32,
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    pub heads: usize,
    /// Dimensions of one head, a multiple of 16.
    pub head_dim: usize,
    pub kv_heads: usize,
    /// Width of the feed-forward part, a multiple of 16.
    pub ffn: usize,
    /// Largest position + 1.
    pub context_tokens: usize,
    /// All weights follow from it, on every machine.
    pub seed: u64,
}

impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            vocab_tokens: VOCAB,
            eos_tokens: vec![IM_END],
            first_logit: FIRST_LOGIT,
            layers: 2,
            hidden: 64,
            heads: 4,
            head_dim: HEAD_DIM,
            kv_heads: 2,
            ffn: 160,
            context_tokens: 32_768,
            seed: 1876,
        }
    }
}

impl ModelConfig {
    /// Width of the keys (and of the values) of one position and layer.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
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
#[derive(Debug, Default)]
pub struct Output {
    /// `[positions that want logits][logit_count]`, token id = index + [`ModelConfig::first_logit`]. Ids that the model never
    /// generates have negative infinity.
    pub logits: Vec<f32>,
    /// `[tokens of runs that want hidden states][hidden]`.
    pub hidden: Vec<f32>,
}

/// Weights and scratch space of one model. A clone shares the weights.
#[derive(Clone, Debug)]
pub struct Model {
    config: ModelConfig,
    weights: Arc<Weights>,
    rope: Arc<rope::Table>,
    buffers: Buffers,
}

#[derive(Clone, Debug, Default)]
struct Buffers {
    x: Vec<f32>,
    norm: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mixed: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    delta: Vec<f32>,
    last: Vec<f32>,
    attention: Scratch,
}

impl Model {
    /// Makes the weights; tens of milliseconds for the default size.
    ///
    /// # Panics
    /// When the dimensions break the rules of [`ModelConfig`].
    #[must_use]
    pub fn new(config: ModelConfig) -> Self {
        assert!(
            config.kv_heads > 0
                && matches!(config.heads / config.kv_heads, 1 | 2)
                && config.heads.is_multiple_of(config.kv_heads),
            "query heads per KV head must be 1 or 2"
        );
        assert!(
            config.head_dim == HEAD_DIM && config.hidden == config.heads * HEAD_DIM,
            "heads must have 16 dimensions"
        );
        let weights = Arc::new(Weights::generate(&config));
        let rope = Arc::new(rope::Table::new(config.context_tokens));
        Model { config, weights, rope, buffers: Buffers::default() }
    }

    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.weights.len_bytes()
    }

    /// Logits per position.
    #[must_use]
    pub fn logit_count(&self) -> usize {
        self.weights.head.outputs()
    }

    /// Runs a ragged batch: writes the KV of every token into its page and returns what was wanted.
    pub fn forward(&mut self, runs: &[Run<'_>], kv: &mut KvStore) -> Output {
        let hidden = self.config.hidden;
        let buffers = &mut self.buffers;
        let tokens: usize = runs.iter().map(|run| run.tokens.len()).sum();
        buffers.resize(tokens, &self.config);
        for (row, id) in buffers.x.chunks_exact_mut(hidden).zip(runs.iter().flat_map(|run| run.tokens)) {
            row.copy_from_slice(self.weights.embedding(*id));
        }
        for (index, layer) in self.weights.layers.iter().enumerate() {
            attend(layer, index, runs, &self.config, &self.rope, kv, buffers);
            feed_forward(layer, buffers);
        }
        rms_norm(&buffers.x, &self.weights.final_gain, &mut buffers.norm);
        let mut output = Output::default();
        buffers.last.clear();
        let mut row = 0;
        for run in runs {
            let rows = &buffers.norm[row * hidden..][..run.tokens.len() * hidden];
            match run.want {
                Want::Nothing => {}
                Want::Logits => buffers.last.extend_from_slice(&rows[rows.len() - hidden..]),
                Want::LogitsFrom(first) => buffers.last.extend_from_slice(&rows[first * hidden..]),
                Want::Hidden => output.hidden.extend_from_slice(rows),
            }
            row += run.tokens.len();
        }
        output.logits.resize(buffers.last.len() / hidden * self.weights.head.outputs(), 0.0);
        self.weights.head.multiply(&buffers.last, &mut output.logits);
        for row in output.logits.chunks_exact_mut(self.weights.head.outputs()) {
            for silent in &self.weights.silent {
                row[silent.clone()].fill(f32::NEG_INFINITY);
            }
        }
        output
    }
}

impl Buffers {
    fn resize(&mut self, tokens: usize, config: &ModelConfig) {
        let wide = tokens * config.hidden;
        for buffer in [&mut self.x, &mut self.norm, &mut self.q, &mut self.mixed, &mut self.delta] {
            buffer.resize(wide, 0.0);
        }
        for buffer in [&mut self.k, &mut self.v] {
            buffer.resize(tokens * config.kv_width(), 0.0);
        }
        for buffer in [&mut self.gate, &mut self.up] {
            buffer.resize(tokens * config.ffn, 0.0);
        }
    }
}

/// `x += attention(norm(x))`, and the new keys and values go to their pages.
fn attend(
    layer: &Layer,
    index: usize,
    runs: &[Run<'_>],
    config: &ModelConfig,
    rope: &rope::Table,
    kv: &mut KvStore,
    buffers: &mut Buffers,
) {
    let (hidden, width) = (config.hidden, config.kv_width());
    rms_norm(&buffers.x, &layer.attention_gain, &mut buffers.norm);
    layer.query.multiply(&buffers.norm, &mut buffers.q);
    layer.key.multiply(&buffers.norm, &mut buffers.k);
    layer.value.multiply(&buffers.norm, &mut buffers.v);
    let mut row = 0;
    for run in runs {
        // All keys of the run first: a token sees itself and those before it, also those of its own run.
        for position in run.start..run.start + run.tokens.len() {
            rope.rotate(&mut buffers.q[row * hidden..][..hidden], position);
            let key = &mut buffers.k[row * width..][..width];
            rope.rotate(key, position);
            kv.write(index, run.pages, position, key, &buffers.v[row * width..][..width]);
            row += 1;
        }
    }
    row = 0;
    for run in runs {
        for position in run.start..run.start + run.tokens.len() {
            let q = &buffers.q[row * hidden..][..hidden];
            let out = &mut buffers.mixed[row * hidden..][..hidden];
            attention::attend(kv, index, run.pages, position + 1, q, out, &mut buffers.attention);
            row += 1;
        }
    }
    layer.output.multiply(&buffers.mixed, &mut buffers.delta);
    add(&mut buffers.x, &buffers.delta);
}

/// `x += down(silu(gate(norm(x))) * up(norm(x)))`.
fn feed_forward(layer: &Layer, buffers: &mut Buffers) {
    rms_norm(&buffers.x, &layer.ffn_gain, &mut buffers.norm);
    layer.gate.multiply(&buffers.norm, &mut buffers.gate);
    layer.up.multiply(&buffers.norm, &mut buffers.up);
    swiglu(&mut buffers.gate, &buffers.up);
    layer.down.multiply(&buffers.gate, &mut buffers.delta);
    add(&mut buffers.x, &buffers.delta);
}

fn add(x: &mut [f32], delta: &[f32]) {
    for (x, delta) in x.iter_mut().zip(delta) {
        *x += delta;
    }
}
