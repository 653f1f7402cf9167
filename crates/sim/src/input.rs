//! What is asked of the fleet: a trace of any known form, one session after the other, in order of time.
//!
//! Rows are read as they are needed and forgotten when they have been answered. A trace is somebody else's file, so whatever is
//! wrong with it is said with file, line, column and what was expected; `skip_bad` counts instead.

mod fields;
mod lengths;
mod mix;
#[cfg(test)]
mod tests;
mod time;
mod warp;

pub use fields::{COLUMNS, Column};
pub use mix::{MOST_TRACES, Mix};
pub use warp::Warp;

use lengths::{Lengths, Opened};
use plimsoll_core::Nanos;
use plimsoll_workload::traces::lines::Lines;
use plimsoll_workload::traces::{Format, Trace, TraceError};
use plimsoll_workload::{BlockIds, Session};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::cell::Cell;
use std::collections::HashSet;
use std::path::Path;
use std::rc::Rc;

/// No trace is longer, and no session pauses longer in all: 10 years. A time beyond is in another unit than the form says.
const LONGEST: Nanos = Nanos::from_secs(10 * 365 * 86_400);

/// How a trace is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputOptions {
    /// Only the first so many rows or sessions.
    pub limit: Option<u64>,
    /// Times as fast as recorded; above 0.
    pub rate: f64,
    /// Sessions or rows that begin per second, at random, where the trace does not say when.
    pub starts_per_s: f64,
    /// Of those starts.
    pub seed: u64,
    /// Rows that cannot be used are passed over and counted.
    pub skip_bad: bool,
    /// Rows of a log of lengths may come in another order than requests did, by up to a day; whoever reads them sorts.
    pub unordered: bool,
    /// Blocks of rows without block ids; nothing is shared among those.
    pub block_tokens: u64,
}

impl Default for InputOptions {
    fn default() -> Self {
        InputOptions {
            limit: None,
            rate: 1.0,
            starts_per_s: 1.0,
            seed: 0,
            skip_bad: false,
            unordered: false,
            block_tokens: 64,
        }
    }
}

/// A trace that is being read.
pub struct Input {
    rows: Rows,
    options: InputOptions,
    form: &'static str,
    block_tokens: u64,
    /// Starts are drawn, since the trace has none.
    draws: Option<ChaCha8Rng>,
    at: Nanos,
    first: Option<Session>,
    blocks_of_first: Option<u64>,
    /// Hashes of names seen, where the trace names its sessions.
    names: Option<HashSet<u64>>,
    read: u64,
    skipped: Rc<Cell<u64>>,
    failed: bool,
}

enum Rows {
    Trace(Box<Trace>),
    Lengths(Box<Lengths>),
}

/// Columns of a log that are named where none of them is a time.
const MOST_NAMED: usize = 8;

impl Input {
    /// Opens a trace and tells its form from its first line.
    ///
    /// # Errors
    /// When it cannot be read, or is of no known form.
    pub fn open(path: &Path, options: InputOptions) -> Result<Input, TraceError> {
        let (lines, first, skipped) = first_line(path, options.skip_bad)?;
        let (rows, form, timed, named) = match Lengths::resume(lines, first, options)? {
            Opened::Lengths(lengths) => {
                let (timed, named) = (lengths.has_times(), lengths.has_ids());
                (Rows::Lengths(lengths), "lengths", timed, named)
            }
            Opened::Another(lines, first) => {
                let mut trace = Trace::resume(lines, first)?;
                if options.skip_bad {
                    trace.skip_bad();
                }
                let format = trace.format();
                (Rows::Trace(Box::new(trace)), format.name(), format == Format::Mooncake, format == Format::Agentic)
            }
        };
        let mut input = Input {
            rows,
            options,
            form,
            block_tokens: options.block_tokens,
            draws: (!timed).then(|| ChaCha8Rng::seed_from_u64(options.seed)),
            at: Nanos::ZERO,
            first: None,
            blocks_of_first: None,
            names: named.then(HashSet::new),
            read: 0,
            skipped: Rc::new(Cell::new(skipped)),
            failed: false,
        };
        input.first = input.read_one()?;
        let call = input.first.as_ref().and_then(|session| session.calls.first());
        input.block_tokens = call.map_or(options.block_tokens, |call| call.prompt.block_tokens);
        Ok(input)
    }

