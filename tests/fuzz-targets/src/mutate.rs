//! Seeded mutations, so that the replay on stable looks a little beyond the corpus and a failure can be repeated.
//!
//! No match for libFuzzer, which sees coverage; it catches what was broken since the last run of that.

/// Words that the parsers know, one `"..."` a line with `\xNN` escapes: libFuzzer's dictionary format.
pub const DICTIONARY: &str = include_str!("../../fuzz/wire.dict");

/// Largest mutated input in bytes.
const MOST_BYTES: usize = 16 << 10;

/// splitmix64: a generator that is the same everywhere and needs no crate.
#[derive(Clone, Debug)]
pub struct Draw(pub u64);

impl Draw {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`; 0 where that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.draw() % bound as u64) as usize }
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let most = (length - start).min(1 + self.below(64));
        start..start + self.below(most + 1)
    }
}

/// One to six changes of one of `corpus`, mixed with pieces of the others and of `words`.
#[must_use]
pub fn mutate(corpus: &[Vec<u8>], words: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut draw = Draw(seed);
    let mut input = corpus.get(draw.below(corpus.len())).cloned().unwrap_or_default();
    for _ in 0..=draw.below(6) {
        change(&mut input, corpus, words, &mut draw);
    }
    input.truncate(MOST_BYTES);
    input
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[Vec<u8>], draw: &mut Draw) {
    match draw.below(8) {
        0 if !input.is_empty() => {
            let at = draw.below(input.len());
            input[at] ^= 1 << draw.below(8);
        }
        1 if !input.is_empty() => {
            let at = draw.below(input.len());
            const NASTY: &[u8] = b"\"\\{}[]:,\n\r\0\xff -09eE.=#%";
            input[at] = NASTY[draw.below(NASTY.len())];
        }
        2 => {
            let range = draw.range(input.len());
            input.drain(range);
        }
        3 => {
            let range = draw.range(input.len());
            let piece = input[range].to_vec();
            insert(input, &piece, draw);
        }
        4 => {
            let at = draw.below(input.len() + 1);
            input.truncate(at);
        }
        5 => {
            let other = &corpus[draw.below(corpus.len())];
            let piece = other[draw.range(other.len())].to_vec();
            insert(input, &piece, draw);
        }
        _ if !words.is_empty() => {
            let word = &words[draw.below(words.len())];
            insert(input, word, draw);
        }
        _ => {}
    }
}

fn insert(input: &mut Vec<u8>, piece: &[u8], draw: &mut Draw) {
    let at = draw.below(input.len() + 1);
    input.splice(at..at, piece.iter().copied());
}

/// The words of a dictionary; lines that are none are left out.
#[must_use]
pub fn words(dictionary: &str) -> Vec<Vec<u8>> {
    dictionary.lines().filter_map(|line| unquote(line.trim())).collect()
}

fn unquote(line: &str) -> Option<Vec<u8>> {
    let mut rest = line.strip_prefix('"')?.strip_suffix('"')?.as_bytes();
    let mut word = Vec::new();
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'\\', [b'x', hex @ ..]) => {
                let digits = std::str::from_utf8(hex.get(..2)?).ok()?;
                word.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &hex[2..];
            }
            (b'\\', [escaped, after @ ..]) => {
                word.push(*escaped);
                rest = after;
            }
            _ => word.push(*first),
        }
    }
    Some(word)
}
