//! Streaming detokenisation: text grows token by token and never holds half a UTF-8 sequence.
//!
//! Bytes of an unfinished character wait here until it is complete (or cannot become one any more, then U+FFFD).

use super::{Piece, piece};

#[derive(Clone, Debug)]
pub struct Stream {
    text: String,
    /// At most three bytes of an unfinished character.
    pending: Vec<u8>,
    skip_special: bool,
}

impl Stream {
    #[must_use]
    pub fn new(skip_special: bool) -> Self {
        Stream { text: String::new(), pending: Vec::new(), skip_special }
    }

    pub fn push(&mut self, id: u32) {
        match piece(id) {
            Some(Piece::Byte(byte)) => {
                self.pending.push(byte);
                self.drain();
            }
            Some(Piece::Word(word)) => {
                self.finish();
                self.text.push(' ');
                self.text.push_str(word);
            }
            Some(Piece::Special(text)) => {
                self.finish();
                if !self.skip_special {
                    self.text.push_str(text);
                }
            }
            None => {}
        }
    }

    /// Nothing more will complete the waiting bytes.
    pub fn finish(&mut self) {
        if !self.pending.is_empty() {
            self.text.push_str(&String::from_utf8_lossy(&self.pending));
            self.pending.clear();
        }
    }

    /// All text so far, whole characters only.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Cuts the text, for stop strings. `length_bytes` beyond the text or inside a character changes nothing.
    pub fn truncate(&mut self, length_bytes: usize) {
        if self.text.is_char_boundary(length_bytes) {
            self.text.truncate(length_bytes);
            self.pending.clear();
        }
    }

    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    fn drain(&mut self) {
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    self.pending.clear();
                    return;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    self.text.push_str(&String::from_utf8_lossy(&self.pending[..valid]));
                    let Some(bad) = error.error_len() else {
                        self.pending.drain(..valid);
                        return;
                    };
                    self.text.push(char::REPLACEMENT_CHARACTER);
                    self.pending.drain(..valid + bad);
                }
            }
        }
    }
}
