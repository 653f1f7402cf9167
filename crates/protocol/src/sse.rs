//! Server-sent events, split where they end and never copied when they arrive whole.
//!
//! The relay forwards only complete events: when an engine dies in the middle of one, the client has not seen half
//! a JSON object and the typed error event that follows stands on a clean line. Engines write one event per socket
//! write, so a frame almost always holds whole events and is passed on as the same bytes; only a rest that is split
//! over frames is copied, and that rest is bounded.
//!
//! Grammar: WHATWG HTML, 9.2.6: an empty line ends an event, `data:` lines are joined by LF, a line that starts with
//! `:` is a comment. Lines end in LF or CRLF; the standard's lone CR is not taken as an end (no engine writes it, and
//! a CR at the end of a frame would be ambiguous).

use bytes::{Bytes, BytesMut};
use std::borrow::Cow;
use thiserror::Error;

#[cfg(test)]
mod tests;

/// An event longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a server-sent event is longer than {0} bytes")]
pub struct EventTooLong(pub usize);

/// Collects frames and hands out the bytes of complete events.
#[derive(Debug)]
pub struct SseSplitter {
    rest: BytesMut,
    /// Bytes of `rest` that have been searched for an end already.
    searched: usize,
    limit_bytes: usize,
}

impl SseSplitter {
    /// `limit_bytes` bounds one event.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        SseSplitter { rest: BytesMut::new(), searched: 0, limit_bytes }
    }

    /// Takes a frame; returns the bytes of all events that are complete now (may be empty), ready to be forwarded.
    ///
    /// # Errors
    /// [`EventTooLong`] when an unfinished event exceeds the limit.
    pub fn feed(&mut self, frame: &Bytes) -> Result<Bytes, EventTooLong> {
        if self.rest.is_empty() {
            let end = end_of_last_event(frame, 0);
            if end < frame.len() {
                self.keep(&frame[end..])?;
            }
            return Ok(frame.slice(..end));
        }
        self.rest.extend_from_slice(frame);
        // An end may straddle the frames: look again at up to three bytes.
        let from = self.searched.saturating_sub(3);
        let end = end_of_last_event(&self.rest, from);
        if end == 0 {
            self.searched = self.rest.len();
            return if self.rest.len() > self.limit_bytes {
                Err(EventTooLong(self.limit_bytes))
            } else {
                Ok(Bytes::new())
            };
        }
        let complete = self.rest.split_to(end).freeze();
        self.searched = self.rest.len();
        if self.rest.len() > self.limit_bytes {
            return Err(EventTooLong(self.limit_bytes));
        }
        Ok(complete)
    }

    fn keep(&mut self, rest: &[u8]) -> Result<(), EventTooLong> {
        if rest.len() > self.limit_bytes {
            return Err(EventTooLong(self.limit_bytes));
        }
        self.rest.extend_from_slice(rest);
        self.searched = self.rest.len();
        Ok(())
    }

    /// Bytes of an event that has not ended yet.
    #[must_use]
    pub fn unfinished(&self) -> &[u8] {
        &self.rest
    }
}

/// Index just past the last empty line whose terminator lies at or after `from`; 0 if there is none.
fn end_of_last_event(bytes: &[u8], from: usize) -> usize {
    // Engines end every event with "\n\n", and a frame almost always ends with an event: one comparison.
    if bytes.ends_with(b"\n\n") {
        return bytes.len();
    }
    let mut at = bytes.len();
    while let Some(i) = memchr::memrchr(b'\n', &bytes[from..at]).map(|i| i + from) {
        let before = bytes[..i].strip_suffix(b"\r").unwrap_or(&bytes[..i]);
        if before.ends_with(b"\n") {
            return i + 1;
        }
        at = i;
    }
    0
}

/// Walks the `data` of each event in bytes made of complete events. Comments and other fields are passed over.
pub fn for_each_data<'a>(events: &'a [u8], mut visit: impl FnMut(Cow<'a, [u8]>)) {
    let mut data: Option<Cow<'a, [u8]>> = None;
    let mut rest = events;
    while !rest.is_empty() {
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        rest = &rest[(end + 1).min(rest.len())..];
        if line.is_empty() {
            if let Some(data) = data.take() {
                visit(data);
            }
            continue;
        }
        let Some(value) = line.strip_prefix(b"data:") else { continue };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        data = Some(match data.take() {
            None => Cow::Borrowed(value),
            Some(before) => {
                let mut joined = before.into_owned();
                joined.push(b'\n');
                joined.extend_from_slice(value);
                Cow::Owned(joined)
            }
        });
    }
    if let Some(data) = data {
        visit(data);
    }
}
