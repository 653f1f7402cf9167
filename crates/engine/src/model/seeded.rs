//! Weights from a seed, the same bits on every machine.
//!
//! ChaCha8 gives integers; a weight is a sum of four uniforms (close to normal), scaled. Only exact float operations:
//! no logarithm, no cosine, whose last bits differ between maths libraries.

use super::ModelConfig;
use super::weights::{Embedding, Layer, Weights, in_blocks};
use crate::kernels::{LANES, Matrix};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// All weights of a model that has no file.
#[must_use]
pub fn generate(config: &ModelConfig) -> Weights {
    let mut source = Source::new(config.seed);
    let (hidden, kv, wide) = (config.hidden, config.kv_width(), config.query_width());
    let embedding: Vec<f32> = (0..config.vocab_tokens * hidden).map(|_| source.next(1.0)).collect();
    // Residual branches are scaled down with depth, as usual, so that the stream keeps its size.
    let branch = 1.0 / (2.0 * config.layers as f32).sqrt();
    let layers = (0..config.layers)
        .map(|_| {
            // Queries are louder than usual: sharp attention makes an answer depend on far tokens.
            let query = source.matrix(hidden, wide, 2.0, config.qkv_bias);
            let key = source.matrix(hidden, kv, 1.0, config.qkv_bias);
            let value = source.matrix(hidden, kv, 2.0, config.qkv_bias);
            let output = source.matrix(wide, hidden, 2.0 * branch, config.output_bias);
            let gate = source.matrix(hidden, config.ffn, 1.5, config.ffn_bias);
            let up = source.matrix(hidden, config.ffn, 1.5, config.ffn_bias);
            let down = source.matrix(config.ffn, hidden, 2.0 * branch, config.ffn_bias);
            let mut head_gain = || config.qk_norm.then(|| in_blocks(&source.gains(config.head_dim)));
            Layer {
                attention_gain: in_blocks(&vec![1.0; hidden]),
                query_gain: head_gain(),
                key_gain: head_gain(),
                qkv: Matrix::beside(vec![query, key, value]),
                output,
                ffn_gain: in_blocks(&vec![1.0; hidden]),
                gate_up: Matrix::beside(vec![gate, up]),
                down,
            }
        })
        .collect();
    let scale = 2.5 / (hidden as f32).sqrt();
    let (first, vocab) = (config.first_logit as usize, config.vocab_tokens);
    let outputs = (vocab - first).next_multiple_of(LANES);
    let mut head = Matrix::new(hidden, outputs);
    if config.tied_embeddings {
        for (id, row) in embedding.chunks_exact(hidden).enumerate() {
            head.set_output(id, row.iter().map(|weight| weight * scale));
        }
    } else {
        head = Matrix::from_fn(hidden, outputs, |_, output| {
            let weight = source.next(scale);
            let id = (first + output) as u32;
            let said = first + output < vocab && !config.suppressed_tokens.iter().any(|range| range.contains(&id));
            if said { weight } else { 0.0 }
        });
    }
    let embedding = if config.tied_embeddings { Embedding::Tied } else { Embedding::Rows(in_blocks(&embedding)) };
    Weights { embedding, layers, final_gain: in_blocks(&vec![1.0; hidden]), head }
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

    fn matrix(&mut self, inputs: usize, outputs: usize, gain: f32, bias: bool) -> Matrix {
        let deviation = gain / (inputs as f32).sqrt();
        let mut matrix = Matrix::from_fn(inputs, outputs, |_, _| self.next(deviation));
        if bias {
            let bias: Vec<f32> = (0..outputs).map(|_| self.next(0.3)).collect();
            matrix.set_bias(&bias);
        }
        matrix
    }

    /// Around 1.
    fn gains(&mut self, width: usize) -> Vec<f32> {
        (0..width).map(|_| 1.0 + self.next(0.2)).collect()
    }
}
