//! The tiny model's tokenizer and chat template as files that `transformers`, stock engines and a gateway can read.
//!
//! The rule "a space and the longest run of a-z after it, if that is a known word, else bytes" is a byte-level BPE without
//! merges whose pre-tokenizer cuts out those runs: what is in the vocabulary as a whole is one token, anything else falls
//! apart into bytes.

use super::{Inner, TINY_TEMPLATE, Text};
use crate::tokenizer::{FIRST_SPECIAL, FIRST_WORD, Piece, VOCAB, piece};
use serde_json::{Map, Value, json};
use std::io;
use std::path::Path;

/// Files that a folder's text consists of.
const FILES: [&str; 5] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json"];

impl Text {
    /// Writes the tokenizer's files into a folder that exists. `source` is the folder that a folder's text came from: its
    /// files are copied.
    ///
    /// # Errors
    /// When a file cannot be written or copied.
    pub fn export(&self, source: Option<&Path>, folder: &Path) -> io::Result<()> {
        if let (Inner::Folder(_), Some(source)) = (&*self.0, source) {
            let mut present = FILES.iter().filter(|name| source.join(name).exists());
            return present.try_for_each(|name| std::fs::copy(source.join(name), folder.join(name)).map(drop));
        }
        std::fs::write(folder.join("tokenizer.json"), format!("{:#}\n", tokenizer()))?;
        std::fs::write(folder.join("tokenizer_config.json"), format!("{:#}\n", config()))
    }
}

/// The tiny model's `tokenizer.json`.
#[must_use]
pub fn tokenizer() -> Value {
    let spelled = |id: u32| match piece(id) {
        Some(Piece::Byte(byte)) => spell(byte).to_string(),
        Some(Piece::Word(word)) => format!("{}{word}", spell(b' ')),
        Some(Piece::Special(text)) => text.to_owned(),
        None => String::new(),
    };
    let vocab: Map<String, Value> = (0..VOCAB as u32).map(|id| (spelled(id), json!(id))).collect();
    let added = (FIRST_SPECIAL..FIRST_WORD).map(|id| {
        json!({
            "id": id, "content": spelled(id), "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": " [a-z]+"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": vocab, "merges": [],
        },
    })
}

/// The tiny model's `tokenizer_config.json`.
#[must_use]
pub fn config() -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": false,
        "chat_template": TINY_TEMPLATE,
    })
}

/// GPT-2's spelling of bytes, which `tokenizer.json` wants: printable ones are themselves, the others follow from U+0100.
fn spell(byte: u8) -> char {
    let code = u32::from(byte);
    let shifted = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x00..=0x20 => 0x100 + code,
        0x7f..=0xa0 => 0x121 + code - 0x7f,
        0xad => 0x143,
    };
    char::from_u32(shifted).unwrap_or_default()
}
