//! `config.json` and `generation_config.json`, as `transformers` writes them (with `rope_scaling`, and since its fifth
//! version with `rope_parameters`). What would change the arithmetic and is not supported is refused by name.

use super::FolderError;
use crate::model::{Family, ModelConfig, Rope, Scaling};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct Raw {
    architectures: Option<Vec<String>>,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f64>,
    hidden_act: Option<String>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Map<String, Value>>,
    rope_parameters: Option<Map<String, Value>>,
    partial_rotary_factor: Option<f64>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    use_sliding_window: Option<bool>,
    layer_types: Option<Vec<String>>,
    quantization_config: Option<Value>,
    eos_token_id: Option<Ids>,
}

/// What of `generation_config.json` matters here.
#[derive(Default, Deserialize)]
struct Generation {
    eos_token_id: Option<Ids>,
    suppress_tokens: Option<Vec<u32>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    fn list(self) -> Vec<u32> {
        match self {
            Ids::One(id) => vec![id],
            Ids::Many(ids) => ids,
        }
    }
}

pub(super) fn read(folder: &Path) -> Result<ModelConfig, FolderError> {
    let file = folder.join("config.json");
    let raw: Raw = parse(&file, &text(&file)?)?;
    let generation_file = folder.join("generation_config.json");
    let generation = if generation_file.exists() {
        parse(&generation_file, &text(&generation_file)?)?
    } else {
        Generation::default()
    };
    let config = convert(&file, raw, generation)?;
    if let Some(rule) = config.broken_rule() {
        return Err(FolderError::new(file, rule));
    }
    Ok(config)
}

fn text(file: &Path) -> Result<String, FolderError> {
    std::fs::read_to_string(file).map_err(|error| FolderError::new(file, format!("cannot be read: {error}")))
}

fn parse<T: serde::de::DeserializeOwned>(file: &Path, text: &str) -> Result<T, FolderError> {
    serde_json::from_str(text).map_err(|error| FolderError::new(file, format!("is not what it should be: {error}")))
}

