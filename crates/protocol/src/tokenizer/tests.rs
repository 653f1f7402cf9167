use super::detokenize::MOST_HELD_BYTES;
use super::*;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": special})
}

#[expect(clippy::needless_pass_by_value, reason = "JSON is written in place")]
fn file(model: Value, added_tokens: Vec<Value>, pre: Value, decoder: Value, post: Value) -> Value {
    json!({
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"},
        "added_tokens": added_tokens, "normalizer": null, "pre_tokenizer": pre, "post_processor": post,
        "decoder": decoder, "model": model,
    })
}

fn of(json: &Value) -> Tokenizer {
    Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
}

/// GPT-2's spelling of a byte, written the other way round than in `pieces`.
fn spelled(byte: u8) -> char {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(&byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(byte)).count() as u32;
    char::from_u32(256 + before).unwrap()
}

/// Byte-level BPE: the 256 bytes, some merges across characters, odd added tokens, `<bos>` before every text.
fn byte_level() -> Tokenizer {
    let mut vocab: Map<String, Value> =
        (0..=255u8).map(|byte| (spelled(byte).to_string(), json!(u32::from(byte)))).collect();
    let spell = |bytes: &[u8]| bytes.iter().map(|byte| spelled(*byte)).collect::<String>();
    let mut merges = Vec::new();
    for (left, right) in [
        (&b" "[..], &b"s"[..]),
        (b"h", b"i"),
        (b" s", b"hi"),
        (b" shi", b"p"),
        (&[0xe6], &[0xbc]),
        (&[0xa2, 0xf0][..1], &[0xf0]),
        (&[0xc3], &[0xa9]),
    ] {
        let whole = spell(&[left, right].concat());
        vocab.insert(whole, json!(vocab.len()));
        merges.push(json!([spell(left), spell(right)]));
    }
    let next = vocab.len() as u32;
    let names = ["<bos>", "<|im_end|>", "two words", " lead", "é漢"];
    let tokens = names.iter().zip(next..).map(|(name, id)| added(id, name, name.starts_with('<')));
    let model = json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges});
    let bos = json!({"SpecialToken": {"id": "<bos>", "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let post = json!({"type": "TemplateProcessing", "single": [bos, text], "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [next], "tokens": ["<bos>"]}}});
    let pre = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]});
    let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    of(&file(model, tokens.collect(), pre, decoder, post))
}

/// As SentencePiece models are converted: spaces as U+2581, bytes as tokens.
fn fallback(strip: bool) -> Tokenizer {
    let mut names = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    names.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    names.extend(["▁", "▁ship", "▁▁", "s", "h", "i", "p", "é", "漢", "a▁b"].map(str::to_owned));
    let vocab: Map<String, Value> = names.iter().zip(0u32..).map(|(name, id)| (name.clone(), json!(id))).collect();
    let model = json!({"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": vocab, "merges": []});
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if strip {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let tokens = vec![added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)];
    let mut json = file(model, tokens, Value::Null, json!({"type": "Sequence", "decoders": decoders}), Value::Null);
    json["normalizer"] = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]});
    of(&json)
}

/// Decoders that are left to the crate.
fn unusual(decoder: Value) -> Tokenizer {
    let names = ["[UNK]", "[SEP]", "ship", "##s", "▁a", "▁", "load", "##é", ",", "漢", "end</w>"];
    let vocab: Map<String, Value> =
        names.iter().zip(0u32..).map(|(name, id)| ((*name).to_owned(), json!(id))).collect();
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"});
    of(&file(model, vec![added(1, "[SEP]", true)], json!({"type": "Whitespace"}), decoder, Value::Null))
}

fn all() -> Vec<Tokenizer> {
    vec![
        byte_level(),
        fallback(true),
        fallback(false),
        unusual(json!({"type": "WordPiece", "prefix": "##", "cleanup": true})),
        unusual(json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})),
        unusual(json!({"type": "BPEDecoder", "suffix": "</w>"})),
        unusual(Value::Null),
    ]
}

