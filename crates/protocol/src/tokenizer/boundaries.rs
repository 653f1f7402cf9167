//! Where a tokenizer cuts a text for certain, so that what lies between can be tokenised alone.
//!
//! `tokenizers` first takes the added tokens (`<|im_end|>` and the like) out of a text, and from there on works on each piece
//! between them by itself: normalizer, pre-tokenizer and model never see two pieces together. So the ids of a text are those of
//! its pieces in order, provided that the pieces are the very ones that the crate makes. This module makes them by the crate's
//! own rules: leftmost-longest matches, tokens that swallow the white space beside them, a second search for tokens that are
//! compared after normalisation. Three things are no function of a piece alone, and are answered for here:
//! - Metaspace with `prepend_scheme: first` puts its space before a piece only at the start of the text: other pieces are
//!   tokenised behind an added token, whose id is taken off again.
//! - A `single_word` token looks at its neighbours: a text that has one is not cut.
//! - What the post-processor puts around a text (`<bos>`) is learnt from two texts at the start.
//!
//! Where any of this cannot be shown of a tokenizer, [`Whole`] says why, and texts are tokenised as a whole.

use super::cuts;
use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;
use std::ops::Range;
use tokenizers::AddedToken;

/// Why a text is not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Whole {
    /// The model draws lots: no two encodings need to be alike.
    Random,
    /// A part of the tokenizer that is not known here.
    Unknown,
    /// The post-processor does more than to put ids around a text.
    PostProcessor,
    /// Pieces at the start are treated in another way, and no added token is fit to stand before the others.
    Position,
    /// The text has a token that must be a word of its own.
    SingleWord,
}

impl Whole {
    /// All of them, for metrics.
    pub const ALL: [Whole; 5] =
        [Whole::Random, Whole::Unknown, Whole::PostProcessor, Whole::Position, Whole::SingleWord];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Whole::Random => "random_model",
            Whole::Unknown => "unknown_part",
            Whole::PostProcessor => "post_processor",
            Whole::Position => "position",
            Whole::SingleWord => "single_word_token",
        }
    }
}

/// A part of a text: a token that stands for itself, or a piece for the tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Token(u32),
    Piece(Range<usize>),
}

/// The rules of one tokenizer.
#[derive(Debug)]
pub(super) struct Boundaries {
    /// Tokens searched for in the text as it is.
    plain: Option<Search>,
    /// Tokens compared after normalisation, where normalising changes nothing; else they stay inside their piece.
    normalized: Option<Search>,
    /// What goes before a piece that is not at the start; `None` where it makes no difference.
    pub(super) stand_in: Option<StandIn>,
    /// Whether long pieces may be cut further.
    cuts: bool,
    /// What the post-processor puts around a text.
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(super) struct StandIn {
    pub(super) id: u32,
    pub(super) text: String,
}

#[derive(Debug)]
struct Search {
    automaton: AhoCorasick,
    tokens: Vec<(u32, AddedToken)>,
}

impl Boundaries {
    /// # Errors
    /// Why no text may be cut for this tokenizer.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Result<Self, Whole> {
        let json = |part: serde_json::Result<Value>| part.map_err(|_| Whole::Unknown);
        let model = tokenizer.get_model();
        if draws_lots(model) {
            return Err(Whole::Random);
        }
        let pre_tokenizer = json(serde_json::to_value(tokenizer.get_pre_tokenizer()))?;
        let normalizer = json(serde_json::to_value(tokenizer.get_normalizer()))?;
        let post_processor = json(serde_json::to_value(tokenizer.get_post_processor()))?;
        let mut positional = false;
        all_known(&pre_tokenizer, "pretokenizers", &PRE_TOKENIZERS, &mut |part| {
            positional |= part["type"] == "Metaspace" && part["prepend_scheme"] == "first";
            true
        })?;
        all_known(&normalizer, "normalizers", &NORMALIZERS, &mut |_| true)?;
        all_known(&post_processor, "processors", &POST_PROCESSORS, &mut once)?;
        let (before, after) = around(tokenizer)?;
        let mut tokens: Vec<(u32, AddedToken)> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        tokens.sort_by_key(|(id, _)| *id);
        let (normalized, plain): (Vec<_>, Vec<_>) = tokens.into_iter().partition(|(_, token)| token.normalized);
        let stand_in = if positional { Some(stand_in(&plain).ok_or(Whole::Position)?) } else { None };
        // A token that is compared after normalisation may lie anywhere in a piece that is not searched for it here.
        let unchanged = normalizer.is_null() || normalizer["normalizers"].as_array().is_some_and(Vec::is_empty);
        let cuts = (unchanged || normalized.is_empty()) && cuts::apply(&normalizer, &pre_tokenizer);
        Ok(Boundaries {
            plain: Search::of(plain)?,
            normalized: if unchanged { Search::of(normalized)? } else { None },
            stand_in,
            cuts,
            before,
            after,
        })
    }