fn convert(file: &Path, raw: Raw, generation: Generation) -> Result<ModelConfig, FolderError> {
    let refuse = |what: String| Err(FolderError::new(PathBuf::from(file), what));
    let family = match raw.architectures.as_deref().unwrap_or_default() {
        [one] => [Family::Llama, Family::Qwen2, Family::Qwen3].into_iter().find(|family| family.architecture() == one),
        _ => None,
    };
    let Some(family) = family else {
        let found = raw.architectures.unwrap_or_default().join(", ");
        return refuse(format!(
            "architectures is [{found}], supported are LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM"
        ));
    };
    let refusals = [
        (raw.quantization_config.is_some(), "quantization_config: quantised weights are not supported"),
        (raw.use_sliding_window == Some(true), "use_sliding_window: a sliding window is not supported"),
        (raw.partial_rotary_factor.is_some_and(|part| part != 1.0), "partial_rotary_factor: only 1 is supported"),
    ];
    if let Some((_, what)) = refusals.into_iter().find(|(active, _)| *active) {
        return refuse(what.to_owned());
    }
    if let Some(other) = raw.layer_types.iter().flatten().find(|kind| *kind != "full_attention") {
        return refuse(format!("layer_types has {other}, only full_attention is supported"));
    }
    if let Some(other) = raw.hidden_act.filter(|name| name != "silu" && name != "swish") {
        return refuse(format!("hidden_act is {other}, only silu is supported"));
    }
    if raw.num_attention_heads == 0 || raw.num_hidden_layers == 0 {
        return refuse("num_attention_heads and num_hidden_layers must be at least 1".to_owned());
    }
    let dims = [raw.vocab_size, raw.hidden_size, raw.intermediate_size, raw.num_attention_heads, raw.num_hidden_layers];
    if dims.iter().any(|size| *size > MOST_SIZE) {
        return refuse(format!("a size is above {MOST_SIZE}"));
    }
    let head_dim = match (raw.head_dim, family) {
        (Some(dim), _) => dim,
        (None, Family::Qwen3) => 128,
        (None, _) if raw.hidden_size.is_multiple_of(raw.num_attention_heads) => {
            raw.hidden_size / raw.num_attention_heads
        }
        (None, _) => return refuse("hidden_size is not a multiple of num_attention_heads; give head_dim".to_owned()),
    };
    let epsilon = raw.rms_norm_eps.unwrap_or(1e-6);
    if !(0.0..1.0).contains(&epsilon) {
        return refuse(format!("rms_norm_eps is {epsilon}, use a small number above 0"));
    }
    let rope = rope(raw.rope_theta, raw.rope_parameters.or(raw.rope_scaling))
        .map_err(|what| FolderError::new(PathBuf::from(file), what))?;
    let attention_bias = raw.attention_bias.unwrap_or(false);
    let mut eos_tokens: Vec<u32> =
        [generation.eos_token_id, raw.eos_token_id].into_iter().flatten().flat_map(Ids::list).collect();
    eos_tokens.sort_unstable();
    eos_tokens.dedup();
    if let Some(id) = eos_tokens.iter().find(|id| **id as usize >= raw.vocab_size) {
        return refuse(format!("eos_token_id {id} is not below vocab_size {}", raw.vocab_size));
    }
    Ok(ModelConfig {
        family,
        vocab_tokens: raw.vocab_size,
        eos_tokens,
        first_logit: 0,
        suppressed_tokens: ranges(generation.suppress_tokens.unwrap_or_default()),
        layers: raw.num_hidden_layers,
        hidden: raw.hidden_size,
        heads: raw.num_attention_heads,
        head_dim,
        kv_heads: raw.num_key_value_heads.unwrap_or(raw.num_attention_heads),
        ffn: raw.intermediate_size,
        context_tokens: raw.max_position_embeddings.unwrap_or(2048),
        norm_epsilon: epsilon as f32,
        rope,
        qkv_bias: family == Family::Qwen2 || attention_bias,
        output_bias: family != Family::Qwen2 && attention_bias,
        ffn_bias: family == Family::Llama && raw.mlp_bias.unwrap_or(false),
        qk_norm: family == Family::Qwen3,
        tied_embeddings: raw.tie_word_embeddings.unwrap_or(false),
        seed: 0,
    })
}

/// Sizes above this are a mistake, and products of them could overflow.
const MOST_SIZE: usize = 1 << 24;

fn rope(theta: Option<f64>, parameters: Option<Map<String, Value>>) -> Result<Rope, String> {
    let parameters = parameters.unwrap_or_default();
    let number = |key: &str| -> Result<f64, String> {
        let value = parameters.get(key).and_then(Value::as_f64).filter(|value| value.is_finite() && *value > 0.0);
        value.ok_or_else(|| format!("rope scaling needs {key}, a number above 0"))
    };
    let theta = if parameters.contains_key("rope_theta") { number("rope_theta")? } else { theta.unwrap_or(10_000.0) };
    if !(1.0..1e12).contains(&theta) {
        return Err(format!("rope_theta is {theta}, use a number above 1"));
    }
    let kind = ["rope_type", "type"].into_iter().find_map(|key| parameters.get(key)).and_then(Value::as_str);
    let scaling = match kind.unwrap_or("default") {
        "default" => Scaling::None,
        "linear" => Scaling::Linear { factor: number("factor")? },
        "llama3" => Scaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_context_tokens: number("original_max_position_embeddings")?,
        },
        other => return Err(format!("rope scaling {other} is not supported, only default, linear and llama3 are")),
    };
    if let Scaling::Llama3 { low_freq_factor, high_freq_factor, .. } = scaling
        && low_freq_factor >= high_freq_factor
    {
        return Err("rope scaling: low_freq_factor must be below high_freq_factor".to_owned());
    }
    Ok(Rope { theta, scaling })
}

/// Neighbouring ids together.
fn ranges(mut ids: Vec<u32>) -> Vec<Range<u32>> {
    ids.sort_unstable();
    ids.dedup();
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for id in ids {
        match ranges.last_mut() {
            Some(last) if last.end == id => last.end = id.saturating_add(1),
            _ => ranges.push(id..id.saturating_add(1)),
        }
    }
    ranges
}
