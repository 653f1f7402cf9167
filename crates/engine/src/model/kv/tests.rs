use super::*;
use crate::model::{Model, Run, Want};

fn config() -> ModelConfig {
    ModelConfig { layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 32, seed: 9, ..ModelConfig::default() }
}

/// Logits after `tokens`, of which the first `start` are in the pages already.
fn logits(kv: &mut KvStore, tokens: &[u32], start: usize, pages: &[u32]) -> Vec<f32> {
    let run = Run { tokens: &tokens[start..], start, pages, want: Want::Logits };
    Model::new(config()).forward(&[run], kv).logits
}

#[test]
fn pages_that_travelled_as_bytes_give_the_same_bits() {
    for page_tokens in [16, 48] {
        let tokens: Vec<u32> = (0..3 * page_tokens as u32 + 5).map(|i| 272 + i * 7 % 700).collect();
        let (pages, other) = ([4, 1, 3, 0], [2, 0, 4, 1]);
        let mut from = KvStore::new(&config(), 5, page_tokens);
        let mut to = KvStore::new(&config(), 5, page_tokens);
        logits(&mut from, &tokens[..3 * page_tokens + 1], 0, &pages);
        let mut bytes = vec![7; 3];
        for (page, there) in pages.iter().zip(other) {
            from.read_page(*page, &mut bytes).unwrap();
            assert_eq!(bytes.len(), from.page_bytes());
            to.write_page(there, &bytes).unwrap();
            let mut back = Vec::new();
            to.read_page(there, &mut back).unwrap();
            assert_eq!(bytes, back);
        }
        let start = 3 * page_tokens + 1;
        assert_eq!(logits(&mut to, &tokens, start, &other), logits(&mut from, &tokens, start, &pages));
    }
}

#[test]
fn a_page_holds_all_heads_and_layers_and_others_stay_as_they_are() {
    let mut kv = KvStore::new(&config(), 3, 32);
    // 2 layers, 2 heads, keys and values, 32 positions of 16 numbers of 4 bytes.
    assert_eq!(kv.page_bytes(), 2 * 2 * 2 * 32 * 16 * 4);
    assert_eq!(kv.len_bytes(), 3 * kv.page_bytes());
    let bytes: Vec<u8> = (0..kv.page_bytes() / 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    kv.write_page(1, &bytes).unwrap();
    let mut read = Vec::new();
    for (page, expected) in [(0, vec![0; bytes.len()]), (1, bytes.clone()), (2, vec![0; bytes.len()])] {
        kv.read_page(page, &mut read).unwrap();
        assert_eq!(read, expected, "page {page}");
    }
    // Layer 1, head 1: the last quarter; its second tile of keys, dimension 3, position 20.
    let at = 3 * 2 * 512 + 256 + 3 * 16 + 4;
    assert_eq!(kv.layer(1)[1].keys(&[1], 1)[0][3].0[4], at as f32);
}

#[test]
fn what_is_no_page_is_refused_and_changes_nothing() {
    let mut kv = KvStore::new(&config(), 2, 16);
    let size = kv.page_bytes();
    let no_page = PageError::NoSuchPage { page: 2, pages: 2 };
    assert_eq!(kv.read_page(2, &mut Vec::new()), Err(no_page));
    assert_eq!(kv.write_page(2, &vec![1; size]), Err(no_page));
    let wrong = PageError::WrongSize { actual: size - 1, expected: size };
    assert_eq!(kv.write_page(0, &vec![1; size - 1]), Err(wrong));
    let mut read = Vec::new();
    kv.read_page(0, &mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
}

#[test]
fn memory_is_taken_as_pages_come_into_use() {
    let mut kv = KvStore::new(&config(), 1_000, 16);
    assert_eq!((kv.backed, kv.len_bytes()), (0, 1_000 * kv.page_bytes()));
    let mut read = vec![1; 5];
    kv.read_page(900, &mut read).unwrap();
    assert_eq!(read, vec![0; kv.page_bytes()]);
    let tokens: Vec<u32> = (0..40).map(|i| 272 + i).collect();
    // The first page is there from before: only those that are written count.
    let low = logits(&mut kv, &tokens, 0, &[0, 1, 2]);
    assert_eq!(kv.backed, BACKED_TOGETHER);
    let high = logits(&mut kv, &tokens, 16, &[0, 500, 200]);
    assert_eq!((kv.backed, &low), (512, &high));
    kv.write_page(999, &read).unwrap();
    assert_eq!(kv.backed, 1_000);
    assert_eq!(logits(&mut kv, &tokens, 39, &[0, 500, 200]), low);
}
