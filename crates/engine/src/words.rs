//! The whole words of the tiny model's vocabulary.
//!
//! A text of the form `" w1 w2 w3"` made of these words has exactly as many tokens as words, so that a workload can
//! write prompts of a known length and every completion of the tiny model reads as words.

use std::sync::LazyLock;

/// How many whole words the vocabulary holds.
pub const WORD_COUNT: usize = 752;

/// All words, lower case a-z, no duplicates. The index is the word's token id minus [`crate::tokenizer::FIRST_WORD`].
pub static WORDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| include_str!("../data/words.txt").lines().collect());

/// The word with this index, taken modulo [`WORD_COUNT`], without a leading space.
#[must_use]
pub fn word(index: usize) -> &'static str {
    WORDS.get(index % WORD_COUNT).copied().unwrap_or_default()
}
