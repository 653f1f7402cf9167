//! A request's output from its first token on, for a reader that may lose its connection and come again.
//!
//! A migrated request is read by somebody who has read its start elsewhere and says where to go on; the answer to its
//! take-over may be lost and asked for again. So nothing is forgotten when it is read; the request's own output bounds it.

use super::Update;
use crate::request::Finish;
use crate::sampling::logprobs::TokenLogprobs;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Kept {
    ids: Vec<u32>,
    text: String,
    /// Bytes of the text that were given out with each token.
    ends: Vec<usize>,
    /// With the number of their token.
    logprobs: Vec<(usize, TokenLogprobs)>,
    prompt_logprobs: Vec<TokenLogprobs>,
    cached_tokens: usize,
    host_tokens: usize,
    retractions: u32,
    finish: Option<Finish>,
    /// Of the reader that counts: the last one that came.
    reader: u64,
    /// Since when nobody reads.
    unread_since: Option<Instant>,
    linger: Duration,
}

/// How far one reader is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(super) reader: u64,
    tokens: usize,
    bytes: usize,
}

impl Kept {
    pub(super) fn new(now: Instant, linger: Duration) -> Self {
        Kept {
            ids: Vec::new(),
            text: String::new(),
            ends: Vec::new(),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            cached_tokens: 0,
            host_tokens: 0,
            retractions: 0,
            finish: None,
            reader: 0,
            unread_since: Some(now),
            linger,
        }
    }

    /// If nobody reads, counts from now on.
    pub(super) fn begin_lingering(&mut self, now: Instant) {
        self.unread_since = self.unread_since.map(|_| now);
    }

    /// Adds what one step brings. False after the finish.
    pub(super) fn add(&mut self, change: impl FnOnce(&mut Update)) -> bool {
        if self.finish.is_some() {
            return false;
        }
        let mut update = Update {
            cached_tokens: self.cached_tokens,
            host_tokens: self.host_tokens,
            retractions: self.retractions,
            ..Update::default()
        };
        change(&mut update);
        self.logprobs.extend((self.ids.len()..).zip(update.logprobs));
        self.text.push_str(&update.text);
        self.ends.resize(self.ids.len() + update.ids.len(), self.text.len());
        self.ids.append(&mut update.ids);
        self.prompt_logprobs.append(&mut update.prompt_logprobs);
        (self.cached_tokens, self.host_tokens) = (update.cached_tokens, update.host_tokens);
        (self.retractions, self.finish) = (update.retractions, update.finish);
        true
    }

    /// A reader that has the first `tokens` tokens; the one before it reads no more. Also what it is taken to have.
    pub(super) fn attach(&mut self, tokens: usize) -> (Place, Update) {
        self.reader += 1;
        self.unread_since = None;
        let tokens = tokens.min(self.ids.len());
        let bytes = tokens.checked_sub(1).map_or(0, |last| self.ends[last]);
        let had = Update { ids: self.ids[..tokens].to_vec(), text: self.text[..bytes].to_owned(), ..Update::default() };
        (Place { reader: self.reader, tokens, bytes }, had)
    }

    pub(super) fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// What is new since `place`, which moves on. `Err` when another reader has come.
    pub(super) fn read(&self, place: &mut Place) -> Result<Option<Update>, ()> {
        if place.reader != self.reader {
            return Err(());
        }
        if place.tokens == self.ids.len() && self.finish.is_none() {
            return Ok(None);
        }
        let from = self.logprobs.partition_point(|(token, _)| *token < place.tokens);
        let update = Update {
            ids: self.ids[place.tokens..].to_vec(),
            text: self.text[place.bytes..].to_owned(),
            logprobs: self.logprobs[from..].iter().map(|(_, entry)| entry.clone()).collect(),
            prompt_logprobs: if place.tokens == 0 { self.prompt_logprobs.clone() } else { Vec::new() },
            cached_tokens: self.cached_tokens,
            host_tokens: self.host_tokens,
            retractions: self.retractions,
            finish: self.finish.clone(),
            embedding: None,
        };
        (place.tokens, place.bytes) = (self.ids.len(), self.text.len());
        Ok(Some(update))
    }

    pub(super) fn leave(&mut self, reader: u64, now: Instant) {
        if reader == self.reader {
            self.unread_since = Some(now);
        }
    }

    /// Nobody has read for longer than a reader may need to come again.
    pub(super) fn is_left(&self) -> bool {
        self.unread_since.is_some_and(|since| since.elapsed() >= self.linger)
    }
}
