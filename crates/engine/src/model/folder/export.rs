//! Writes a model as a Hugging Face folder, so that others can run the same weights: our tests' numpy, `transformers`,
//! a stock engine.
//!
//! Ids that the model never generates have no logits here; there they get zero weights, and `suppress_tokens` in
//! `generation_config.json` keeps them from being chosen. Read back, the model says the same.

use super::FolderError;
use crate::kernels::{Block, LANES, Matrix};
use crate::model::weights::Weights;
use crate::model::{ModelConfig, Scaling};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Value, json};
use std::path::Path;

/// A tensor to be written: name, shape, f32 little-endian.
type Tensor = (String, Vec<usize>, Vec<u8>);

/// Writes `config.json`, `generation_config.json` and `model.safetensors` (f32) into a folder, which is made if needed.
///
/// # Errors
/// When a file cannot be written.
pub fn export(config: &ModelConfig, weights: &Weights, folder: &Path) -> Result<(), FolderError> {
    let failed = |path: &Path, error: String| FolderError::new(path, format!("cannot be written: {error}"));
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, error.to_string()))?;
    for (name, value) in [("config.json", config_json(config)), ("generation_config.json", generation_json(config))] {
        let path = folder.join(name);
        std::fs::write(&path, format!("{value:#}\n")).map_err(|error| failed(&path, error.to_string()))?;
    }
    let tensors = tensors(config, weights);
    let path = folder.join("model.safetensors");
    let views = tensors.iter().map(|(name, shape, bytes)| {
        TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&path, error.to_string()))?;
    let metadata = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
    serialize_to_file(views, Some(metadata), &path).map_err(|error| failed(&path, error.to_string()))
}

fn config_json(config: &ModelConfig) -> Value {
    let mut json = json!({
        "architectures": [config.family.architecture()],
        "model_type": config.family.model_type(),
        "vocab_size": config.vocab_tokens,
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_tokens,
        "rms_norm_eps": shortest(config.norm_epsilon),
        "hidden_act": "silu",
        "rope_theta": config.rope.theta,
        "attention_bias": config.output_bias,
        "mlp_bias": config.ffn_bias,
        "tie_word_embeddings": config.tied_embeddings,
        "torch_dtype": "float32",
        "use_cache": true,
        "eos_token_id": config.eos_tokens,
    });
    match config.rope.scaling {
        Scaling::None => {}
        Scaling::Linear { factor } => json["rope_scaling"] = json!({"rope_type": "linear", "factor": factor}),
        Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_tokens } => {
            json["rope_scaling"] = json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_context_tokens as u64,
            });
        }
    }
    json
}

/// The decimal that a person would have written for this f32.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn generation_json(config: &ModelConfig) -> Value {
    let mut json = json!({"eos_token_id": config.eos_tokens, "do_sample": false});
    let silent: Vec<u32> = (0..config.first_logit).chain(config.suppressed_tokens.iter().cloned().flatten()).collect();
    if !silent.is_empty() {
        json["suppress_tokens"] = json!(silent);
    }
    json
}

fn tensors(config: &ModelConfig, weights: &Weights) -> Vec<Tensor> {
    let (hidden, query, kv, ffn) = (config.hidden, config.query_width(), config.kv_width(), config.ffn);
    let mut all = Vec::new();
    let mut embedding = Vec::with_capacity(config.vocab_tokens * hidden * size_of::<f32>());
    let mut row = vec![Block::default(); hidden / LANES];
    for id in 0..config.vocab_tokens as u32 {
        weights.embed(config, id, row.iter_mut());
        embedding.extend(bytes(row.iter().flat_map(|block| block.0)));
    }
    all.push(("model.embed_tokens.weight".to_owned(), vec![config.vocab_tokens, hidden], embedding));
    for (index, layer) in weights.layers.iter().enumerate() {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let mut linear = |part: &str, matrix: &Matrix, first: usize, count: usize| {
            let rows = (first..first + count).flat_map(|output| bytes(matrix.output(output))).collect();
            all.push((name(&format!("{part}.weight")), vec![count, matrix.inputs()], rows));
            if let Some(bias) = matrix.bias() {
                let bias = bytes(bias[first..first + count].iter().copied()).collect();
                all.push((name(&format!("{part}.bias")), vec![count], bias));
            }
        };
        linear("self_attn.q_proj", &layer.qkv, 0, query);
        linear("self_attn.k_proj", &layer.qkv, query, kv);
        linear("self_attn.v_proj", &layer.qkv, query + kv, kv);
        linear("self_attn.o_proj", &layer.output, 0, hidden);
        linear("mlp.gate_proj", &layer.gate_up, 0, ffn);
        linear("mlp.up_proj", &layer.gate_up, ffn, ffn);
        linear("mlp.down_proj", &layer.down, 0, hidden);
        let gains = [
            ("input_layernorm.weight", Some(&layer.attention_gain)),
            ("post_attention_layernorm.weight", Some(&layer.ffn_gain)),
            ("self_attn.q_norm.weight", layer.query_gain.as_ref()),
            ("self_attn.k_norm.weight", layer.key_gain.as_ref()),
        ];
        for (part, gain) in gains.into_iter().filter_map(|(part, gain)| gain.map(|gain| (part, gain))) {
            all.push(vector(name(part), gain));
        }
    }
    all.push(vector("model.norm.weight".to_owned(), &weights.final_gain));
    if !config.tied_embeddings {
        let silent = vec![0; config.first_logit as usize * hidden * size_of::<f32>()];
        let said = (0..config.logit_count()).flat_map(|output| bytes(weights.head.output(output)));
        let rows = silent.into_iter().chain(said).collect();
        all.push(("lm_head.weight".to_owned(), vec![config.vocab_tokens, hidden], rows));
    }
    all
}

fn vector(name: String, gain: &[Block]) -> Tensor {
    (name, vec![gain.len() * LANES], bytes(gain.iter().flat_map(|block| block.0)).collect())
}

fn bytes(values: impl Iterator<Item = f32>) -> impl Iterator<Item = u8> {
    values.flat_map(f32::to_le_bytes)
}
