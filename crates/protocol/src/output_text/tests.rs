use super::*;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// Bytes, a token of half a character and a letter, and a special one.
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let spelled = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => {
            let plain = |byte: &u8| !matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            char::from_u32(256 + (0..byte).filter(plain).count() as u32).unwrap()
        }
    };
    let vocab: Map<String, Value> =
        (0..=255u8).map(|byte| (spelled(byte).to_string(), json!(u32::from(byte)))).collect();
    let json = json!({"version": "1.0", "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": 256, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}});
    Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
});

fn output(stops: &[&str]) -> OutputText {
    let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
    OutputText::new(&TOKENIZER, &[97, 98], true, &stops)
}

fn push(output: &mut OutputText, text: &str) -> String {
    text.bytes().for_each(|byte| output.push(u32::from(byte)));
    output.take().to_owned()
}

#[test]
fn what_may_become_a_stop_string_waits() {
    let mut text = output(&["END", "漢字"]);
    assert_eq!(push(&mut text, "the E"), "the ");
    assert_eq!(push(&mut text, "N"), "");
    assert_eq!(push(&mut text, "d 漢"), "ENd ");
    text.push(256);
    assert_eq!(push(&mut text, "x\u{e6}"), "漢x\u{e6}");
    assert!(!text.is_stopped());
    assert_eq!(push(&mut text, "END and more"), "");
    assert!(text.is_stopped());
    text.finish(Some("END"));
    assert_eq!(text.take(), "");
}

#[test]
fn of_several_at_once_the_first_listed_unless_the_engine_says_another() {
    for (matched, rest) in [(None, "a"), (Some("b"), "a"), (Some("ab"), ""), (Some("zz"), "a")] {
        let mut text = output(&["b", "ab"]);
        assert_eq!(push(&mut text, "x"), "x");
        assert_eq!(push(&mut text, "a"), "");
        assert_eq!(push(&mut text, "b"), "");
        text.finish(matched);
        assert_eq!(text.take(), rest, "{matched:?}");
    }
}

#[test]
fn the_end_shows_what_was_held() {
    let mut text = output(&["END"]);
    assert_eq!(push(&mut text, "so EN"), "so ");
    text.push(0xe6);
    text.finish(None);
    assert_eq!(text.take(), "EN\u{fffd}");
    assert_eq!(push(&mut text, "late"), "");
}

proptest! {
    /// However it is cut, the pieces add up to the text before the first token that completes a stop string.
    #[test]
    fn pieces_add_up(words in prop::collection::vec("[ab漢]{0,4}", 0..12), stops in prop::collection::vec("[ab漢]{1,3}", 0..3), takes in prop::collection::vec(any::<bool>(), 0..60)) {
        let whole = words.concat();
        let mut text = OutputText::new(&TOKENIZER, &[], true, &stops);
        let (mut shown, mut takes) = (String::new(), takes.into_iter().cycle());
        for byte in whole.bytes() {
            text.push(u32::from(byte));
            if takes.next().unwrap_or(true) {
                shown.push_str(text.take());
            }
        }
        text.finish(None);
        shown.push_str(text.take());
        // One character at a time.
        let ends = whole.char_indices().map(|(at, letter)| at + letter.len_utf8());
        let cut = ends.into_iter().find_map(|end| stops.iter().find_map(|stop| whole[..end].ends_with(stop.as_str()).then(|| end - stop.len())));
        prop_assert_eq!(shown, &whole[..cut.unwrap_or(whole.len())]);
    }
}
