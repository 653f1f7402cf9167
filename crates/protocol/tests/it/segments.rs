//! Ids put together from known pieces are those of the whole text, whatever the template, the tokenizer and the conversation.

use crate::templates::{Case, STYLES, message, text, tools};
use crate::tokenizers_under_test::{MARKS, all};
use plimsoll_protocol::tokenizer::{SegmentCache, Tokenizer, Whole};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;

static TOKENIZERS: LazyLock<Vec<(&'static str, Tokenizer)>> = LazyLock::new(all);

/// Small enough to forget within a test.
fn cache() -> SegmentCache {
    SegmentCache::new(64 << 10, [3; 32]).in_parts_of(1)
}

fn same(cache: &SegmentCache, text: &str) {
    for (name, tokenizer) in TOKENIZERS.iter() {
        for add_special_tokens in [false, true] {
            let whole = tokenizer.encode(text, add_special_tokens).unwrap();
            let encoded = tokenizer.encode_known(cache, "", text, add_special_tokens).unwrap();
            assert_eq!(encoded.ids, whole, "{name}: {text:?}");
        }
    }
}

/// Marks, parts of marks, white space and the rest, side by side.
fn patchwork() -> impl Strategy<Value = String> {
    let odd = [
        "<|im_",
        "<|im_start|>user",
        "\n\n",
        "\n",
        "\t\t",
        "é漢",
        "\nI",
        "a\nb",
        " \n \nx",
        "\t\nQ",
        "!\nR",
        "s\n",
        "▁ship",
        "▁",
        "two words",
        " lead",
        "trail ",
        "<|left|>",
        "<|right|>",
        "<mask>",
        "line",
        " ",
        "  ",
        "user",
        "<|",
        "|>",
        "a",
        "e\u{301}",
        "\u{301}",
        "漢",
        "12345",
        "'s",
        "\u{a0}",
        "\u{2028}",
        "\r\n",
        "ship",
        "\u{200b}",
        "\u{0}",
        "İ",
        "ﬁ",
    ];
    let piece = prop_oneof![
        3 => prop::sample::select(MARKS.to_vec()).prop_map(str::to_owned),
        5 => prop::sample::select(odd.to_vec()).prop_map(str::to_owned),
        1 => any::<String>(),
        2 => "[a-z ]{0,9}",
    ];
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

#[test]
fn every_tokenizer_here_is_one_that_may_be_cut() {
    for (name, tokenizer) in TOKENIZERS.iter() {
        assert_eq!(tokenizer.never_cut(), None, "{name}");
        let text = "<|im_start|>user\nhow deep<|im_end|>\n<|im_start|>assistant\n";
        let cache = SegmentCache::new(1 << 20, [0; 32]);
        tokenizer.encode_known(&cache, "", text, false).unwrap();
        let again = tokenizer.encode_known(&cache, "", text, false).unwrap();
        assert_eq!(again.whole, None, "{name}");
        // Another owner's is not known.
        let first = tokenizer.encode_known(&cache, "else", text, false).unwrap();
        assert!(first.known_bytes < again.known_bytes && again.known_bytes == text.len(), "{name}: {first:?}");
    }
    let (_, tokenizer) = TOKENIZERS.iter().find(|(name, _)| *name == "a token that is a word").unwrap();
    let cache = cache();
    let encoded = tokenizer.encode_known(&cache, "", "a line<s>", false).unwrap();
    assert_eq!(encoded.whole, Some(Whole::SingleWord));
}

#[test]
fn a_long_text_that_grows_is_known_up_to_its_last_part() {
    let line = "How deep is it? In fathoms, é漢 12345.\nAnd\n\n  how far\n";
    let mut text = line.repeat(400);
    for (name, tokenizer) in TOKENIZERS.iter() {
        let cut = [
            "byte-level, NFC",
            "byte-level, nothing normalised, marks normalised",
            "byte-level, DeepSeek's",
            "byte-level, o200k",
        ];
        let cache = SegmentCache::new(4 << 20, [3; 32]);
        tokenizer.encode_known(&cache, "", &text, true).unwrap();
        text.push_str("And some more. ");
        let grown = tokenizer.encode_known(&cache, "", &text, true).unwrap();
        assert_eq!(grown.ids, tokenizer.encode(&text, true).unwrap(), "{name}");
        if cut.contains(name) {
            assert!(text.len() - grown.known_bytes < 2 * 4096, "{name}: {} of {}", grown.known_bytes, text.len());
        }
    }
}

#[test]
fn rendered_sessions_of_every_style() {
    let cache = cache();
    let mut cut = 0;
    for style in STYLES {
        for with_tools in [false, true] {
            let mut messages = vec![json!({"role": "user", "content": "  How deep is it?\n\nIn <s>fathoms</s>, "})];
            for turn in 0..6 {
                for thinking in [false, true] {
                    let case = Case {
                        style,
                        name: String::new(),
                        messages: Value::from(messages.clone()),
                        tools: with_tools.then(tools),
                        generate: true,
                        extra: [("enable_thinking".to_owned(), Value::from(thinking))].into_iter().collect(),
                    };
                    if let Value::String(text) = &case.rendered()["text"] {
                        same(&cache, text);
                        cut += 1;
                    }
                }
                let answer = format!("<think>\nturn {turn}\n</think>\n\nIt is {turn} deep.");
                messages.push(json!({"role": "assistant", "content": answer}));
                messages.push(json!({"role": "user", "content": format!("And {turn} é漢 miles on? ")}));
            }
        }
    }
    assert!(cut > 150, "{cut} rendered");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn patchworks(texts in prop::collection::vec(patchwork(), 1..4)) {
        let cache = cache();
        for text in texts.iter().chain(&texts) {
            same(&cache, text);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_conversations(
        messages in prop::collection::vec(message(), 1..6), more in text(), style in prop::sample::select(STYLES.to_vec()),
        with_tools: bool, generate: bool, thinking in prop::option::of(any::<bool>()),
    ) {
        let cache = cache();
        let mut messages = messages;
        for _ in 0..3 {
            let extra = thinking.map(|on| ("enable_thinking".to_owned(), Value::from(on))).into_iter().collect();
            let case = Case { style, name: String::new(), messages: messages.clone().into(), tools: with_tools.then(tools), generate, extra };
            if let Value::String(text) = &case.rendered()["text"] {
                same(&cache, text);
            }
            messages.push(json!({"role": "user", "content": more}));
        }
    }
}
