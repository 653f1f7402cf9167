//! The forward pass against the same mathematics in plain f64; its bits recorded once, and equal however chunked.

use super::*;
use crate::kernels::{Block, LANES, Matrix};

mod schedules;

fn small(seed: u64) -> ModelConfig {
    ModelConfig {
        layers: 2,
        hidden: 32,
        heads: 2,
        kv_heads: 1,
        ffn: 32,
        context_tokens: 128,
        seed,
        ..ModelConfig::default()
    }
}

fn logits_of(model: &mut Model, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let config = model.config().clone();
    let mut kv = KvStore::new(&config, 16, 16);
    // Pages out of order, so that a mistake in the page table shows.
    let pages = [5, 2, 7, 0, 13, 3, 1, 6, 4, 15, 8, 14, 9, 12, 10, 11];
    let mut last = Vec::new();
    for start in (0..tokens.len()).step_by(chunk) {
        let end = (start + chunk).min(tokens.len());
        let run = Run { tokens: &tokens[start..end], start, pages: &pages, want: Want::Logits };
        last = model.forward(&[run], &mut kv).logits;
    }
    last
}

#[test]
fn weights_are_the_same_bits_everywhere() {
    let mut model = Model::new(ModelConfig::default());
    let logits = logits_of(&mut model, &[300, 400, 500], 3);
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    for value in &logits {
        digest = (digest ^ u64::from(value.to_bits())).wrapping_mul(0x100_0000_01b3);
    }
    // Recorded once; a change here means that every machine's answers changed.
    assert_eq!(format!("{digest:016x}"), "31c5874bea6ecaf2");
}

#[test]
fn chunks_do_not_change_a_bit() {
    let mut model = Model::new(small(3));
    let tokens: Vec<u32> = (0..97).map(|i| (i * 37 + 5) % 1024).collect();
    let whole = logits_of(&mut model, &tokens, 97);
    for chunk in [1, 7, 16, 33, 64] {
        assert_eq!(logits_of(&mut model, &tokens, chunk), whole, "chunk {chunk}");
    }
}

#[test]
fn an_early_token_matters() {
    let mut model = Model::new(ModelConfig::default());
    let mut tokens: Vec<u32> = (0..100).map(|i| 272 + (i * 13) % 700).collect();
    let before = logits_of(&mut model, &tokens, 100);
    tokens[0] += 1;
    assert_ne!(logits_of(&mut model, &tokens, 100), before);
}

/// The same mathematics, written plainly in f64: no pages, no tiles, whole matrices of scores.
fn reference(model: &Model, tokens: &[u32]) -> Vec<f64> {
    let (weights, config) = (&model.weights, &model.config);
    let (dim, kv_width) = (config.head_dim, config.kv_width());
    let times = |x: &[f64], m: &Matrix| -> Vec<f64> {
        let bias = m.bias().unwrap_or_else(|| vec![0.0; m.outputs()]);
        let dot = |o: usize| x.iter().zip(m.output(o)).map(|(x, w)| x * f64::from(w)).sum::<f64>();
        (0..m.outputs()).map(|o| f64::from(bias[o]) + dot(o)).collect()
    };
    let norm = |x: &[f64], gain: &[Block]| -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let gain = gain.iter().flat_map(|block| block.0);
        x.iter().zip(gain).map(|(v, gain)| v / (mean + 1e-6).sqrt() * f64::from(gain)).collect()
    };
    let heads = |x: &[f64], gain: Option<&Vec<Block>>, position: usize| -> Vec<f64> {
        let turned = x.chunks(dim).flat_map(|head| {
            let mut head = gain.map_or_else(|| head.to_vec(), |gain| norm(head, gain));
            for i in 0..dim / 2 {
                let angle = position as f64 * config.rope.theta.powf(-2.0 * i as f64 / dim as f64);
                let (a, b) = (head[i], head[i + dim / 2]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[i + dim / 2] = b * angle.cos() + a * angle.sin();
            }
            head
        });
        turned.collect()
    };
    let embed = |id: &u32| -> Vec<f64> {
        let mut row = vec![Block::default(); config.hidden / LANES];
        weights.embed(config, *id, row.iter_mut());
        row.iter().flat_map(|block| block.0).map(f64::from).collect()
    };
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    for layer in &weights.layers {
        let rows: Vec<_> = xs.iter().map(|x| times(&norm(x, &layer.attention_gain), &layer.qkv)).collect();
        let parts = rows.iter().enumerate().map(|(position, row)| {
            let (q, rest) = row.split_at(config.query_width());
            let q = heads(q, layer.query_gain.as_ref(), position);
            (q, heads(&rest[..kv_width], layer.key_gain.as_ref(), position), rest[kv_width..].to_vec())
        });
        let parts: Vec<_> = parts.collect();
        for (position, x) in xs.iter_mut().enumerate() {
            let mut mixed = vec![0.0; config.query_width()];
            for head in 0..config.heads {
                let own = head * dim..(head + 1) * dim;
                let shared = head * config.kv_heads / config.heads * dim;
                let score = |at: usize| {
                    let q = &parts[position].0[own.clone()];
                    let dot: f64 = q.iter().zip(&parts[at].1[shared..]).map(|(q, k)| q * k).sum();
                    (dot / (dim as f64).sqrt()).exp()
                };
                let scores: Vec<f64> = (0..=position).map(score).collect();
                let total: f64 = scores.iter().sum();
                for (at, score) in scores.iter().enumerate() {
                    for (dim, out) in mixed[own.clone()].iter_mut().enumerate() {
                        *out += score / total * parts[at].2[shared + dim];
                    }
                }
            }
            for (x, delta) in x.iter_mut().zip(times(&mixed, &layer.output)) {
                *x += delta;
            }
            let both = times(&norm(x, &layer.ffn_gain), &layer.gate_up);
            let (gate, up) = both.split_at(config.ffn);
            let gated: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
            for (x, delta) in x.iter_mut().zip(times(&gated, &layer.down)) {
                *x += delta;
            }
        }
    }
    let mut logits = times(&norm(&xs[tokens.len() - 1], &weights.final_gain), &weights.head);
    logits.truncate(config.logit_count());
    logits
}

