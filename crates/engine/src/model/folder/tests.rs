//! A folder gives the model that was written, and whatever is wrong with one is said by name.

use super::tensors::f16;
use super::*;
use crate::model::tests::families;
use crate::model::{Family, KvStore, Model, Rope, Run, Scaling, Want, seeded};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A folder that goes away with the test.
struct Temporary(tempfile::TempDir);

impl Temporary {
    fn with(config: &ModelConfig) -> Self {
        let folder = Temporary(tempfile::tempdir().unwrap());
        export(config, &seeded::generate(config), folder.path()).unwrap();
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn change(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.path().join(file);
        let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        std::fs::write(path, value.to_string()).unwrap();
    }

    fn tensors(&self) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
        let bytes = std::fs::read(self.path().join("model.safetensors")).unwrap();
        let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let own = |view: TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        all.tensors().into_iter().map(|(name, view)| (name, own(view))).collect()
    }

    fn write(&self, file: &str, tensors: &BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>) {
        let views = tensors
            .iter()
            .map(|(name, (dtype, shape, data))| (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
        serialize_to_file(views, None, &self.path().join(file)).unwrap();
    }

    fn error(&self) -> String {
        let error = Folder::open(self.path()).unwrap_err();
        error.to_string().replace(&format!("{}/", self.path().display()), "")
    }
}

fn logits(model: &mut Model) -> Vec<u32> {
    let mut kv = KvStore::new(&model.config().clone(), 3, 16);
    let vocab = model.config().vocab_tokens as u32;
    let tokens: Vec<u32> = (0..40).map(|i| (i * 31 + 7) % vocab).collect();
    let run = Run { tokens: &tokens, start: 0, pages: &[2, 0, 1], want: Want::Logits };
    model.forward(&[run], &mut kv).logits.iter().map(|value| value.to_bits()).collect()
}

fn small() -> ModelConfig {
    families().remove(1)
}

#[test]
fn every_family_says_the_same_after_a_round_trip() {
    for config in families() {
        let folder = Temporary::with(&config);
        let read = Folder::open(folder.path()).unwrap();
        assert_eq!(ModelConfig { seed: config.seed, ..read.config.clone() }, config);
        let mut again = Model::with_weights(read.config, read.weights);
        assert_eq!(logits(&mut again), logits(&mut Model::new(config)));
    }
}

#[test]
fn a_size_that_the_files_do_not_have_costs_no_memory() {
    // Each is allowed by itself; a matrix of both would take petabytes, and the process with it.
    let folder = Temporary::with(&small());
    folder.change("config.json", |config| {
        for size in ["hidden_size", "num_attention_heads", "num_key_value_heads"] {
            config[size] = json!(1 << 24);
        }
        config["head_dim"] = json!(16);
    });
    let error = folder.error();
    assert!(error.contains("q_proj.weight: has the shape"), "{error}");
}

#[test]
fn the_tiny_model_never_says_more_after_a_round_trip() {
    let config = ModelConfig::default();
    let folder = Temporary::with(&config);
    let read = Folder::open(folder.path()).unwrap();
    assert_eq!((read.config.first_logit, &read.config.eos_tokens), (0, &config.eos_tokens));
    assert_eq!(read.config.suppressed_tokens, [0..258, 259..272]);
    let all = logits(&mut Model::with_weights(read.config, read.weights));
    let own = logits(&mut Model::new(config));
    assert_eq!(all[256..], own);
    assert!(all[..256].iter().all(|bits| f32::from_bits(*bits) == f32::NEG_INFINITY));
}

#[test]
fn shards_and_half_widths_give_the_rounded_weights() {
    let config = small();
    let whole = Temporary::with(&config);
    let rounded = |bits: u32| (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    let bf16 = |data: &[u8]| -> Vec<u8> {
        let words = data.as_chunks::<4>().0.iter();
        words.flat_map(|word| rounded(u32::from_le_bytes(*word)).to_le_bytes()).collect()
    };
    let back = |data: &[u8]| -> Vec<u8> { data.chunks(2).flat_map(|half| [0, 0, half[0], half[1]]).collect() };
    let mut halves = whole.tensors();
    let mut rounded = whole.tensors();
    for (name, (dtype, _, data)) in &mut halves {
        *dtype = Dtype::BF16;
        *data = bf16(data);
        rounded.get_mut(name).unwrap().2 = back(data);
    }
    whole.write("model.safetensors", &rounded);
    let expected = Folder::open(whole.path()).unwrap();
    // The same in bf16, spread over two files.
    let sharded = Temporary::with(&config);
    std::fs::remove_file(sharded.path().join("model.safetensors")).unwrap();
    let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let mut parts = [BTreeMap::new(), BTreeMap::new()];
    let mut weight_map = BTreeMap::new();
    for (index, (name, tensor)) in halves.into_iter().enumerate() {
        weight_map.insert(name.clone(), files[index % 2]);
        parts[index % 2].insert(name, tensor);
    }
    for (file, part) in files.iter().zip(&parts) {
        sharded.write(file, part);
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": weight_map});
    std::fs::write(sharded.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let read = Folder::open(sharded.path()).unwrap();
    let of = |folder: Folder| logits(&mut Model::with_weights(folder.config, folder.weights));
    assert_eq!(of(read), of(expected));
    // A shard that lacks what the index says it has, and one that is not there.
    let gone = parts[1].pop_last().unwrap().0;
    sharded.write(files[1], &parts[1]);
    let missing = format!("{}: tensor {gone}: is missing, though ", files[1]);
    assert!(sharded.error().starts_with(&missing), "{}", sharded.error());
    std::fs::remove_file(sharded.path().join(files[0])).unwrap();
    assert!(sharded.error().starts_with("model-00001-of-00002.safetensors: cannot be read"), "{}", sharded.error());
    sharded.change("model.safetensors.index.json", |index| index["weight_map"]["x"] = json!("../elsewhere"));
    assert_eq!(
        sharded.error(),
        r#"model.safetensors.index.json: names "../elsewhere", which is no file of this folder"#
    );
}

#[test]
fn f16_is_read_exactly() {
    let cases = [
        (0x0000, 0.0),
        (0x0001, 2f32.powi(-24)),
        (0x03ff, 1023.0 * 2f32.powi(-24)),
        (0x0400, 2f32.powi(-14)),
        (0x3c00, 1.0),
        (0xc100, -2.5),
        (0x7bff, 65504.0),
        (0xfc00, f32::NEG_INFINITY),
    ];
    for (bits, value) in cases {
        assert_eq!(f16(bits).to_bits(), value.to_bits(), "{bits:04x}");
    }
    assert!(f16(0x7e00).is_nan());
}

#[test]
fn what_is_wrong_with_the_tensors_is_said_with_file_and_tensor() {
    let folder = Temporary::with(&small());
    let good = folder.tensors();
    let name = "model.layers.1.mlp.up_proj.weight";
    let mut tensors = good.clone();
    tensors.remove(name);
    folder.write("model.safetensors", &tensors);
    assert_eq!(folder.error(), "model.safetensors: tensor model.layers.1.mlp.up_proj.weight: is missing");
    let mut tensors = good.clone();
    tensors.get_mut(name).unwrap().1 = vec![64, 48];
    folder.write("model.safetensors", &tensors);
    let shape = "has the shape [64, 48], the config asks for [48, 64]";
    assert_eq!(folder.error(), format!("model.safetensors: tensor {name}: {shape}"));
    let mut tensors = good.clone();
    tensors.get_mut(name).unwrap().0 = Dtype::I32;
    folder.write("model.safetensors", &tensors);
    let dtype = "is I32, supported are F32, BF16 and F16";
    assert_eq!(folder.error(), format!("model.safetensors: tensor {name}: {dtype}"));
    let mut tensors = good.clone();
    tensors.remove("model.layers.0.self_attn.k_proj.bias");
    folder.write("model.safetensors", &tensors);
    assert_eq!(folder.error(), "model.safetensors: tensor model.layers.0.self_attn.k_proj.bias: is missing");
    folder.write("model.safetensors", &good);
    Folder::open(folder.path()).unwrap();
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_name() {
    let folder = Temporary::with(&small());
    let good = folder.tensors();
    let strange = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let places = [
        ("model.layers.1.mlp.up_proj.weight", 64 * 3 + 5, 3),
        ("model.norm.weight", 63, 0),
        ("model.embed_tokens.weight", 0, 0),
    ];
    for (value, (name, at, row)) in strange.into_iter().zip(places) {
        let mut tensors = good.clone();
        tensors.get_mut(name).unwrap().2[at * 4..][..4].copy_from_slice(&value.to_le_bytes());
        folder.write("model.safetensors", &tensors);
        let expected = format!("tensor {name}: row {row} has a number that is infinite or none at all");
        assert!(folder.error().contains(&expected), "{}", folder.error());
    }
    // The largest that are numbers are taken as they are.
    let mut tensors = good;
    tensors.get_mut("model.norm.weight").unwrap().2[..4].copy_from_slice(&f32::MAX.to_le_bytes());
    folder.write("model.safetensors", &tensors);
    Folder::open(folder.path()).unwrap();
}

#[test]
fn a_broken_file_is_refused_and_never_read_beyond_its_end() {
    let folder = Temporary::with(&small());
    let path = folder.path().join("model.safetensors");
    let good = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    for length in [0, 7, 8, 100, 8 + header, good.len() - 1] {
        std::fs::write(&path, &good[..length]).unwrap();
        let error = folder.error();
        assert!(error.starts_with("model.safetensors: "), "{length}: {error}");
    }
    std::fs::write(&path, &good[..good.len() - 1]).unwrap();
    assert_eq!(
        folder.error(),
        format!("model.safetensors: has {} bytes, its header says {}", good.len() - 1, good.len())
    );
    // Each byte of the start of the header turned: an error or the same model, no panic.
    for at in (0..8).chain(8..8 + header.min(400)) {
        let mut bytes = good.clone();
        bytes[at] ^= 0x11;
        std::fs::write(&path, bytes).unwrap();
        if let Err(error) = Folder::open(folder.path()) {
            assert!(error.file.ends_with("model.safetensors"), "{error}");
        }
    }
    std::fs::remove_file(&path).unwrap();
    let error = Folder::open(folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("has neither model.safetensors nor model.safetensors.index.json"), "{error}");
}

#[test]
fn a_config_that_cannot_be_computed_is_refused_by_name() {
    let folder = Temporary::with(&small());
    let path = folder.path().join("config.json");
    let good = std::fs::read(&path).unwrap();
    let cases: [(&str, Value, &str); 14] = [
        (
            "architectures",
            json!(["MixtralForCausalLM"]),
            "architectures is [MixtralForCausalLM], supported are LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM",
        ),
        ("use_sliding_window", json!(true), "use_sliding_window: a sliding window is not supported"),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            "layer_types has sliding_attention, only full_attention is supported",
        ),
        ("quantization_config", json!({"bits": 4}), "quantization_config: quantised weights are not supported"),
        (
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 4}),
            "rope scaling yarn is not supported, only default, linear and llama3 are",
        ),
        ("rope_scaling", json!({"type": "linear"}), "rope scaling needs factor, a number above 0"),
        ("rope_theta", json!(0), "rope_theta is 0, use a number above 1"),
        ("hidden_act", json!("gelu"), "hidden_act is gelu, only silu is supported"),
        ("head_dim", json!(20), "the dimensions of a head must be a multiple of 16"),
        ("head_dim", json!(272), "a head may have 256 dimensions at most"),
        ("num_key_value_heads", json!(4), "heads must be a multiple of KV heads"),
        ("num_attention_heads", json!(0), "num_attention_heads and num_hidden_layers must be at least 1"),
        ("hidden_size", json!(1u64 << 40), "a size is above 16777216"),
        ("eos_token_id", json!([3, 1024]), "eos_token_id 1024 is not below vocab_size 1024"),
    ];
    for (key, value, message) in cases {
        folder.change("config.json", |config| config[key] = value);
        assert_eq!(folder.error(), format!("config.json: {message}"));
        std::fs::write(&path, &good).unwrap();
    }
    folder.change("config.json", |config| drop(config.as_object_mut().unwrap().remove("vocab_size")));
    assert!(folder.error().starts_with("config.json: is not what it should be: missing field `vocab_size`"));
    std::fs::write(&path, "{").unwrap();
    assert!(folder.error().starts_with("config.json: is not what it should be: EOF"), "{}", folder.error());
    std::fs::remove_file(&path).unwrap();
    assert!(folder.error().starts_with("config.json: cannot be read"), "{}", folder.error());
}

#[test]
fn what_a_config_leaves_out_is_what_transformers_takes() {
    let folder = Temporary::with(&small());
    folder.change("config.json", |config| {
        let least = ["architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"];
        config.as_object_mut().unwrap().retain(|key, _| least.contains(&key.as_str()));
        config["hidden_size"] = json!(96);
        config["rope_parameters"] = json!({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    });
    std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [7, 3], "top_p": 0.8}"#).unwrap();
    let config = config::read(folder.path()).unwrap();
    assert_eq!((config.family, config.kv_heads, config.head_dim), (Family::Qwen2, 6, 16));
    assert_eq!((config.qkv_bias, config.output_bias, config.tied_embeddings), (true, false, false));
    assert_eq!((config.context_tokens, config.norm_epsilon, config.eos_tokens), (2048, 1e-6, vec![3, 7]));
    let scaling =
        Scaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context_tokens: 8192.0 };
    assert_eq!(config.rope, Rope { theta: 5e5, scaling });
    folder.change("config.json", |config| config["architectures"] = json!(["Qwen3ForCausalLM"]));
    assert_eq!(config::read(folder.path()).unwrap().head_dim, 128);
}

#[test]
fn llama_3_stretches_long_waves_only() {
    let scaling =
        Scaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context_tokens: 8192.0 };
    let plain = Rope { theta: 5e5, scaling: Scaling::None }.frequencies(128);
    let stretched = Rope { theta: 5e5, scaling }.frequencies(128);
    for (plain, stretched) in plain.iter().zip(&stretched) {
        let (wave, ratio) = (std::f32::consts::TAU / plain, plain / stretched);
        match wave {
            wave if wave < 2048.0 => assert_eq!(ratio, 1.0),
            wave if wave > 8192.0 => assert_eq!(ratio, 8.0),
            _ => assert!((1.0..8.0).contains(&ratio), "{wave}: {ratio}"),
        }
    }
    assert!(stretched.is_sorted_by(|a, b| a > b));
}
