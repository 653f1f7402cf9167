//! The text of an answer from its token ids, as an engine would show it: whole characters, without what is not to be seen, and
//! never beyond a stop string.
//!
//! Engines look for stop strings after every token, take the first of the list that is there, and cut where it begins. What may
//! still become one is held back.

use crate::tokenizer::{Detokenizer, Tokenizer};

#[cfg(test)]
mod tests;

/// So many tokens of the prompt are put before the answer's, as SGLang and vLLM do: a first word keeps its space.
const BEFORE: usize = 5;

/// Text that grows.
#[derive(Clone, Debug)]
pub struct OutputText {
    stream: Detokenizer,
    /// Where the answer begins in the stream's text.
    start: usize,
    stops: Vec<String>,
    /// Bytes handed out.
    shown: usize,
    stopped: Option<Stopped>,
    /// Nothing more comes: up to here there is text.
    end: Option<usize>,
}

/// A stop string has been seen.
#[derive(Clone, Copy, Debug)]
struct Stopped {
    /// Where the text is cut.
    at: usize,
    /// Where the earliest of those seen at once begins.
    earliest: usize,
    /// None ended before here.
    searched: usize,
}

impl OutputText {
    /// The answer to `prompt`. Empty stop strings are none.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, prompt: &[u32], skip_special_tokens: bool, stops: &[String]) -> Self {
        let mut stream = tokenizer.detokenizer(skip_special_tokens);
        prompt[prompt.len().saturating_sub(BEFORE)..].iter().for_each(|id| stream.push(*id));
        let start = stream.text().len();
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        OutputText { stream, start, stops, shown: 0, stopped: None, end: None }
    }

    /// Takes the next token. After a stop string tokens are nothing.
    pub fn push(&mut self, id: u32) {
        if self.stopped.is_none() && self.end.is_none() {
            let before = self.text().len();
            self.stream.push(id);
            self.look(before);
        }
    }

    /// The answer is over, at `matched` where the engine says which stop string it was.
    pub fn finish(&mut self, matched: Option<&str>) {
        if self.stopped.is_none() {
            let before = self.text().len();
            self.stream.finish();
            self.look(before);
        }
        let text = self.text();
        let named = self.stopped.zip(matched).and_then(|(stopped, matched)| {
            let from = floor(text, (stopped.searched + 1).saturating_sub(matched.len()));
            text[from..].find(matched).map(|at| from + at)
        });
        self.end = Some(named.or(self.stopped.map(|stopped| stopped.at)).unwrap_or(text.len()));
    }

    /// A stop string has been seen.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// What can be shown and was not handed out before.
    pub fn take(&mut self) -> &str {
        let from = self.shown;
        self.shown = self.visible().max(from);
        &self.text()[from..self.shown]
    }

    fn text(&self) -> &str {
        &self.stream.text()[self.start..]
    }

    fn visible(&self) -> usize {
        match (self.end, self.stopped) {
            (Some(end), _) => end,
            // The engine has the word about which of several it was.
            (None, Some(stopped)) => stopped.earliest,
            (None, None) => self.text().len() - held_back(self.text(), &self.stops),
        }
    }

    /// Looks for stop strings that end behind `before`.
    fn look(&mut self, before: usize) {
        let text = self.text();
        let found = |stop: &String| {
            let from = floor(text, (before + 1).saturating_sub(stop.len()));
            text[from..].find(stop.as_str()).map(|at| from + at)
        };
        let mut places = self.stops.iter().filter_map(found);
        if let Some(at) = places.next() {
            let earliest = places.min().map_or(at, |other| other.min(at));
            self.stopped = Some(Stopped { at, earliest, searched: before });
        }
    }
}

fn floor(text: &str, at: usize) -> usize {
    text.floor_char_boundary(at)
}

/// Bytes at the end of the text that may turn out to be the start of a stop string.
fn held_back(text: &str, stops: &[String]) -> usize {
    let longest = |stop: &String| {
        (1..stop.len().min(text.len() + 1))
            .rev()
            .find(|length| {
                let at = text.len() - length;
                text.is_char_boundary(at) && stop.starts_with(&text[at..])
            })
            .unwrap_or(0)
    };
    stops.iter().map(longest).max().unwrap_or(0)
}
