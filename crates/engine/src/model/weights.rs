//! Weights from a seed, the same bits on every machine.
//!
//! ChaCha8 gives integers; a weight is a sum of four uniforms (close to normal), scaled. Only exact float operations:
//! no logarithm, no cosine, whose last bits differ between maths libraries.

use super::{FIRST_LOGIT, ModelConfig};
use crate::kernels::Matrix;
use crate::tokenizer::{FIRST_WORD, IM_END, VOCAB};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct Weights {
    embedding: Vec<f32>,
    hidden: usize,
    pub(crate) layers: Vec<Layer>,
    pub(crate) final_gain: Vec<f32>,
    /// From the hidden state to the logits of ids `FIRST_LOGIT ..`; zero for specials other than the end token.
    pub(crate) head: Matrix,
    /// Columns of `head` whose ids are never generated.
    pub(crate) silent: Vec<Range<usize>>,
}

#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_gain: Vec<f32>,
    pub(crate) query: Matrix,
    pub(crate) key: Matrix,
    pub(crate) value: Matrix,
    pub(crate) output: Matrix,
    pub(crate) ffn_gain: Vec<f32>,
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
}

impl Weights {
    pub(crate) fn generate(config: &ModelConfig) -> Self {
        let mut source = Source::new(config.seed);
        let (hidden, kv) = (config.hidden, config.kv_width());
        let embedding = (0..VOCAB * hidden).map(|_| source.next(1.0)).collect();
        // Residual branches are scaled down with depth, as usual, so that the stream keeps its size.
        let branch = 1.0 / (2.0 * config.layers as f32).sqrt();
        let layers = (0..config.layers)
            .map(|_| Layer {
                attention_gain: vec![1.0; hidden],
                // Queries are louder than usual: sharp attention makes an answer depend on far tokens.
                query: source.matrix(hidden, hidden, 2.0),
                key: source.matrix(hidden, kv, 1.0),
                value: source.matrix(hidden, kv, 2.0),
                output: source.matrix(hidden, hidden, 2.0 * branch),
                ffn_gain: vec![1.0; hidden],
                gate: source.matrix(hidden, config.ffn, 1.5),
                up: source.matrix(hidden, config.ffn, 1.5),
                down: source.matrix(config.ffn, hidden, 2.0 * branch),
            })
            .collect();
        let scale = 2.5 / (hidden as f32).sqrt();
        let head = Matrix::from_fn(hidden, VOCAB - FIRST_LOGIT as usize, |_, output| {
            let weight = source.next(scale);
            let id = FIRST_LOGIT + output as u32;
            if id >= FIRST_WORD || id == IM_END { weight } else { 0.0 }
        });
        let at = |id: u32| (id - FIRST_LOGIT) as usize;
        let silent = vec![0..at(IM_END), at(IM_END) + 1..at(FIRST_WORD)];
        Weights { embedding, hidden, layers, final_gain: vec![1.0; hidden], head, silent }
    }

    /// Ids outside the vocabulary are refused long before; here they read as id 0.
    pub(crate) fn embedding(&self, id: u32) -> &[f32] {
        let row = if (id as usize) < VOCAB { id as usize } else { 0 };
        &self.embedding[row * self.hidden..][..self.hidden]
    }

    pub(crate) fn len_bytes(&self) -> usize {
        let layers: usize = self
            .layers
            .iter()
            .flat_map(|l| [&l.query, &l.key, &l.value, &l.output, &l.gate, &l.up, &l.down])
            .map(Matrix::len_bytes)
            .sum();
        layers + self.head.len_bytes() + size_of_val(self.embedding.as_slice())
    }
}

struct Source(ChaCha8Rng);

impl Source {
    fn new(seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Source(ChaCha8Rng::from_seed(bytes))
    }

    /// Mean 0, the given standard deviation.
    fn next(&mut self, deviation: f32) -> f32 {
        // 22 bits each: the sum of four stays below 2^24 and is exact in f32.
        let sum: u32 = (0..4).map(|_| self.0.next_u32() >> 10).sum();
        let centred = sum as f32 / (1u32 << 22) as f32 - 2.0;
        // Variance of four uniforms is 1/3.
        centred * 1.732_050_8 * deviation
    }

    fn matrix(&mut self, inputs: usize, outputs: usize, gain: f32) -> Matrix {
        let deviation = gain / (inputs as f32).sqrt();
        Matrix::from_fn(inputs, outputs, |_, _| self.next(deviation))
    }
}
