use super::*;
use proptest::prelude::*;

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// `reference/sglang.md` 3.6: one batch in SGLang's newer form.
const MAP_FORM: &str = "93cb3ff80000000000009187a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391d3cf97adeedb59e05b\
                        b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72\
                        615f6964c0a66d656469756da347505500";
/// The same in the older form.
const ARRAY_FORM: &str =
    "93cb3ff80000000000009197ab426c6f636b53746f72656491d3cf97adeedb59e05bc0940102030404c0a347505500";

fn expected() -> KvBatch {
    let stored = StoredBlocks {
        names: vec![(-3_488_128_144_981_237_669i64) as u64],
        parent: None,
        tokens: vec![1, 2, 3, 4],
        block_tokens: 4,
        ..StoredBlocks::default()
    };
    KvBatch { at_unix_s: 1.5, events: vec![KvEvent::Stored(stored)], rank: Some(0), skipped: 0 }
}

#[test]
fn both_forms_of_sglang_say_the_same() {
    assert_eq!(decode_batch(&hex(MAP_FORM)), Ok(expected()));
    assert_eq!(decode_batch(&hex(ARRAY_FORM)), Ok(expected()));
}

#[test]
fn an_event_that_is_not_known_is_passed_over_and_the_next_one_is_read() {
    // [1.5, [{"type": "Novelty", "x": [1, 2]}, ["AllBlocksCleared"], 7], nil]
    let mut bytes = hex("93cb3ff80000000000009382a474797065a74e6f76656c7479a178920102");
    bytes.extend([0x91, 0xb0]);
    bytes.extend(b"AllBlocksCleared");
    bytes.extend([0x07, 0xc0]);
    let batch = decode_batch(&bytes).unwrap();
    assert_eq!((batch.events, batch.skipped, batch.rank), (vec![KvEvent::Cleared], 2, None));
}

#[test]
fn lengths_that_the_bytes_cannot_back_take_no_memory() {
    // An array of 2^32 - 1 events, and one event with as many token ids.
    assert!(decode_batch(&hex("93cb3ff8000000000000ddffffffff")).is_err());
    let tokens = hex("93cb3ff80000000000009182a474797065ab426c6f636b53746f726564a9746f6b656e5f696473ddffffffff");
    assert!(decode_batch(&tokens).is_err());
    let deep: Vec<u8> = hex("93cb3ff800000000000091").into_iter().chain(std::iter::repeat_n(0x91, 100_000)).collect();
    assert!(decode_batch(&deep).is_err());
}

#[test]
fn tokens_that_do_not_fill_the_blocks_are_not_credited() {
    // Three tokens for one block of four.
    let bytes = hex("93cb3ff80000000000009197ab426c6f636b53746f72656491d3cf97adeedb59e05bc09301020304c0a347505500");
    let batch = decode_batch(&bytes).unwrap();
    assert_eq!((batch.events.len(), batch.skipped), (0, 1));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_batch(&bytes);
    }

    #[test]
    fn a_damaged_batch_is_refused_or_read(at in 0usize..120, byte in any::<u8>(), cut in 0usize..130) {
        let mut bytes = hex(MAP_FORM);
        let len = bytes.len();
        bytes[at % len] = byte;
        let _ = decode_batch(&bytes);
        prop_assert!(decode_batch(&hex(MAP_FORM)[..cut.min(len - 1)]).is_err());
    }
}

/// Its elements were once read as the fields behind it.
#[test]
fn metadata_in_another_form_is_passed_over_as_a_whole() {
    // [1.0, [{"type": "BlockStored", "metadata": [1, 2], "block_hashes": [1, -2], "parent_block_hash": nil, "token_ids": [1, 2, 3, 4], "block_size": 2}]]
    let mut bytes = hex("92cb3ff00000000000009186a474797065ab426c6f636b53746f726564a86d65746164617461920102");
    for (name, value) in
        [("block_hashes", "9201fe"), ("parent_block_hash", "c0"), ("token_ids", "9401020304"), ("block_size", "02")]
    {
        bytes.push(0xa0 + name.len() as u8);
        bytes.extend(name.as_bytes());
        bytes.extend(hex(value));
    }
    let batch = decode_batch(&bytes).unwrap();
    let [KvEvent::Stored(stored)] = batch.events.as_slice() else { panic!("{batch:?}") };
    assert_eq!((stored.names.as_slice(), stored.tokens.as_slice()), (&[1, -2i64 as u64][..], &[1, 2, 3, 4][..]));
}
