//! Text whose shared prefixes are exactly those that the block ids say.
//!
//! Traces carry no text, only ids of prefix blocks. An engine caches by token, so the replayed prompts must agree
//! token for token on common blocks and part right behind them. One word is one token of the tokenizer whose word
//! list is passed in. Each block starts with its id written in base *n* (the number of words), most telling digit
//! first; filler follows. Two different blocks thus differ in their first [`Synth::ID_WORDS`] words, and, as ids of
//! neighbours in time are close, nearly always in the very first: always when their ids lie in the same group of *n*.

use crate::mix::mix;
use crate::plan::{Prompt, Run, Tail};
use crate::scale::Scale;

/// Writes prompts with a given word list and scale. Pure: equal input, equal text.
#[derive(Clone, Debug)]
pub struct Synth<'w> {
    words: Vec<&'w str>,
    scale: Scale,
}

impl<'w> Synth<'w> {
    /// Words at the head of a block that together name it, for up to n³ ids.
    pub const ID_WORDS: u64 = 3;

    /// `words` must be distinct, free of white space and at least 64, or prompts could not differ where they should;
    /// `None` otherwise.
    #[must_use]
    pub fn new(words: &[&'w str], scale: Scale) -> Option<Self> {
        let mut sorted: Vec<&str> = words.to_vec();
        sorted.sort_unstable();
        let distinct = sorted.windows(2).all(|pair| pair[0] != pair[1]);
        let clean = words.iter().all(|word| !word.is_empty() && !word.contains(char::is_whitespace));
        (distinct && clean && words.len() >= 64).then(|| Synth { words: words.to_vec(), scale })
    }

    #[must_use]
    pub fn scale(&self) -> &Scale {
        &self.scale
    }

    /// Words of a full block.
    #[must_use]
    pub fn words_per_block(&self, block_tokens: u64) -> u64 {
        self.scale.words(block_tokens)
    }

    /// Words of the whole prompt.
    #[must_use]
    pub fn prompt_words(&self, prompt: &Prompt) -> u64 {
        prompt.full_blocks() * self.words_per_block(prompt.block_tokens)
            + prompt.tail.map_or(0, |tail| self.scale.words(tail.tokens))
    }

    /// The whole prompt. Every word has its space before it, the first one too: word-level tokenizers count `" word"` as
    /// one token, and texts can be put together as they are.
    #[must_use]
    pub fn prompt(&self, prompt: &Prompt) -> String {
        self.part(&prompt.runs, prompt.tail, prompt.block_tokens, 0)
    }

    /// Some blocks and perhaps a tail, without their first `skip` words: one message of a chat.
    #[must_use]
    pub fn part(&self, runs: &[Run], tail: Option<Tail>, block_tokens: u64, skip: u64) -> String {
        let per_block = self.words_per_block(block_tokens);
        let blocks = runs.iter().flat_map(|run| run.first..run.first + run.len).map(|id| (id, per_block));
        let tail = tail.map(|tail| (tail.id, self.scale.words(tail.tokens)));
        let total = runs.iter().map(|run| run.len).sum::<u64>() * per_block + tail.map_or(0, |(_, words)| words);
        let mut text = String::with_capacity(usize::try_from(total.saturating_mul(8)).unwrap_or(0));
        let mut left_to_skip = skip;
        for (id, words) in blocks.chain(tail) {
            let from = left_to_skip.min(words);
            left_to_skip -= from;
            for position in from..words {
                text.push(' ');
                text.push_str(self.word(id, position));
            }
        }
        text
    }

    fn word(&self, id: u64, position: u64) -> &'w str {
        let n = self.words.len() as u64;
        let (digit, group) = (id % n, id / n);
        let index = match position {
            // An affine permutation of the digit, another one for each group: two runs of ids whose distance is a
            // multiple of n would otherwise agree block after block.
            0 => (coprime(mix(group), n) * digit + mix(!group) % n) % n,
            1 => (group % n + mix(n)) % n,
            2 => (group / n % n + mix(n + 1)) % n,
            _ => mix(mix(id) ^ position) % n,
        };
        self.words[index as usize]
    }
}

/// A factor in `1..n` without a common divisor with `n`, chosen by `seed`.
fn coprime(seed: u64, n: u64) -> u64 {
    let mut factor = seed % n;
    while gcd(factor, n) != 1 {
        factor = (factor + 1) % n;
    }
    factor
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