#[test]
fn texts_become_ids_and_texts_again() {
    let tokenizer = byte_level();
    assert_eq!(tokenizer.vocab_tokens(), 268);
    let (bos, end) = (tokenizer.token_id("<bos>").unwrap(), tokenizer.token_id("<|im_end|>").unwrap());
    let ids = tokenizer.encode(" ship<|im_end|>two words", false).unwrap();
    assert_eq!(ids, [259, end, tokenizer.token_id("two words").unwrap()], "neither padded nor cut");
    assert_eq!(tokenizer.encode("é", true).unwrap(), [bos, 262]);
    let text = "漢字 🚢\r\n  it's 12345 <bos> ship\u{0}";
    let ids = tokenizer.encode(text, false).unwrap();
    assert_eq!(tokenizer.decode(&ids, false), text);
    assert_eq!(tokenizer.decode(&ids, true), text.replace("<bos>", ""));
    assert_eq!(tokenizer.specials().len(), 2);
    assert_eq!(tokenizer.token_bytes(260), [0xe6, 0xbc]);
    assert_eq!((tokenizer.token_text(260), tokenizer.token_text(9999)), ("\u{fffd}".to_owned(), String::new()));
    let tokenizer = fallback(true);
    let ids = tokenizer.encode("ship 🚢", false).unwrap();
    assert_eq!(tokenizer.decode(&ids, true), "ship 🚢");
    assert_eq!(tokenizer.token_bytes(3 + 0xe6), [0xe6]);
    assert_eq!(tokenizer.token_bytes(tokenizer.token_id("▁ship").unwrap()), b" ship");
}

#[test]
fn a_stream_shows_characters_as_soon_as_they_are_whole() {
    let tokenizer = byte_level();
    let mut stream = tokenizer.detokenizer(true);
    let shown: Vec<String> = [260, 0xa2, 0xc3, 0xff, 265, 259]
        .into_iter()
        .map(|id| {
            stream.push(id);
            stream.text().to_owned()
        })
        .collect();
    assert_eq!(
        shown,
        ["", "漢", "漢", "漢\u{fffd}\u{fffd}", "漢\u{fffd}\u{fffd}two words", "漢\u{fffd}\u{fffd}two words ship"]
    );
    // Bytes are a run until another token ends it, but not for ever.
    let tokenizer = fallback(false);
    let mut stream = tokenizer.detokenizer(true);
    let byte = |byte: u8| 3 + u32::from(byte);
    "漢".bytes().for_each(|b| stream.push(byte(b)));
    assert_eq!(stream.text(), "");
    stream.push(tokenizer.token_id("s").unwrap());
    assert_eq!(stream.text(), "漢s");
    "漢".repeat(MOST_HELD_BYTES).bytes().for_each(|b| stream.push(byte(b)));
    assert!(stream.text().chars().count() > MOST_HELD_BYTES / 2);
    stream.finish();
    assert_eq!(stream.text(), format!("漢s{}", "漢".repeat(MOST_HELD_BYTES)));
    // Cut for a stop string.
    stream.truncate(4);
    assert_eq!(stream.text(), "漢s");
    stream.truncate(1);
    assert_eq!(stream.text(), "漢s", "not inside a character");
}

#[test]
fn files_that_are_no_tokenizers_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokenizer.json");
    assert!(matches!(Tokenizer::open(&file), Err(TokenizerError::Read { .. })));
    for content in ["", "{}", "{\"model\": {\"type\": \"BPE\"}}", "[1]"] {
        std::fs::write(&file, content).unwrap();
        let error = Tokenizer::open(&file).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_stream_adds_up_to_decoding_at_once(which in 0usize..7, seeds in prop::collection::vec((any::<u32>(), 0u8..4), 0..60), skip: bool) {
        let tokenizer = &ALL[which];
        let most = tokenizer.vocab_tokens() as u32;
        // Bytes of wide characters, the rarer tokens at the end, and ids that do not exist.
        let ids: Vec<u32> = seeds.into_iter().map(|(seed, kind)| match kind {
            0 => seed % (most + 2),
            1 => most.saturating_sub(1 + seed % 14),
            _ => 3 + [0xe6, 0xbc, 0xa2, 0xf0, 0x9f, 0x9a, 0xa2, 0x20, 0x61][seed as usize % 9] - if which == 0 { 3 } else { 0 },
        }).collect();
        let mut stream = tokenizer.detokenizer(skip);
        let mut before = String::new();
        for id in &ids {
            stream.push(*id);
            prop_assert!(stream.text().starts_with(&before));
            before = stream.text().to_owned();
        }
        stream.finish();
        prop_assert!(stream.text().starts_with(&before));
        let known: Vec<u32> = ids.iter().copied().filter(|id| *id < most).collect();
        prop_assert_eq!(stream.text(), tokenizer.decode_whole(&known, skip));
    }

    #[test]
    fn every_text_survives_the_byte_level(text: String, parts in prop::collection::vec("[a-z ]{0,6}|é漢|two words|<bos>", 0..5)) {
        let text = text + &parts.concat();
        let ids = ALL[0].encode(&text, false).unwrap();
        prop_assert_eq!(ALL[0].decode(&ids, false), text);
    }
}

static ALL: std::sync::LazyLock<Vec<Tokenizer>> = std::sync::LazyLock::new(all);