    /// The parts of a text, which it is exactly when pieces are tokenised alone and all ids put in a row. Long pieces are cut into
    /// parts of `part_bytes` or more, where that is certain too.
    pub(super) fn parts(&self, text: &str, part_bytes: usize) -> Result<Vec<Part>, Whole> {
        let parts = self.between_tokens(text)?;
        if !self.cuts {
            return Ok(parts);
        }
        let mut finer = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Part::Piece(range) => finer.extend(cuts::parts(text, range, part_bytes).map(Part::Piece)),
                token => finer.push(token),
            }
        }
        Ok(finer)
    }

    fn between_tokens(&self, text: &str) -> Result<Vec<Part>, Whole> {
        let mut parts = Vec::new();
        cut(self.plain.as_ref(), text, 0..text.len(), &mut parts)?;
        if self.normalized.is_none() {
            return Ok(parts);
        }
        let mut finer = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Part::Piece(piece) => {
                    let length = finer.len();
                    // A token that looks at its neighbours sees nothing outside its piece: the piece remains whole.
                    if cut(self.normalized.as_ref(), text, piece.clone(), &mut finer).is_err() {
                        finer.truncate(length);
                        finer.push(Part::Piece(piece));
                    }
                }
                token => finer.push(token),
            }
        }
        Ok(finer)
    }
}

/// Cuts `text[range]`, seen alone, as `AddedVocabulary` does.
fn cut(search: Option<&Search>, text: &str, range: Range<usize>, parts: &mut Vec<Part>) -> Result<(), Whole> {
    let (from, text) = (range.start, &text[range]);
    let mut done = 0;
    for found in search.iter().flat_map(|search| search.automaton.find_iter(text)) {
        let Some((id, token)) = search.and_then(|search| search.tokens.get(found.pattern().as_usize())) else {
            continue;
        };
        if token.single_word {
            return Err(Whole::SingleWord);
        }
        let (mut start, mut end) = (found.start(), found.end());
        if token.lstrip {
            start = text[..start].trim_end().len().max(done);
        }
        if token.rstrip {
            end = text.len() - text[end..].trim_start().len();
        }
        if done < start {
            parts.push(Part::Piece(from + done..from + start));
        }
        parts.push(Part::Token(*id));
        done = end;
    }
    if done != text.len() {
        parts.push(Part::Piece(from + done..from + text.len()));
    }
    Ok(())
}

impl Search {
    fn of(tokens: Vec<(u32, AddedToken)>) -> Result<Option<Self>, Whole> {
        if tokens.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(_, token)| token.content.as_str()))
            .map_err(|_| Whole::Unknown)?;
        Ok(Some(Search { automaton, tokens }))
    }
}

