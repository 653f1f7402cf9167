//! Models from a Hugging Face folder: `config.json`, `generation_config.json`, and safetensors in one file or in shards.
//!
//! Everything is checked before the engine starts, and what is wrong is said with the file and the tensor: a model that
//! loads with a wrong shape or a forgotten bias speaks fluent nonsense. Weights become f32 whatever the file has, so that
//! the arithmetic is the same for all.

mod config;
mod export;
mod tensors;

#[cfg(test)]
mod tests;

use super::ModelConfig;
use super::weights::{Embedding, Layer, Weights, in_blocks};
use crate::kernels::{LANES, Matrix};
pub use export::export;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensors::Tensors;

/// A model that was read from a folder.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Where it was read from; the tokenizer lies there too.
    pub path: PathBuf,
    pub config: ModelConfig,
    pub weights: Arc<Weights>,
}

/// What is wrong with a folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}{what}", file.display(), tensor.as_ref().map(|name| format!("tensor {name}: ")).unwrap_or_default())]
pub struct FolderError {
    pub file: PathBuf,
    pub tensor: Option<String>,
    /// Lower case, no full stop.
    pub what: String,
}

impl FolderError {
    fn new(file: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        FolderError { file: file.into(), tensor: None, what: what.into() }
    }

    fn tensor(file: impl Into<PathBuf>, name: &str, what: impl Into<String>) -> Self {
        FolderError { tensor: Some(name.to_owned()), ..FolderError::new(file, what) }
    }
}

impl Folder {
    /// Reads and checks everything; takes as long as reading the files.
    ///
    /// # Errors
    /// Names the file, and the tensor where it is about one.
    pub fn open(path: &Path) -> Result<Folder, FolderError> {
        let config = config::read(path)?;
        let weights = Arc::new(load(&config, &mut Tensors::open(path)?)?);
        Ok(Folder { path: path.to_owned(), config, weights })
    }

    /// The name under which it is served unless another is given: the folder's.
    #[must_use]
    pub fn name(&self) -> String {
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}

fn load(config: &ModelConfig, tensors: &mut Tensors) -> Result<Weights, FolderError> {
    let hidden = config.hidden;
    let layers = (0..config.layers).map(|index| load_layer(config, tensors, index)).collect::<Result<_, _>>()?;
    let final_gain = in_blocks(&tensors.vector("model.norm.weight", hidden)?);
    let outputs = config.vocab_tokens.next_multiple_of(LANES);
    let source = if config.tied_embeddings { EMBEDDING } else { "lm_head.weight" };
    // Before anything is allocated for it, here and below: a size that is wrong must not cost the memory of all that it
    // says.
    tensors.check(source, &[config.vocab_tokens, hidden])?;
    let mut head = Matrix::new(hidden, outputs);
    tensors.rows(source, [config.vocab_tokens, hidden], |id, row| head.set_output(id, row.iter().copied()))?;
    let embedding = if config.tied_embeddings {
        Embedding::Tied
    } else {
        tensors.check(EMBEDDING, &[config.vocab_tokens, hidden])?;
        let mut rows = Vec::with_capacity(config.vocab_tokens * hidden / LANES);
        tensors.rows(EMBEDDING, [config.vocab_tokens, hidden], |_, row| rows.extend(in_blocks(row)))?;
        Embedding::Rows(rows)
    };
    tensors.warn_of_unused();
    Ok(Weights { embedding, layers, final_gain, head })
}

const EMBEDDING: &str = "model.embed_tokens.weight";

fn load_layer(config: &ModelConfig, tensors: &mut Tensors, index: usize) -> Result<Layer, FolderError> {
    let (hidden, query, kv, ffn) = (config.hidden, config.query_width(), config.kv_width(), config.ffn);
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let mut matrix = |part: &str, inputs: usize, outputs: usize, bias: bool| -> Result<Matrix, FolderError> {
        let weight = name(&format!("{part}.weight"));
        tensors.check(&weight, &[outputs, inputs])?;
        let mut matrix = Matrix::new(inputs, outputs);
        tensors.rows(&weight, [outputs, inputs], |output, row| {
            matrix.set_output(output, row.iter().copied());
        })?;
        if bias {
            matrix.set_bias(&tensors.vector(&name(&format!("{part}.bias")), outputs)?);
        }
        Ok(matrix)
    };
    let qkv = [("q_proj", query), ("k_proj", kv), ("v_proj", kv)]
        .into_iter()
        .map(|(part, outputs)| matrix(&format!("self_attn.{part}"), hidden, outputs, config.qkv_bias))
        .collect::<Result<Vec<_>, _>>()?;
    let output = matrix("self_attn.o_proj", query, hidden, config.output_bias)?;
    let gate = matrix("mlp.gate_proj", hidden, ffn, config.ffn_bias)?;
    let up = matrix("mlp.up_proj", hidden, ffn, config.ffn_bias)?;
    let down = matrix("mlp.down_proj", ffn, hidden, config.ffn_bias)?;
    let mut gain = |part: &str, width: usize| tensors.vector(&name(part), width).map(|values| in_blocks(&values));
    let mut head_gain = |part: &str| config.qk_norm.then(|| gain(part, config.head_dim)).transpose();
    let (query_gain, key_gain) = (head_gain("self_attn.q_norm.weight")?, head_gain("self_attn.k_norm.weight")?);
    Ok(Layer {
        attention_gain: gain("input_layernorm.weight", hidden)?,
        qkv: Matrix::beside(qkv),
        query_gain,
        key_gain,
        output,
        ffn_gain: gain("post_attention_layernorm.weight", hidden)?,
        gate_up: Matrix::beside(vec![gate, up]),
        down,
    })
}
