use super::*;
use crate::text::Text;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[test]
fn the_word_list_fits_the_vocabulary() {
    assert_eq!(WORDS.len(), WORD_COUNT);
    assert_eq!(WORDS.iter().collect::<BTreeSet<_>>().len(), WORD_COUNT);
    assert!(WORDS.iter().all(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase())));
}

#[test]
fn words_are_one_token_each() {
    let tokenizer = Tokenizer::new();
    let text: String = WORDS.iter().map(|word| format!(" {word}")).collect();
    let ids = tokenizer.encode(&text);
    assert_eq!(ids, (FIRST_WORD..VOCAB as u32).collect::<Vec<_>>());
    assert_eq!(Text::default().decode(&ids), text);
}

#[test]
fn unknown_words_and_specials() {
    let tokenizer = Tokenizer::new();
    assert_eq!(tokenizer.encode(" ship, ho").len(), 1 + 1 + 3);
    assert_eq!(tokenizer.encode("<|im_start|>a<|im_end|>"), [IM_START, u32::from(b'a'), IM_END]);
    assert_eq!(tokenizer.encode("<|im_"), b"<|im_".map(u32::from));
    assert_eq!(tokenizer.encode(""), [] as [u32; 0]);
}

#[test]
fn a_stream_never_shows_half_a_character() {
    let text = "aé漢🚢z";
    let mut stream = Text::default().stream(true);
    let mut seen = Vec::new();
    for byte in text.bytes() {
        stream.push(u32::from(byte));
        seen.push(stream.text().to_owned());
    }
    assert!(seen.iter().all(|part| text.starts_with(part.as_str())));
    assert_eq!(stream.text(), text);
    // A character that a word interrupts is replaced, and nothing after it is lost.
    let mut stream = Text::default().stream(true);
    for id in [0xe6, 0xbc, FIRST_WORD, 0xff, u32::from(b'x')] {
        stream.push(id);
    }
    stream.finish();
    assert_eq!(stream.text(), format!("\u{fffd} {}\u{fffd}x", WORDS[0]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_text_survives_the_round_trip(parts in prop::collection::vec(
        prop_oneof![any::<String>(), "( [a-z]{1,7}){1,4}", Just(" ship".to_owned()), Just("<|im_end|>".to_owned())], 0..6)
    ) {
        let text = parts.concat();
        let tokenizer = Tokenizer::new();
        let ids = tokenizer.encode(&text);
        prop_assert!(ids.iter().all(|id| (*id as usize) < VOCAB));
        prop_assert_eq!(Text::default().decode(&ids), text);
    }
}
