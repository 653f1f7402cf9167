//! Text that grows token by token, never shows half a character, and is in the end what decoding all at once gives.
//!
//! A token costs its own bytes. What may still change is held back: an unfinished character, and (byte fallback) a run of
//! byte tokens, which becomes U+FFFD as a whole when it turns out not to be UTF-8. Such a run is held for at most
//! [`MOST_HELD_BYTES`]: beyond it, what is valid is shown, and only there can a later wrong byte make a difference to
//! decoding all at once.

use super::Tokenizer;
use super::pieces::{Kind, Pieces};
use std::sync::Arc;

/// 32 characters of three bytes: a screenful of rare characters does not wait for its end.
pub const MOST_HELD_BYTES: usize = 96;
/// Tokens that are decoded again for each new one where the decoder is an unusual one.
const WINDOW_TOKENS: usize = 8;

#[derive(Clone, Debug)]
pub struct Detokenizer {
    pieces: Arc<Pieces>,
    /// For unusual decoders.
    tokenizer: Option<Tokenizer>,
    skip_special: bool,
    text: String,
    /// Bytes of an unfinished character or run.
    held: Vec<u8>,
    /// Characters still to be taken off the start of the text.
    strip: usize,
    /// For unusual decoders: all tokens, and how many of them `text` shows.
    ids: Vec<u32>,
    shown: usize,
}

impl Detokenizer {
    /// Over pieces of one's own ([`Pieces::byte_level`]).
    #[must_use]
    pub fn over(pieces: Arc<Pieces>, skip_special: bool) -> Self {
        Self::new(pieces, None, skip_special)
    }

    pub(super) fn new(pieces: Arc<Pieces>, tokenizer: Option<Tokenizer>, skip_special: bool) -> Self {
        let strip = match pieces.kind() {
            Kind::Fallback { strip: Some((_, count)) } => count,
            _ => 0,
        };
        Detokenizer {
            pieces,
            tokenizer,
            skip_special,
            text: String::new(),
            held: Vec::new(),
            strip,
            ids: Vec::new(),
            shown: 0,
        }
    }

    /// Takes the next token. Ids outside the vocabulary are nothing.
    pub fn push(&mut self, id: u32) {
        let flags = self.pieces.flags(id);
        if !flags.known || (flags.special && self.skip_special) {
            return;
        }
        let pieces = Arc::clone(&self.pieces);
        match pieces.kind() {
            Kind::ByteLevel => {
                self.held.extend_from_slice(pieces.raw(id));
                show_utf8(&mut self.held, &mut self.text);
            }
            Kind::Fallback { .. } if flags.byte => {
                self.held.extend_from_slice(pieces.raw(id));
                if self.held.len() > MOST_HELD_BYTES {
                    self.show_long_run();
                }
            }
            Kind::Fallback { .. } => {
                self.end_run();
                // Pieces are texts.
                self.show(&String::from_utf8_lossy(pieces.raw(id)));
            }
            Kind::Other => {
                self.ids.push(id);
                self.show_window();
            }
        }
    }

    /// Nothing more comes: what was held is shown.
    pub fn finish(&mut self) {
        match self.pieces.kind() {
            Kind::ByteLevel => {
                self.text.push_str(&String::from_utf8_lossy(&self.held));
                self.held.clear();
            }
            Kind::Fallback { .. } => self.end_run(),
            Kind::Other => {
                let whole = self.decode(0);
                if let Some(rest) = whole.strip_prefix(self.text.as_str()) {
                    self.text.push_str(rest);
                }
                self.shown = self.ids.len();
            }
        }
    }

    /// All text so far, whole characters only.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    /// Cuts the text, for stop strings; nothing can be added well after that. A length beyond the text or inside a
    /// character changes nothing.
    pub fn truncate(&mut self, length_bytes: usize) {
        if self.text.is_char_boundary(length_bytes) {
            self.text.truncate(length_bytes);
            self.held.clear();
            self.ids.clear();
            self.shown = 0;
        }
    }

    fn show(&mut self, text: &str) {
        let Kind::Fallback { strip: Some((letter, _)) } = self.pieces.kind() else { return self.text.push_str(text) };
        let mut rest = text;
        while self.strip > 0 && !rest.is_empty() {
            let Some(after) = rest.strip_prefix(letter) else {
                self.strip = 0;
                break;
            };
            self.strip -= 1;
            rest = after;
        }
        self.text.push_str(rest);
    }

    /// The run of byte tokens is complete.
    fn end_run(&mut self) {
        if self.held.is_empty() {
            return;
        }
        match String::from_utf8(std::mem::take(&mut self.held)) {
            Ok(text) => self.show(&text),
            Err(error) => self.show(&"\u{fffd}".repeat(error.as_bytes().len())),
        }
    }

    fn show_long_run(&mut self) {
        let mut text = String::new();
        show_utf8(&mut self.held, &mut text);
        self.show(&text);
    }

    fn decode(&self, from: usize) -> String {
        let Some(tokenizer) = &self.tokenizer else { return String::new() };
        tokenizer.decode_whole(&self.ids[from..], self.skip_special)
    }

    /// Shows what the newest tokens add to the text of the few before them.
    fn show_window(&mut self) {
        let from = self.shown.saturating_sub(WINDOW_TOKENS);
        let Some(tokenizer) = &self.tokenizer else { return };
        let before = tokenizer.decode_whole(&self.ids[from..self.shown], self.skip_special);
        let after = self.decode(from);
        let grown = after.strip_prefix(before.as_str()).filter(|news| !news.ends_with('\u{fffd}'));
        if let Some(news) = grown.filter(|news| !news.is_empty()) {
            self.text.push_str(news);
            self.shown = self.ids.len();
        } else if self.ids.len() - self.shown > WINDOW_TOKENS {
            // Nothing to be seen of so many: left to `finish`, and the window goes on.
            self.shown = self.ids.len();
        }
    }
}

/// Moves what is decided from bytes to text: whole characters, and U+FFFD for what cannot become one, as
/// `String::from_utf8_lossy` would.
fn show_utf8(bytes: &mut Vec<u8>, text: &mut String) {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(valid) => {
                text.push_str(valid);
                bytes.clear();
                return;
            }
            Err(error) => {
                let valid = error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[..valid]));
                let Some(bad) = error.error_len() else {
                    bytes.drain(..valid);
                    return;
                };
                text.push(char::REPLACEMENT_CHARACTER);
                bytes.drain(..valid + bad);
            }
        }
    }
}
