//! Where a long text without added tokens may be cut, so that a prompt that grows at its end is not tokenised anew.
//!
//! Between a line break and an ASCII letter, for byte-level tokenizers whose patterns are made of the alternatives below (those of
//! cl100k, o200k, Llama 3, Qwen, GLM and DeepSeek). Why that is certain, for a text `XY` where `X` ends with a line break and `Y`
//! begins with a letter:
//! - No alternative matches a line break with a letter behind it, so no match lies across the cut.
//! - What matches inside `X` is the same with and without `Y`: only `\s+(?!\S)` looks ahead, and white space that reaches the end of
//!   `X` ends in a line break, so `\s*[\r\n]+`, which comes earlier, has taken all of it.
//! - What matches in `Y` does not depend on `X`: nothing looks behind.
//! - An ASCII letter composes with nothing before it: NFC of `XY` is that of `X` and that of `Y`. Bytes and merges come after the split.
//!
//! GPT-2's pattern lacks `\s*[\r\n]+`, and SentencePiece's models merge across everything: their texts are not cut.

use serde_json::Value;
use std::ops::Range;

/// A part is at least this long before the next cut. Cuts depend on what is before them only, so a text that grows keeps its own.
pub(super) const PART_BYTES: usize = 4096;

/// Which alternatives a pattern may have.
const KNOWN: [&str; 18] = [
    // Contractions.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"'(?i:[sdmt]|ll|ve|re)",
    // Words, with one character before them that is no line break.
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    // Numbers.
    r"\p{N}",
    r"\p{N}{1,3}",
    // Signs, with the line breaks behind them.
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    BREAKS,
    AHEAD,
    r"\s+",
];
const BREAKS: &str = r"\s*[\r\n]+";
const AHEAD: &str = r"\s+(?!\S)";
/// Patterns that match neither line breaks nor ASCII letters: as splits before the deciding one.
const BESIDE: [&str; 2] = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+"];

/// Whether texts of this tokenizer may be cut, from its normalizer and pre-tokenizer as they stand in `tokenizer.json`.
pub(super) fn apply(normalizer: &Value, pre_tokenizer: &Value) -> bool {
    let plain = normalizer.is_null()
        || normalizer["type"] == "NFC"
        || normalizer["normalizers"].as_array().is_some_and(|list| list.iter().all(|one| one["type"] == "NFC"));
    let Some([splits @ .., bytes]) = pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) else { return false };
    let Some((last, before)) = splits.split_last() else { return false };
    let bytes = bytes["type"] == "ByteLevel" && bytes["add_prefix_space"] == false && bytes["use_regex"] == false;
    let pattern = |split: &Value| -> Option<String> {
        let isolated = split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] == false;
        split["pattern"]["Regex"].as_str().filter(|_| isolated).map(str::to_owned)
    };
    let beside = before.iter().all(|split| pattern(split).is_some_and(|pattern| BESIDE.contains(&pattern.as_str())));
    plain && bytes && beside && pattern(last).is_some_and(|pattern| proven(&pattern))
}

fn proven(pattern: &str) -> bool {
    let list = alternatives(pattern);
    let place = |wanted: &str| list.iter().position(|one| *one == wanted);
    let first = place(BREAKS).is_some_and(|breaks| place(AHEAD).is_none_or(|ahead| breaks < ahead));
    first && list.iter().all(|one| KNOWN.contains(one))
}

/// The alternatives of a pattern at its top.
fn alternatives(pattern: &str) -> Vec<&str> {
    let (mut list, mut from, mut depth, mut class, mut escaped) = (Vec::new(), 0, 0u32, false, false);
    for (at, byte) in pattern.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'[' => class = true,
            b']' => class = false,
            b'(' if !class => depth += 1,
            b')' if !class => depth = depth.saturating_sub(1),
            b'|' if !class && depth == 0 => {
                list.push(&pattern[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    list.push(&pattern[from..]);
    list
}

/// `text[range]` in parts of at least `part_bytes`, as far as there are cuts.
pub(super) fn parts(text: &str, range: Range<usize>, part_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let mut from = range.start;
    std::iter::from_fn(move || {
        if from >= range.end {
            return None;
        }
        let start = from;
        from = next_cut(text, start + part_bytes.max(1), range.end);
        Some(start..from)
    })
}

/// The first cut that is not before `at`, else `end`.
fn next_cut(text: &str, at: usize, end: usize) -> usize {
    let bytes = text.as_bytes();
    let mut from = at - 1;
    while from < end {
        let Some(found) = memchr::memchr(b'\n', &bytes[from..end]) else { break };
        let cut = from + found + 1;
        if cut < end && bytes[cut].is_ascii_alphabetic() {
            return cut;
        }
        from = cut;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cuts_lie_between_line_breaks_and_letters_and_stay_when_the_text_grows() {
        let text = "a\nb\n\nc\n d\n1\né\ne\n";
        let cut = |text: &str, part_bytes| -> Vec<String> {
            parts(text, 0..text.len(), part_bytes).map(|part| text[part].to_owned()).collect()
        };
        assert_eq!(cut(text, 1), ["a\n", "b\n\n", "c\n d\n1\né\n", "e\n"]);
        assert_eq!(cut(text, 3), ["a\nb\n\n", "c\n d\n1\né\n", "e\n"]);
        assert_eq!(cut(text, 100), [text]);
        assert_eq!(cut("", 1), [""; 0]);
        let longer = format!("{text}f\ng");
        assert_eq!(cut(&longer, 3)[..2], cut(text, 3)[..2]);
        assert!(parts(text, 2..5, 1).eq(std::iter::once(2..5)), "only inside the range");
    }

    #[test]
    fn only_patterns_whose_every_alternative_is_known() {
        let llama = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        assert_eq!(alternatives(llama).len(), 7);
        assert!(proven(llama));
        // GPT-2's; another order; something unknown.
        assert!(!proven(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"));
        assert!(!proven(&llama.replace(r"\s*[\r\n]+|\s+(?!\S)", r"\s+(?!\S)|\s*[\r\n]+")));
        assert!(!proven(&format!("{llama}|x")));
        let pre = |pattern: &str, last: Value| {
            let split =
                json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
            json!({"type": "Sequence", "pretokenizers": [split, last]})
        };
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        assert!(apply(&Value::Null, &pre(llama, bytes.clone())));
        assert!(apply(&json!({"type": "NFC"}), &pre(llama, bytes.clone())));
        assert!(!apply(&json!({"type": "Lowercase"}), &pre(llama, bytes.clone())));
        let spaced = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false});
        assert!(!apply(&Value::Null, &pre(llama, spaced)));
        assert!(!apply(&Value::Null, &bytes));
        assert!(!apply(&Value::Null, &Value::Null));
    }
}
