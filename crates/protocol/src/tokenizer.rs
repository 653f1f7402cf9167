//! Hugging Face tokenizers: `tokenizer.json` of a model folder.
//!
//! Encoding is the `tokenizers` crate's, which is what the engines run, so that ids are theirs. Decoding token by token is
//! our own ([`detokenize`]): the crate's decodes a growing window, and says nothing about what a stream adds up to.

use boundaries::Boundaries;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod boundaries;
mod cuts;
pub mod detokenize;
pub mod folder;
mod pieces;
pub mod segment_cache;
mod segments;
#[cfg(test)]
mod tests;

pub use boundaries::Whole;
pub use detokenize::Detokenizer;
pub use folder::{FolderError, ModelText};
pub use pieces::Pieces;
pub use segment_cache::SegmentCache;
pub use segments::Encoded;

/// Why a tokenizer cannot be had, or a text not be tokenised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    #[error("{}: cannot be read: {what}", file.display())]
    Read { file: PathBuf, what: String },
    #[error("{}: is not a tokenizer: {what}", file.display())]
    Parse { file: PathBuf, what: String },
    /// A pre-tokenizer's pattern gave up on this text.
    #[error("the text cannot be tokenised")]
    Encode,
}

/// A tokenizer. Cheap to clone; shared by all threads.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    tokenizer: tokenizers::Tokenizer,
    pieces: Arc<Pieces>,
    specials: BTreeMap<u32, String>,
    boundaries: Result<Boundaries, Whole>,
    /// Of the file: equal files make equal ids.
    fingerprint: [u8; 32],
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_tokens", &self.vocab_tokens()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`. Takes as long as reading it: a second for a large vocabulary.
    ///
    /// # Errors
    /// Names the file.
    pub fn open(file: &Path) -> Result<Self, TokenizerError> {
        let bytes = std::fs::read(file)
            .map_err(|error| TokenizerError::Read { file: file.to_owned(), what: error.to_string() })?;
        Self::from_bytes(&bytes).map_err(|what| TokenizerError::Parse { file: file.to_owned(), what })
    }

    /// From the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        // Left in a file by whoever trained; engines do neither for prompts.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        let added = tokenizer.get_added_tokens_decoder();
        let specials = added.into_iter().filter(|(_, token)| token.special).map(|(id, token)| (id, token.content));
        let specials: BTreeMap<u32, String> = specials.collect();
        let pieces = Arc::new(Pieces::of(&tokenizer, &specials)?);
        let boundaries = Boundaries::of(&tokenizer);
        let fingerprint = Sha256::digest(bytes).into();
        Ok(Tokenizer(Arc::new(Inner { tokenizer, pieces, specials, boundaries, fingerprint })))
    }

    /// Token ids of a text. `add_special_tokens` puts what the tokenizer adds around every text, such as a first
    /// `<bos>`: for plain prompts, not for rendered conversations.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`], for a text that a pattern cannot be matched on within its limits.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.0.tokenizer.encode_fast(text, add_special_tokens).map_err(|_| TokenizerError::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Why no text is cut for this tokenizer, where that is so: [`Tokenizer::encode_known`] then costs what `encode` does.
    #[must_use]
    pub fn never_cut(&self) -> Option<Whole> {
        self.0.boundaries.as_ref().err().copied()
    }

    /// Text of token ids; unknown ids are nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let mut stream = self.detokenizer(skip_special_tokens);
        ids.iter().for_each(|id| stream.push(*id));
        stream.finish();
        stream.into_text()
    }

    /// Decodes token by token.
    #[must_use]
    pub fn detokenizer(&self, skip_special_tokens: bool) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.0.pieces), Some(self.clone()), skip_special_tokens)
    }

    /// What `tokenizers` itself makes of ids.
    pub(crate) fn decode_whole(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        if ids.is_empty() {
            return String::new();
        }
        self.0.tokenizer.decode(ids, skip_special_tokens).unwrap_or_default()
    }

    /// The largest id and one more.
    #[must_use]
    pub fn vocab_tokens(&self) -> usize {
        self.0.pieces.len()
    }

    /// The id of a token by its spelling in the vocabulary, such as `<|im_end|>`.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.0.tokenizer.token_to_id(token)
    }

    /// Special tokens with their text, which no ordinary text crosses: a tokenizer cuts there.
    #[must_use]
    pub fn specials(&self) -> &BTreeMap<u32, String> {
        &self.0.specials
    }

    /// The text of one token alone; half a character becomes U+FFFD.
    #[must_use]
    pub fn token_text(&self, id: u32) -> String {
        self.decode(&[id], false)
    }

    /// The bytes that a token stands for; nothing for unknown ids.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        match self.0.pieces.bytes(id) {
            Some(bytes) => bytes.to_vec(),
            None => self.token_text(id).into_bytes(),
        }
    }
}
