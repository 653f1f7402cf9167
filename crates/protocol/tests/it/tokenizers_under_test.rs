//! Tokenizers of the kinds that models come with, trained here on made-up text, with added tokens of every odd sort.

use plimsoll_protocol::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper};

/// Everything that the templates under test write between messages.
pub(crate) const MARKS: [&str; 40] = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<|Assistant|>",
    "<|User|>",
    "<|calls|>",
    "<|call|>",
    "<|channel|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|endcalls|>",
    "<|endcall|>",
    "<|end|>",
    "<|eot_id|>",
    "<|message|>",
    "<|observation|>",
    "<|outputs|>",
    "<|output|>",
    "<|return|>",
    "<|sep|>",
    "<|start|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "<start_of_turn>",
    "<end_of_turn>",
];

/// Pre-tokenizer patterns as published with the models of these names.
pub(crate) const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// With the splits for numbers and for Chinese and Japanese before it.
pub(crate) const DEEPSEEK: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
pub(crate) const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex})
}

fn sequence(name: &str, parts: &[Value]) -> Value {
    json!({"type": "Sequence", name: parts})
}

fn metaspace(scheme: &str, split: bool) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split})
}

/// Around every text: `<s>` before it, and `</s>` after it where `both`.
fn template(both: bool) -> Value {
    let token = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let mut single = vec![token("<s>"), json!({"Sequence": {"id": "A", "type_id": 0}})];
    if both {
        single.push(token("</s>"));
    }
    json!({"type": "TemplateProcessing", "single": single, "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [ID], "tokens": ["<s>"]}, "</s>": {"id": "</s>", "ids": [ID, ID], "tokens": ["</s>", "</s>"]}}})
}

/// Stands for the id of a special token in [`template`], which is known once the model is trained.
const ID: u32 = 1_000_003;

/// Text to train on: a few hundred words, numbers, code, other alphabets.
fn corpus() -> Vec<String> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let sounds = [
        "ka", "shi", "p", "lo", "ad", "ing", "é", "漢", "th", "e ", "user", "_x", "()", "12", "ß", "s\n", "🚢",
        "\u{301}",
    ];
    let words: Vec<String> = (0..300)
        .map(|_| (0..1 + next() % 4).map(|_| sounds[(next() % sounds.len() as u64) as usize]).collect())
        .collect();
    (0..400)
        .map(|_| {
            (0..20)
                .map(|_| words[((next() % 300) * (next() % 300) / 300) as usize].clone())
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect()
}

/// The letters of the corpus and the most frequent pieces of its words. (The crate's own trainer fails without its C++ part.)
fn unigram() -> Unigram {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for word in corpus().iter().flat_map(|line| line.split(' ')) {
        let letters: Vec<char> = std::iter::once('▁').chain(word.chars()).collect();
        for from in 0..letters.len() {
            for to in from + 1..=letters.len().min(from + 6) {
                *counts.entry(letters[from..to].iter().collect()).or_default() += 1;
            }
        }
    }
    let mut pieces: Vec<(String, usize)> = counts.into_iter().collect();
    pieces.sort_by_key(|(piece, count)| (piece.chars().count() > 1, std::cmp::Reverse(*count)));
    pieces.truncate(500);
    let all: f64 = pieces.iter().map(|(_, count)| *count as f64).sum();
    let scored = pieces.into_iter().map(|(piece, count)| (piece, (count as f64 / all).ln()));
    let vocab = std::iter::once(("<unk>".to_owned(), 0.0)).chain(scored);
    Unigram::from(vocab.collect(), Some(0), false).unwrap()
}

struct Recipe {
    unigram: bool,
    normalizer: Value,
    pre: Value,
    post: Value,
    odd: Vec<AddedToken>,
    /// Whether marks are compared after normalisation, as old conversions have it.
    normalized_marks: bool,
}

fn build(recipe: &Recipe) -> Tokenizer {
    let byte_level = recipe.pre.to_string().contains("ByteLevel");
    // As SentencePiece's converted: what it has not seen is bytes.
    let bytes: Vec<String> =
        std::iter::once("<unk>".to_owned()).chain((0..=255).map(|byte| format!("<0x{byte:02X}>"))).collect();
    let model: ModelWrapper = if recipe.unigram { unigram().into() } else { BPE::default().into() };
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    let part = |value: &Value| (!value.is_null()).then(|| value.clone());
    let pre = part(&recipe.pre).map(|value| serde_json::from_value::<PreTokenizerWrapper>(value).unwrap());
    tokenizer.with_pre_tokenizer(pre);
    let normalizer = part(&recipe.normalizer).map(|value| serde_json::from_value::<NormalizerWrapper>(value).unwrap());
    tokenizer.with_normalizer(normalizer).unwrap();
    if !recipe.unigram {
        let mut trainer = BpeTrainer::builder().vocab_size(700).show_progress(false);
        if byte_level {
            trainer = trainer.initial_alphabet(ByteLevel::alphabet().into_iter().collect());
        } else {
            let bytes = bytes.iter().map(|byte| AddedToken::from(byte.as_str(), true));
            trainer = trainer.vocab_size(1000).special_tokens(bytes.collect());
        }
        tokenizer.train(&mut TrainerWrapper::from(trainer.build()), corpus().into_iter()).unwrap();
    }
    let marks = MARKS.iter().map(|mark| AddedToken::from(*mark, true).normalized(recipe.normalized_marks));
    tokenizer.add_tokens(marks).unwrap();
    tokenizer.add_tokens(recipe.odd.iter().cloned()).unwrap();
    let mut json: Value = serde_json::from_str(&tokenizer.to_string(false).unwrap()).unwrap();
    let ids = ["<s>", "</s>"].map(|token| tokenizer.token_to_id(token).unwrap());
    json["post_processor"] = recipe.post.clone();
    if let Some(Value::Object(tokens)) = json["post_processor"].get_mut("special_tokens") {
        for (token, id) in tokens.values_mut().zip(ids) {
            for place in token["ids"].as_array_mut().unwrap() {
                *place = json!(id);
            }
        }
    }
    if !recipe.unigram && !byte_level {
        json["model"]["fuse_unk"] = json!(true);
        json["model"]["byte_fallback"] = json!(true);
        json["model"]["unk_token"] = json!("<unk>");
        let added = json["added_tokens"].as_array_mut().unwrap();
        added.retain(|token| !token["content"].as_str().unwrap().starts_with("<0x"));
    }
    Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
}

/// Added tokens that begin or end inside one another, hold spaces and line breaks, are words, or swallow white space.
fn odd(normalized: bool) -> Vec<AddedToken> {
    let plain = |text: &str| AddedToken::from(text, false).normalized(normalized);
    vec![
        plain("<|im_"),
        plain("<|im_start|>user"),
        plain("\n\n"),
        plain("\t\t"),
        plain("é漢"),
        plain("▁ship"),
        plain("two words"),
        plain(" lead"),
        plain("trail "),
        AddedToken::from("<|left|>", true).lstrip(true).normalized(normalized),
        AddedToken::from("<|right|>", true).rstrip(true).normalized(normalized),
        AddedToken::from("<mask>", true).lstrip(true).rstrip(true).normalized(normalized),
    ]
}

/// By name: the tokenizer, and whether texts may be cut at all.
pub(crate) fn all() -> Vec<(&'static str, Tokenizer)> {
    let nfc = json!({"type": "NFC"});
    let none = Value::Null;
    let llama_2 = sequence(
        "normalizers",
        &[
            json!({"type": "Prepend", "prepend": "▁"}),
            json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
        ],
    );
    let gemma = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let t5 = sequence(
        "normalizers",
        &[json!({"type": "NFKC"}), json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"})],
    );
    let word = |normalized| vec![AddedToken::from("line", false).single_word(true).normalized(normalized)];
    let recipe = |unigram, normalizer: &Value, pre: Value, post: Value, odd, normalized_marks| {
        build(&Recipe { unigram, normalizer: normalizer.clone(), pre, post, odd, normalized_marks })
    };
    let split_by = |pattern| sequence("pretokenizers", &[split(pattern), byte_level(false, false)]);
    let [numbers, wide, rest] = DEEPSEEK;
    let deepseek = sequence("pretokenizers", &[split(numbers), split(wide), split(rest), byte_level(false, false)]);
    let empty = sequence("normalizers", &[]);
    vec![
        ("byte-level, NFC", recipe(false, &nfc, split_by(QWEN), byte_level(false, false), odd(false), false)),
        (
            "byte-level, nothing normalised, marks normalised",
            recipe(false, &none, split_by(LLAMA_3), template(false), odd(true), true),
        ),
        ("byte-level, DeepSeek's", recipe(false, &empty, deepseek, template(false), odd(false), true)),
        ("byte-level, o200k", recipe(false, &none, split_by(O200K), byte_level(false, false), odd(false), false)),
        (
            "byte-level with a prefix space",
            recipe(false, &none, byte_level(true, true), template(true), odd(false), false),
        ),
        ("sentencepiece, prepended", recipe(false, &llama_2, none.clone(), template(false), odd(false), false)),
        ("sentencepiece, all normalised", recipe(false, &llama_2, none.clone(), template(true), odd(true), true)),
        ("sentencepiece, never a prefix", recipe(false, &gemma, split(" "), template(false), odd(false), false)),
        ("metaspace, only first", recipe(false, &none, metaspace("first", false), template(false), odd(false), false)),
        ("metaspace, always", recipe(false, &none, metaspace("always", true), template(false), odd(true), false)),
        ("unigram, only first", recipe(true, &nfc, metaspace("first", true), template(true), odd(false), false)),
        ("unigram, always", recipe(true, &t5, metaspace("always", true), template(true), odd(true), false)),
        ("a token that is a word", recipe(false, &none, split_by(QWEN), none.clone(), word(false), false)),
        ("a normalised token that is a word", recipe(false, &none, split_by(QWEN), none.clone(), word(true), false)),
    ]
}