    /// `mooncake`, `agentic` or `lengths`.
    #[must_use]
    pub fn form(&self) -> &'static str {
        self.form
    }

    /// Tokens of its blocks.
    #[must_use]
    pub fn block_tokens(&self) -> u64 {
        self.block_tokens
    }

    /// Rows passed over; grows while it is read.
    #[must_use]
    pub fn skipped(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.skipped)
    }

    /// What should be known of a log that does not say when requests came: their times are drawn.
    #[must_use]
    pub fn drawn(&self) -> Option<String> {
        let (Rows::Lengths(lengths), Some(_)) = (&self.rows, &self.draws) else { return None };
        let unused: Vec<&str> = lengths.unused().iter().map(String::as_str).take(MOST_NAMED).collect();
        let unused = match unused.as_slice() {
            [] => String::new(),
            names => format!("; columns that nothing is read from: {}", names.join(", ")),
        };
        let per_s = self.options.starts_per_s;
        Some(format!(
            "no column says when requests came, so their times are drawn, {per_s} a second in the mean{unused}"
        ))
    }

    /// Whether its times look like another unit than they are taken for; changes while it is read.
    #[must_use]
    pub fn doubt(&self) -> Rc<Cell<bool>> {
        match &self.rows {
            Rows::Trace(_) => Rc::default(),
            Rows::Lengths(lengths) => lengths.doubt(),
        }
    }

    /// All of it in order of time, the first at 0 where rows may be out of order: a decision log has its rows in order of
    /// their ends. What went on in a session is read in that order too.
    ///
    /// # Errors
    /// As the iterator.
    pub fn sorted(self) -> Result<Vec<Session>, String> {
        let from_zero = self.options.unordered && matches!(self.rows, Rows::Lengths(_)) && self.draws.is_none();
        let mut sessions = self.collect::<Result<Vec<_>, _>>()?;
        sessions.sort_by_key(|session| session.start);
        let origin = sessions.first().filter(|_| from_zero).map_or(Nanos::ZERO, |first| first.start);
        sessions.iter_mut().for_each(|session| session.start = session.start.since(origin));
        Ok(sessions)
    }

    fn read_one(&mut self) -> Result<Option<Session>, TraceError> {
        loop {
            if self.options.limit.is_some_and(|limit| self.read >= limit) {
                return Ok(None);
            }
            let Some(mut session) = self.row()? else { return Ok(None) };
            let what = match &mut self.draws {
                Some(draws) => {
                    let gap_s = exponential(1.0 - draws.random::<f64>()) / self.options.starts_per_s;
                    self.at = self.at + Nanos::from_secs_f64(gap_s);
                    session.start = self.at;
                    too_late(session.start)
                }
                None => {
                    let at = Nanos((session.start.0 as f64 / self.options.rate) as u64);
                    let before = self.at;
                    session.start = at;
                    let late = too_late(at);
                    if late.is_some() {
                        late
                    } else if at < before && !self.options.unordered {
                        Some(format!(
                            "begins {:.3} s before the row before; expected rows in order of time",
                            before.since(at).as_secs_f64() * self.options.rate
                        ))
                    } else {
                        None
                    }
                }
            };
            let twice = || format!("the id {:?} was there before; expected ids that differ", session.id);
            let what = what.or_else(|| too_long(&session)).or_else(|| self.other_blocks(&session));
            let what = what.or_else(|| {
                let names = self.names.as_mut()?;
                (!names.insert(hash(&session.id))).then(twice)
            });
            match what {
                None => {
                    self.at = session.start;
                    if let Rows::Lengths(lengths) = &mut self.rows {
                        lengths.remember();
                    }
                    self.read += 1;
                    return Ok(Some(session));
                }
                Some(_) if self.options.skip_bad => self.skipped.set(self.skipped.get() + 1),
                Some(what) => return Err(self.complaint(what)),
            }
        }
    }

    /// A trace has blocks of one size: ids of others name other tokens.
    fn other_blocks(&mut self, session: &Session) -> Option<String> {
        let tokens = session.calls.first()?.prompt.block_tokens;
        let known = *self.blocks_of_first.get_or_insert(tokens);
        (tokens != known).then(|| format!("blocks of {tokens} tokens; expected {known}, as in the first line"))
    }

    fn row(&mut self) -> Result<Option<Session>, TraceError> {
        match &mut self.rows {
            Rows::Trace(trace) => {
                let before = trace.skipped();
                let session = trace.next().transpose();
                self.skipped.set(self.skipped.get() + trace.skipped() - before);
                session
            }
            Rows::Lengths(lengths) => loop {
                match lengths.next_row() {
                    Err(TraceError::Line { .. }) if self.options.skip_bad => {
                        self.skipped.set(self.skipped.get() + 1);
                    }
                    other => return other,
                }
            },
        }
    }

    fn complaint(&self, what: String) -> TraceError {
        match &self.rows {
            Rows::Trace(trace) => trace.complaint(1, what),
            Rows::Lengths(lengths) => lengths.complaint(1, what),
        }
    }
}

