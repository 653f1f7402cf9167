//! Reads one answer and verifies it while it arrives: status 200, framing complete, every token there once and in
//! order, a finish reason, `[DONE]` at the end of a stream.

use crate::wire::{self, Body};
use anyhow::{Context, bail, ensure};

/// Answers that are not streamed are kept whole to be verified, up to this size.
const MAX_WHOLE_BYTES: usize = 1024 * 1024;

pub struct Answer {
    stream: bool,
    tokens: u32,
    head: Vec<u8>,
    body: Option<Body>,
    /// Body of an answer that is not streamed, or the line that has not ended yet of one that is.
    kept: Vec<u8>,
    seen: Seen,
    /// Connection cannot be used again.
    pub closes: bool,
}

#[derive(Default)]
struct Seen {
    tokens: u32,
    finish: bool,
    done: bool,
    wrong: Option<String>,
    needle: String,
}

/// How far the answer has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress {
    /// Nothing that counts as a first answer yet.
    Silent,
    /// The first event (or the head of an answer that is not streamed) has arrived.
    Begun,
    Complete,
}

impl Answer {
    pub fn new(stream: bool, tokens: u32) -> Answer {
        Answer { stream, tokens, head: vec![], body: None, kept: vec![], seen: Seen::default(), closes: false }
    }

    /// Ready for the next answer on the same connection.
    pub fn reset(&mut self) {
        self.head.clear();
        self.body = None;
        self.kept.clear();
        self.seen = Seen::default();
        self.closes = false;
    }

    pub fn feed(&mut self, mut input: &[u8]) -> anyhow::Result<Progress> {
        if self.body.is_none() {
            let before = self.head.len();
            self.head.extend_from_slice(input);
            let Some(end) = wire::head_end(&self.head)? else { return Ok(Progress::Silent) };
            input = &input[end - before..];
            self.head.truncate(end);
            self.body = Some(self.open()?);
        }
        let Some(body) = &mut self.body else { bail!("answer has no body") };
        let (stream, kept, seen) = (self.stream, &mut self.kept, &mut self.seen);
        let (taken, complete) =
            body.feed(input, |data| if stream { seen.lines(kept, data) } else { kept.extend_from_slice(data) })?;
        ensure!(self.kept.len() <= MAX_WHOLE_BYTES, "answer is longer than {MAX_WHOLE_BYTES} bytes");
        if complete {
            ensure!(taken == input.len(), "{} bytes follow the answer", input.len() - taken);
            self.verify()?;
            return Ok(Progress::Complete);
        }
        Ok(if !self.stream || self.seen.tokens > 0 { Progress::Begun } else { Progress::Silent })
    }

    /// The other side has closed: complete only where the close is the end.
    pub fn closed(&mut self) -> anyhow::Result<()> {
        ensure!(matches!(self.body, Some(Body::UntilClose)), "connection closed within an answer");
        self.verify()
    }

    fn open(&mut self) -> anyhow::Result<Body> {
        let head = &self.head;
        self.closes = wire::header(head, "connection").is_some_and(|v| v.eq_ignore_ascii_case(b"close"));
        if !head.starts_with(b"HTTP/1.1 200 ") {
            self.closes = true;
            bail!("status line {:?}", String::from_utf8_lossy(head.split(|&b| b == b'\r').next().unwrap_or_default()));
        }
        Ok(wire::framing(head)?.unwrap_or(Body::UntilClose))
    }

    fn verify(&mut self) -> anyhow::Result<()> {
        if !self.stream {
            let body: &[u8] = &self.kept;
            let last = format!("{}\"", crate::upstream::word(self.tokens - 1));
            for needle in [last.as_str(), "\"finish_reason\":\"stop\""] {
                memchr::memmem::find(body, needle.as_bytes())
                    .with_context(|| format!("answer lacks {needle:?}: {:.300}", String::from_utf8_lossy(body)))?;
            }
            return Ok(());
        }
        if let Some(wrong) = self.seen.wrong.take() {
            bail!(wrong);
        }
        ensure!(self.kept.is_empty(), "stream ends within a line");
        ensure!(self.seen.tokens == self.tokens, "stream has {} tokens, not {}", self.seen.tokens, self.tokens);
        ensure!(self.seen.finish, "stream has no finish reason");
        ensure!(self.seen.done, "stream has no [DONE]");
        Ok(())
    }
}

impl Seen {
    /// Cuts `data` into lines; a line that spans pieces is put together in `kept`.
    fn lines(&mut self, kept: &mut Vec<u8>, mut data: &[u8]) {
        while let Some(end) = memchr::memchr(b'\n', data) {
            if kept.is_empty() {
                self.line(&data[..end]);
            } else {
                kept.extend_from_slice(&data[..end]);
                self.line(kept);
                kept.clear();
            }
            data = &data[end + 1..];
        }
        kept.extend_from_slice(data);
    }

    fn line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else { return };
        if data.trim_ascii() == b"[DONE]" {
            self.done = true;
            return;
        }
        self.needle.clear();
        // Cannot fail: a String takes whatever is written.
        let _infallible = std::fmt::Write::write_fmt(&mut self.needle, format_args!(" tok{}", self.tokens));
        let there = memchr::memmem::find(data, self.needle.as_bytes())
            .is_some_and(|at| !data.get(at + self.needle.len()).is_some_and(u8::is_ascii_digit));
        if !there && self.wrong.is_none() {
            self.wrong = Some(format!("event {} is {:.200}", self.tokens, String::from_utf8_lossy(data)));
        }
        self.finish |= memchr::memmem::find(data, b"\"finish_reason\":\"stop\"").is_some();
        self.tokens += 1;
    }
}

#[cfg(test)]
mod tests;