/// As Qwen2 and Qwen3 are, but small: biases, head norms, tied embeddings, heads wider than the stream, odd groups.
pub(crate) fn families() -> Vec<ModelConfig> {
    let base =
        ModelConfig { layers: 2, ffn: 48, suppressed_tokens: Vec::new(), first_logit: 0, ..ModelConfig::default() };
    let llama = ModelConfig { hidden: 80, heads: 5, kv_heads: 1, head_dim: 48, vocab_tokens: 333, ..base.clone() };
    let rope = Rope { theta: 1_000_000.0, ..Rope::default() };
    let qwen2 = ModelConfig {
        family: Family::Qwen2,
        hidden: 64,
        heads: 6,
        kv_heads: 2,
        head_dim: 64,
        qkv_bias: true,
        tied_embeddings: true,
        rope,
        ..base.clone()
    };
    let qwen3 = ModelConfig {
        family: Family::Qwen3,
        hidden: 48,
        heads: 4,
        kv_heads: 4,
        head_dim: 128,
        qk_norm: true,
        rope,
        ..base
    };
    vec![llama, qwen2, qwen3]
}

#[test]
fn logits_agree_with_plain_f64_mathematics() {
    let mut shapes = vec![(ModelConfig::default(), 60), (small(3), 97), (small(4), 1)];
    shapes.extend(families().into_iter().map(|config| (config, 150)));
    for (config, length) in shapes {
        let count = config.logit_count() - config.suppressed_tokens.iter().map(|range| range.len()).sum::<usize>();
        let (family, vocab) = (config.family, config.vocab_tokens as u32);
        let mut model = Model::new(config);
        let tokens: Vec<u32> = (0..length).map(|i| (i * 37 + 5) % vocab).collect();
        let got = logits_of(&mut model, &tokens, 23);
        let want = reference(&model, &tokens);
        let said: Vec<_> = got.iter().zip(&want).filter(|(got, _)| got.is_finite()).collect();
        assert_eq!(said.len(), count, "{family:?}");
        let worst = said.iter().map(|(a, b)| (f64::from(**a) - *b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-4, "{family:?}: off by {worst}");
        let spread = said.iter().fold(0.0f64, |m, (_, v)| m.max(v.abs()));
        assert!(spread > 1.0, "{family:?}: logits that say something: {spread}");
    }
}

#[test]
fn random_models_keep_the_rules() {
    for (layers, width) in [(1, 256), (6, 512), (8, 768), (64, 4_096)] {
        let config = ModelConfig::random(layers, width).unwrap();
        assert_eq!((config.broken_rule(), config.query_width()), (None, width), "{layers}x{width}");
        assert!(config.kv_heads * 4 == config.heads && config.ffn > 2 * width, "{config:?}");
    }
    for (layers, width) in [(0, 512), (65, 512), (2, 0), (2, 300), (2, 8_192)] {
        assert!(ModelConfig::random(layers, width).is_err(), "{layers}x{width}");
    }
}
