//! The forward pass against the same mathematics in plain f64; its bits recorded once, and equal however chunked.

use super::*;

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
    let mut kv = KvStore::new(&config, 8, 16);
    // Pages out of order, so that a mistake in the page table shows.
    let pages = [5, 2, 7, 0, 3, 1, 6, 4];
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
    assert_eq!(format!("{digest:016x}"), "31f8b369642229e0");
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
    let weights = &model.weights;
    let config = &model.config;
    let times = |x: &[f64], m: &crate::kernels::Matrix| -> Vec<f64> {
        (0..m.outputs()).map(|o| x.iter().enumerate().map(|(i, x)| x * f64::from(m.get(i, o))).sum()).collect()
    };
    let norm = |x: &[f64]| -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        x.iter().map(|v| v / (mean + 1e-6).sqrt()).collect()
    };
    let rotate = |x: &mut [f64], position: usize| {
        for head in x.chunks_mut(HEAD_DIM) {
            for i in 0..HEAD_DIM / 2 {
                let angle = position as f64 * 10_000f64.powf(-2.0 * i as f64 / HEAD_DIM as f64);
                let (a, b) = (head[i], head[i + HEAD_DIM / 2]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[i + HEAD_DIM / 2] = b * angle.cos() + a * angle.sin();
            }
        }
    };
    let mut xs: Vec<Vec<f64>> =
        tokens.iter().map(|id| weights.embedding(*id).iter().map(|v| f64::from(*v)).collect()).collect();
    for layer in &weights.layers {
        let normed: Vec<Vec<f64>> = xs.iter().map(|x| norm(x)).collect();
        let project = |m: &crate::kernels::Matrix, turn: bool| -> Vec<Vec<f64>> {
            let rows = normed.iter().enumerate().map(|(position, x)| {
                let mut row = times(x, m);
                if turn {
                    rotate(&mut row, position);
                }
                row
            });
            rows.collect()
        };
        let (q, k, v) = (project(&layer.query, true), project(&layer.key, true), project(&layer.value, false));
        for (position, x) in xs.iter_mut().enumerate() {
            let mut mixed = vec![0.0; config.hidden];
            for head in 0..config.heads {
                let own = head * HEAD_DIM..(head + 1) * HEAD_DIM;
                let shared = head * config.kv_heads / config.heads * HEAD_DIM;
                let scores: Vec<f64> = (0..=position)
                    .map(|at| {
                        let dot: f64 = q[position][own.clone()].iter().zip(&k[at][shared..]).map(|(q, k)| q * k).sum();
                        (dot / (HEAD_DIM as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = scores.iter().sum();
                for (at, score) in scores.iter().enumerate() {
                    for (dim, out) in mixed[own.clone()].iter_mut().enumerate() {
                        *out += score / total * v[at][shared + dim];
                    }
                }
            }
            for (x, delta) in x.iter_mut().zip(times(&mixed, &layer.output)) {
                *x += delta;
            }
            let normed = norm(x);
            let gated: Vec<f64> = times(&normed, &layer.gate)
                .iter()
                .zip(times(&normed, &layer.up))
                .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
                .collect();
            for (x, delta) in x.iter_mut().zip(times(&gated, &layer.down)) {
                *x += delta;
            }
        }
    }
    times(&norm(&xs[tokens.len() - 1]), &weights.head)
}

#[test]
fn logits_agree_with_plain_f64_mathematics() {
    for (config, length) in [(ModelConfig::default(), 60), (small(3), 97), (small(4), 1)] {
        let mut model = Model::new(config);
        let tokens: Vec<u32> = (0..length).map(|i| (i * 37 + 5) % 1024).collect();
        let got = logits_of(&mut model, &tokens, 23);
        let want = reference(&model, &tokens);
        let said: Vec<_> = got.iter().zip(&want).filter(|(got, _)| got.is_finite()).collect();
        // All words and the end token.
        assert_eq!(said.len(), 753);
        let worst = said.iter().map(|(a, b)| (f64::from(**a) - *b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-4, "off by {worst}");
        let spread = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        assert!(spread > 1.0, "logits that say something: {spread}");
    }
}