impl Iterator for Input {
    type Item = Result<Session, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let session = match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.read_one(),
        };
        self.failed = session.is_err();
        session.map_err(|error| error.to_string()).transpose()
    }
}

/// The first line that tells the form, and how many were passed over: a JSON line that is none, where that is wanted.
fn first_line(path: &Path, skip_bad: bool) -> Result<(Lines, String, u64), TraceError> {
    let mut lines = Lines::open(path)?;
    let mut skipped = 0;
    while let Some(line) = lines.next_line()? {
        let broken = line.trim_start().starts_with('{') && serde_json::from_str::<serde_json::Value>(&line).is_err();
        if !(broken && skip_bad) {
            return Ok((lines, line, skipped));
        }
        skipped += 1;
    }
    Err(lines.complaint(1, "the file is empty; a trace with at least one line was expected"))
}

fn too_late(start: Nanos) -> Option<String> {
    let what = "expected at most 10 years; check the unit of times, --rate and --starts-per-s";
    (start > LONGEST).then(|| format!("begins {:.0} s after the first row; {what}", start.as_secs_f64()))
}

fn too_long(session: &Session) -> Option<String> {
    let pauses = session.calls.iter().flat_map(|call| &call.after).fold(Nanos::ZERO, |sum, after| sum + after.delay);
    let what = "expected at most 10 years in one session";
    (pauses > LONGEST).then(|| format!("pauses of {:.0} s; {what}", pauses.as_secs_f64()))
}

/// `-ln(u)` by its series in plain arithmetic: the library's logarithm may differ in its last bit between machines.
fn exponential(u: f64) -> f64 {
    let (mut mantissa, mut powers) = (u, 0.0);
    while mantissa < 0.75 {
        mantissa *= 2.0;
        powers += 1.0;
    }
    // ln(m) = 2 artanh((m - 1) / (m + 1)); |z| is at most 1/7 here.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let (square, mut power, mut sum) = (z * z, z, 0.0);
    for odd in 0..12 {
        sum += power / f64::from(2 * odd + 1);
        power *= square;
    }
    powers * std::f64::consts::LN_2 - 2.0 * sum
}

pub(crate) fn hash(name: &str) -> u64 {
    name.bytes().fold(name.len() as u64, |hash, byte| crate::names::mix(hash ^ u64::from(byte)))
}

/// Ids that nobody else has, for a prompt without any.
fn own_blocks(ids: &mut BlockIds, input_tokens: u64, block_tokens: u64) -> plimsoll_workload::Prompt {
    let full = input_tokens / block_tokens;
    let tail = input_tokens % block_tokens;
    let run = ids.fresh(full + 1);
    let runs = if full > 0 { vec![plimsoll_workload::Run { len: full, ..run }] } else { Vec::new() };
    let tail = (tail > 0).then_some(plimsoll_workload::Tail { id: run.first + full, tokens: tail });
    plimsoll_workload::Prompt { block_tokens, runs, tail }
}
