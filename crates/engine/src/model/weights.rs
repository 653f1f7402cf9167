//! The weights of a model, in the form that the kernels read.

use super::ModelConfig;
use crate::kernels::lanes::ZERO;
use crate::kernels::{Block, LANES, Matrix};

/// Everything that was learnt. Shared by all who run the model.
pub struct Weights {
    pub(crate) embedding: Embedding,
    pub(crate) layers: Vec<Layer>,
    /// `[hidden]` in blocks.
    pub(crate) final_gain: Vec<Block>,
    /// From the hidden state to the logits of ids `first_logit ..`, with zero outputs after the last up to a multiple of 16.
    pub(crate) head: Matrix,
}

pub(crate) enum Embedding {
    /// `[vocabulary][hidden / 16]`.
    Rows(Vec<Block>),
    /// The rows of the head.
    Tied,
}

pub(crate) struct Layer {
    pub(crate) attention_gain: Vec<Block>,
    /// Queries, keys and values side by side.
    pub(crate) qkv: Matrix,
    /// Norms of each query and key head (Qwen3), `[head_dim]` in blocks.
    pub(crate) query_gain: Option<Vec<Block>>,
    pub(crate) key_gain: Option<Vec<Block>>,
    pub(crate) output: Matrix,
    pub(crate) ffn_gain: Vec<Block>,
    /// Gate and up side by side.
    pub(crate) gate_up: Matrix,
    pub(crate) down: Matrix,
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Weights({} layers, {} bytes)", self.layers.len(), self.len_bytes())
    }
}

impl Weights {
    /// Writes the embedding of a token to `row`, the blocks of a row of activations. Ids outside the vocabulary are
    /// refused long before; here they read as id 0.
    pub(crate) fn embed<'a>(&self, config: &ModelConfig, id: u32, row: impl Iterator<Item = &'a mut Block>) {
        let id = if (id as usize) < config.vocab_tokens { id as usize } else { 0 };
        match &self.embedding {
            Embedding::Rows(rows) => {
                let width = config.hidden / LANES;
                for (to, from) in row.zip(&rows[id * width..]) {
                    *to = *from;
                }
            }
            Embedding::Tied => {
                let mut weights = self.head.output(id);
                for to in row {
                    to.0 = std::array::from_fn(|_| weights.next().unwrap_or_default());
                }
            }
        }
    }

    #[must_use]
    pub fn len_bytes(&self) -> usize {
        let embedding = match &self.embedding {
            Embedding::Rows(rows) => size_of_val(rows.as_slice()),
            Embedding::Tied => 0,
        };
        let layers: usize = self.layers.iter().map(Layer::len_bytes).sum();
        embedding + layers + self.head.len_bytes() + size_of_val(self.final_gain.as_slice())
    }
}

impl Layer {
    fn len_bytes(&self) -> usize {
        let gains =
            [Some(&self.attention_gain), Some(&self.ffn_gain), self.query_gain.as_ref(), self.key_gain.as_ref()];
        let gains: usize = gains.into_iter().flatten().map(|gain| size_of_val(gain.as_slice())).sum();
        gains + [&self.qkv, &self.output, &self.gate_up, &self.down].map(Matrix::len_bytes).iter().sum::<usize>()
    }
}

/// A vector in blocks; its length is a multiple of 16.
pub(crate) fn in_blocks(values: &[f32]) -> Vec<Block> {
    let mut blocks = vec![ZERO; values.len().div_ceil(LANES)];
    for (index, value) in values.iter().enumerate() {
        blocks[index / LANES].0[index % LANES] = *value;
    }
    blocks
}