const PRE_TOKENIZERS: [&str; 11] = [
    "BertPreTokenizer",
    "ByteLevel",
    "CharDelimiterSplit",
    "Metaspace",
    "Whitespace",
    "Split",
    "Punctuation",
    "WhitespaceSplit",
    "Digits",
    "UnicodeScripts",
    "FixedLength",
];
const NORMALIZERS: [&str; 13] = [
    "BertNormalizer",
    "Strip",
    "StripAccents",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Lowercase",
    "Nmt",
    "Precompiled",
    "Replace",
    "Prepend",
    "ByteLevel",
];
const POST_PROCESSORS: [&str; 4] = ["ByteLevel", "BertProcessing", "RobertaProcessing", "TemplateProcessing"];

/// Whether a component and those inside it are of the kinds whose code has been read: each works on one piece alone.
fn all_known(part: &Value, inner: &str, known: &[&str], look: &mut impl FnMut(&Value) -> bool) -> Result<(), Whole> {
    if part.is_null() {
        return Ok(());
    }
    if part["type"] == "Sequence" {
        let list = part[inner].as_array().ok_or(Whole::Unknown)?;
        return list.iter().try_for_each(|part| all_known(part, inner, known, look));
    }
    let name = part["type"].as_str().ok_or(Whole::Unknown)?;
    match known.contains(&name) {
        false => Err(Whole::Unknown),
        true if look(part) => Ok(()),
        true => Err(Whole::PostProcessor),
    }
}

/// A post-processor that has the text once.
fn once(part: &Value) -> bool {
    part["type"] != "TemplateProcessing"
        || part["single"]
            .as_array()
            .is_some_and(|list| list.iter().filter(|piece| piece.get("Sequence").is_some()).count() == 1)
}

/// Ids before and after every text, with `add_special_tokens`.
fn around(tokenizer: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), Whole> {
    let encode = |text: &str, add| {
        let encoding = tokenizer.encode_fast(text, add).map_err(|_| Whole::PostProcessor)?;
        Ok((encoding.get_ids().to_vec(), encoding.get_special_tokens_mask().to_vec()))
    };
    let probes = ["Plimsoll line 7\n", "a", ""];
    let mut encoded = Vec::new();
    for probe in probes {
        encoded.push((encode(probe, false)?.0, encode(probe, true)?));
    }
    // One whose own ids can be told from those around it.
    let (bare, (dressed, mask)) = encoded.iter().find(|(bare, _)| !bare.is_empty()).ok_or(Whole::PostProcessor)?;
    let before = mask.iter().take_while(|special| **special == 1).count();
    let inner = dressed.get(before..before + bare.len()).ok_or(Whole::PostProcessor)?;
    let (before, after) = (dressed[..before].to_vec(), dressed[before + inner.len()..].to_vec());
    let same = encoded.iter().all(|(bare, (dressed, _))| [&before[..], bare, &after].concat() == *dressed);
    if same { Ok((before, after)) } else { Err(Whole::PostProcessor) }
}

/// An added token that can stand before any piece and take nothing of it: it swallows no white space, and no other token
/// begins with it.
fn stand_in(plain: &[(u32, AddedToken)]) -> Option<StandIn> {
    let alone = |token: &AddedToken| {
        !token.lstrip
            && !token.rstrip
            && !token.single_word
            && plain
                .iter()
                .all(|(_, other)| other.content == token.content || !other.content.starts_with(&token.content))
    };
    let (id, token) = plain.iter().find(|(_, token)| alone(token))?;
    Some(StandIn { id: *id, text: token.content.clone() })
}

fn draws_lots(model: &tokenizers::ModelWrapper) -> bool {
    use tokenizers::ModelWrapper;
    match model {
        ModelWrapper::BPE(bpe) => bpe.dropout.is_some_and(|dropout| dropout != 0.0),
        ModelWrapper::Unigram(unigram) => {
            unigram.alpha.is_some_and(|alpha| alpha != 0.0) || unigram.nbest_size.is_some()
        }
        ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => false,
    }
}
