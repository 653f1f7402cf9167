//! Bits of the forward pass: recorded once, and equal however a prompt is chunked.

use super::*;

fn small(seed: u64) -> ModelConfig {
    ModelConfig { layers: 2, heads: 2, kv_heads: 1, ffn: 32, context_tokens: 128, seed }
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
    assert_eq!(format!("{digest:016x}"), "26cdbd0002a229e0");
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
