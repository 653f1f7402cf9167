//! Token ids of a text that has mostly been seen before.

use super::boundaries::{Boundaries, Part};
use super::{Tokenizer, TokenizerError, Whole};
use crate::tokenizer::segment_cache::{Keyer, SegmentCache};

/// Kinds of pieces: at the start of a text, and elsewhere where that makes a difference.
const AT_START: u8 = 0;
const ELSEWHERE: u8 = 1;

/// Token ids, and what they cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    pub ids: Vec<u32>,
    /// Why the text was tokenised whole, where it was.
    pub whole: Option<Whole>,
    /// Bytes of text whose ids were known: pieces seen before, and added tokens.
    pub known_bytes: usize,
    pub text_bytes: usize,
}

impl Tokenizer {
    /// As [`Tokenizer::encode`], to the id, with what `owner` has sent before taken from `cache`.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`], for a text that a pattern cannot be matched on within its limits.
    pub fn encode_known(
        &self,
        cache: &SegmentCache,
        owner: &str,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Encoded, TokenizerError> {
        let cut = self.0.boundaries.as_ref().map_err(|whole| *whole);
        match cut.and_then(|boundaries| Ok((boundaries, boundaries.parts(text, cache.part_bytes())?))) {
            Ok((boundaries, parts)) => {
                let keyer = cache.keyer(&self.0.fingerprint, owner);
                let mut encoded = Encoded { text_bytes: text.len(), known_bytes: text.len(), ..Encoded::default() };
                // Four bytes make a token, mostly.
                encoded.ids.reserve(text.len() / 3);
                if add_special_tokens {
                    encoded.ids.extend_from_slice(&boundaries.before);
                }
                for part in parts {
                    match part {
                        Part::Token(id) => encoded.ids.push(id),
                        Part::Piece(range) => {
                            let at_start = range.start == 0;
                            self.piece(boundaries, cache, &keyer, &text[range], at_start, &mut encoded)?;
                        }
                    }
                }
                if add_special_tokens {
                    encoded.ids.extend_from_slice(&boundaries.after);
                }
                Ok(encoded)
            }
            Err(whole) => {
                let ids = self.encode(text, add_special_tokens)?;
                Ok(Encoded { ids, whole: Some(whole), known_bytes: 0, text_bytes: text.len() })
            }
        }
    }

    fn piece(
        &self,
        boundaries: &Boundaries,
        cache: &SegmentCache,
        keyer: &Keyer,
        piece: &str,
        at_start: bool,
        encoded: &mut Encoded,
    ) -> Result<(), TokenizerError> {
        let stand_in = boundaries.stand_in.as_ref().filter(|_| !at_start);
        let key = keyer.key(if stand_in.is_some() { ELSEWHERE } else { AT_START }, piece.as_bytes());
        if let Some(ids) = cache.get(key) {
            encoded.ids.extend_from_slice(&ids);
            return Ok(());
        }
        encoded.known_bytes -= piece.len();
        let before = encoded.ids.len();
        match stand_in {
            None => encoded.ids.extend(self.encode(piece, false)?),
            Some(stand_in) => {
                let ids = self.encode(&[&stand_in.text, piece].concat(), false)?;
                let own = ids.split_first().filter(|(first, _)| **first == stand_in.id);
                encoded.ids.extend_from_slice(own.ok_or(TokenizerError::Encode)?.1);
            }
        }
        cache.put(key, &encoded.ids[before..]);
        Ok(())
    }
}
