//! Readers for real traces: `mooncake_conversation` and `agentic_weka_compact` of `shared/traces`.
//!
//! A trace is somebody else's file: it may be compressed or not, cut short, or of another kind altogether, so the
//! format is told by content and every complaint names file, line and column and what was expected there. Rows are
//! read one at a time; what is held is one line and one session.

mod agentic;
mod error;
pub mod lines;
mod mooncake;

pub use error::TraceError;

use crate::ids::BlockIds;
use crate::plan::Session;
use lines::Lines;
use std::path::Path;

/// Kinds of trace that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One request a line with arrival time and chained 512-token block ids; open loop.
    Mooncake,
    /// One session a line with calls, pauses, sub-agents and 64-token block ids; closed loop.
    Agentic,
}

impl Format {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Mooncake => "mooncake",
            Format::Agentic => "agentic",
        }
    }
}

/// Sessions of a trace in file order: one per row (mooncake) or per line (agentic). Ends after the first error.
pub struct Trace {
    format: Format,
    lines: Lines,
    first: Option<String>,
    ids: BlockIds,
    failed: bool,
    /// Lines that cannot be read are passed over and counted.
    skipping: bool,
    skipped: u64,
}

/// What a pass over a file found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub sessions: u64,
    pub calls: u64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
}

impl Trace {
    /// Opens `path` (plain or zstd) and tells its format from the first line.
    pub fn open(path: &Path) -> Result<Trace, TraceError> {
        let mut lines = Lines::open(path)?;
        let Some(first) = lines.next_line()? else {
            return Err(lines.complaint(1, "the file is empty; a trace with at least one line was expected"));
        };
        Trace::resume(lines, first)
    }

    /// Goes on behind the first line, which somebody else has read to tell its format: a pipe is read once.
    ///
    /// # Errors
    /// When it is of no known form.
    pub fn resume(lines: Lines, first: String) -> Result<Trace, TraceError> {
        let format = detect(&first).map_err(|expected| lines.complaint(1, expected))?;
        Ok(Trace {
            format,
            lines,
            first: Some(first),
            ids: BlockIds::default(),
            failed: false,
            skipping: false,
            skipped: 0,
        })
    }

    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Passes over lines that cannot be read from now on; a file that cannot be read stays an error.
    pub fn skip_bad(&mut self) {
        self.skipping = true;
    }

    /// Lines passed over so far.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// A complaint about the line read last, for whoever finds fault with it later.
    #[must_use]
    pub fn complaint(&self, column: usize, expected: impl Into<String>) -> TraceError {
        self.lines.complaint(column, expected)
    }

    /// Reads the first `limit` sessions of `path` (all where `None`), keeping nothing but their sums: finds a broken
    /// line before anything is started for the trace.
    pub fn survey(path: &Path, limit: Option<u64>) -> Result<Summary, TraceError> {
        let mut summary = Summary::default();
        for session in Trace::open(path)?.take(limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))) {
            let session = session?;
            summary.sessions += 1;
            summary.calls += session.calls.len() as u64;
            for call in &session.calls {
                summary.prompt_tokens += call.prompt.tokens();
                summary.output_tokens += call.output_tokens;
            }
        }
        Ok(summary)
    }

    fn parse(&mut self, line: &str) -> Result<Session, TraceError> {
        match self.format {
            Format::Mooncake => mooncake::parse(line, self.lines.number()),
            Format::Agentic => agentic::parse(line, &mut self.ids),
        }
        .map_err(|(column, expected)| self.lines.complaint(column, expected))
    }
}

impl Iterator for Trace {
    type Item = Result<Session, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed {
            let line = match self.first.take() {
                Some(line) => Ok(Some(line)),
                None => self.lines.next_line(),
            };
            let session = line.and_then(|line| line.map(|line| self.parse(&line)).transpose()).transpose();
            if self.skipping && matches!(session, Some(Err(TraceError::Line { .. }))) {
                self.skipped += 1;
                continue;
            }
            self.failed = matches!(session, Some(Err(_)));
            return session;
        }
        None
    }
}

/// Tells the format from the keys of the first line.
fn detect(line: &str) -> Result<Format, String> {
    const EXPECTED: &str = "expected a JSON object with `hash_ids` (mooncake) or with `block_size` and `reqs` (agentic \
                            compact)";
    let value: serde_json::Value = serde_json::from_str(line).map_err(|_| format!("not JSON; {EXPECTED}"))?;
    if value.get("hash_ids").is_some() {
        return Ok(Format::Mooncake);
    }
    match (value.get("block_size"), value.get("reqs"), value.get("requests")) {
        (Some(_), Some(_), _) => Ok(Format::Agentic),
        (_, _, Some(_)) => {
            Err("this is the raw agentic trace; give the compact one (agentic_weka_compact.jsonl.zst)".to_owned())
        }
        _ => Err(EXPECTED.to_owned()),
    }
}

/// Column (from 1) and complaint of a serde error on a one-line document, without serde's own position text.
fn at_column(error: &serde_json::Error) -> (usize, String) {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    (error.column().max(1), text.to_owned())
}
