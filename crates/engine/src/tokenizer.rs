//! The tiny model's tokenizer: whole words with a leading space, bytes for everything else.
//!
//! Rule: at a space, the longest run of `a-z` after it is looked up; a known `" word"` is one token. Anything else
//! becomes one token per byte, so every UTF-8 text survives the round trip exactly. Special tokens written out in a text
//! (`<|im_start|>`) become that token, as Hugging Face tokenizers do, so a gateway may render the chat template itself.

use crate::words::{WORD_COUNT, WORDS};
use std::collections::HashMap;

#[cfg(test)]
mod tests;

/// Size of the vocabulary: 256 bytes, 16 specials, 752 words.
pub const VOCAB: usize = 1024;
/// Ids of the special tokens start here.
pub const FIRST_SPECIAL: u32 = 256;
/// Id of word 0; the ids before it are bytes and specials.
pub const FIRST_WORD: u32 = 272;
pub const END_OF_TEXT: u32 = 256;
pub const IM_START: u32 = 257;
/// The one special token that the model can generate: it ends an answer.
pub const IM_END: u32 = 258;

const SPECIALS: [&str; 16] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|reserved_3|>",
    "<|reserved_4|>",
    "<|reserved_5|>",
    "<|reserved_6|>",
    "<|reserved_7|>",
    "<|reserved_8|>",
    "<|reserved_9|>",
    "<|reserved_10|>",
    "<|reserved_11|>",
    "<|reserved_12|>",
    "<|reserved_13|>",
    "<|reserved_14|>",
    "<|reserved_15|>",
];

const _: () = assert!(FIRST_WORD as usize + WORD_COUNT == VOCAB);

/// What a token id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    Byte(u8),
    /// Written form of a special token.
    Special(&'static str),
    /// A word without its leading space.
    Word(&'static str),
}

/// `None` for ids outside the vocabulary.
#[must_use]
pub fn piece(id: u32) -> Option<Piece> {
    if let Ok(byte) = u8::try_from(id) {
        return Some(Piece::Byte(byte));
    }
    if id < FIRST_WORD {
        return SPECIALS.get((id - FIRST_SPECIAL) as usize).map(|text| Piece::Special(text));
    }
    WORDS.get((id - FIRST_WORD) as usize).map(|word| Piece::Word(word))
}

/// The bytes that a token adds to a text, and whether it is a special one; nothing for ids outside the vocabulary.
#[must_use]
pub fn bytes(id: u32) -> (Vec<u8>, bool) {
    match piece(id) {
        Some(Piece::Byte(byte)) => (vec![byte], false),
        Some(Piece::Word(word)) => (format!(" {word}").into_bytes(), false),
        Some(Piece::Special(text)) => (text.as_bytes().to_vec(), true),
        None => (Vec::new(), false),
    }
}

#[derive(Debug)]
pub struct Tokenizer {
    words: HashMap<&'static str, u32>,
}

impl Default for Tokenizer {
    fn default() -> Self {
        Self::new()
    }
}

impl Tokenizer {
    #[must_use]
    pub fn new() -> Self {
        Tokenizer { words: (FIRST_WORD..).zip(WORDS.iter()).map(|(id, word)| (*word, id)).collect() }
    }

    /// Token ids of a text. Never fails: what is not a word or a special token is bytes.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4);
        let mut rest = text;
        while let Some(first) = rest.bytes().next() {
            let (id, length) = match first {
                b' ' => self.word_at(rest),
                b'<' => special_at(rest),
                _ => None,
            }
            .unwrap_or((u32::from(first), 1));
            ids.push(id);
            if length == 1 && !rest.is_char_boundary(1) {
                // The head byte of a longer character: take all of its bytes.
                let width = (2..=4).find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
                ids.extend(rest.bytes().take(width).skip(1).map(u32::from));
                rest = &rest[width..];
            } else {
                rest = &rest[length..];
            }
        }
        ids
    }

    fn word_at(&self, rest: &str) -> Option<(u32, usize)> {
        let run = rest.bytes().skip(1).take_while(u8::is_ascii_lowercase).count();
        let id = self.words.get(&rest[1..=run])?;
        Some((*id, run + 1))
    }
}

fn special_at(rest: &str) -> Option<(u32, usize)> {
    if !rest.starts_with("<|") {
        return None;
    }
    (FIRST_SPECIAL..).zip(SPECIALS).find(|(_, text)| rest.starts_with(text)).map(|(id, text)| (id, text.len()))
}
