//! Logs that say when a request came and how long it was, and nothing of its content: CSV, or one JSON object a line.
//!
//! What prompts have in common is not in them, so every prompt is its own; with a session column the requests of a session go
//! each other on: a prompt begins with all of the prompt before it in its session, as far as it is long enough.

use super::fields::{Column, known, names};
use super::{InputOptions, own_blocks, time};
use plimsoll_core::Nanos;
use plimsoll_workload::traces::TraceError;
use plimsoll_workload::traces::lines::Lines;
use plimsoll_workload::{BlockIds, Call, Prompt, Session};
use serde_json::Value;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// No model has a longer context.
const MOST_TOKENS: u64 = 1 << 24;

/// Kinds of columns.
const COLUMNS: usize = Column::Most as usize + 1;

/// The engine's own count of a prompt, which is preferred to the gateway's estimate beside it.
const REPORTED: &str = "reported_prompt_tokens";

/// By how much rows may come late: a decision is written down at its end.
const LATE_NS: i128 = 86_400_000_000_000;

/// Names in every line of a Mooncake trace, its time first.
const MOONCAKE: [&str; 3] = ["timestamp", "input_length", "output_length"];

/// Whole numbers beyond these are no seconds, it seems: a log longer than a year, or the year 5138.
const YEAR_NS: i128 = 365 * 86_400_000_000_000;
const EPOCH_MS_NS: i128 = 100_000_000_000_000_000_000;

/// Whole numbers whose mean gap is longer than this are no seconds either, it seems: so few requests nobody simulates. Told from so many rows
/// on.
const SPARSE_NS: i128 = 120 * 1_000_000_000;
const SPARSE_ROWS: u64 = 20;

/// Sessions whose last prompt is remembered.
const MOST_SESSIONS: usize = 100_000;

/// Rows of a log.
pub(super) struct Lengths {
    lines: Lines,
    /// Of a CSV; a JSON log names its columns in every line.
    header: Option<Vec<Option<(Column, f64)>>>,
    columns: [bool; COLUMNS],
    /// Names of columns that nothing is read from; of a CSV.
    unused: Vec<String>,
    pending: Option<String>,
    ids: BlockIds,
    block_tokens: u64,
    unordered: bool,
    origin_ns: Option<i128>,
    rows: u64,
    sessions: HashMap<String, Prompt>,
    order: VecDeque<String>,
    /// A Mooncake trace without its blocks: its times are milliseconds.
    mooncake: bool,
    /// All times were whole numbers, taken for seconds.
    whole: bool,
    /// They are more like milliseconds.
    doubt: Rc<Cell<bool>>,
    /// Session and prompt of the row read last, until the row is found to be good.
    judged: Option<(String, Prompt)>,
}

/// What a file turned out to be.
pub(super) enum Opened {
    Lengths(Box<Lengths>),
    /// Not of this form.
    Another(Lines, String),
}

/// One row's values as text with their place in the line.
#[derive(Default)]
struct Row<'a> {
    values: [Option<(std::borrow::Cow<'a, str>, usize, f64)>; COLUMNS],
}

impl<'a> Row<'a> {
    fn put(&mut self, column: Column, text: std::borrow::Cow<'a, str>, at: usize, unit: f64) {
        // The first of several names that says something counts.
        let value = &mut self.values[column as usize];
        if value.as_ref().is_none_or(|(text, ..)| text.is_empty()) {
            *value = Some((text, at, unit));
        }
    }

    fn text(&self, column: Column) -> Option<&str> {
        self.values[column as usize].as_ref().map(|(text, ..)| text.trim()).filter(|text| !text.is_empty())
    }

    fn at(&self, column: Column) -> usize {
        self.values[column as usize].as_ref().map_or(1, |(_, at, _)| *at)
    }
}

impl Lengths {
    /// Goes on behind a first line.
    pub(super) fn resume(lines: Lines, first: String, options: InputOptions) -> Result<Opened, TraceError> {
        let mut lengths = Lengths {
            lines,
            header: None,
            columns: [false; COLUMNS],
            unused: Vec::new(),
            pending: None,
            ids: BlockIds::default(),
            block_tokens: options.block_tokens.max(1),
            unordered: options.unordered,
            origin_ns: None,
            rows: 0,
            sessions: HashMap::new(),
            order: VecDeque::new(),
            mooncake: false,
            whole: true,
            doubt: Rc::default(),
            judged: None,
        };
        if first.trim_start().starts_with('{') {
            let Ok(value) = serde_json::from_str::<Value>(&first) else {
                return Ok(Opened::Another(lengths.lines, first));
            };
            if value.get("hash_ids").is_some() || value.get("reqs").is_some() || value.get("requests").is_some() {
                return Ok(Opened::Another(lengths.lines, first));
            }
            let number = |name: &str| value.get(name).is_some_and(Value::is_number);
            lengths.mooncake = MOONCAKE.into_iter().all(number);
            let mut row = Row::default();
            lengths.fields(&first, &value, "", &mut row);
            lengths.columns = std::array::from_fn(|column| row.values[column].is_some());
            lengths.require(&first)?;
            lengths.pending = Some(first);
        } else {
            let name = |cell: &str| cell.trim().trim_start_matches('\u{feff}').to_owned();
            let named: Vec<String> = cells(&first).map(|(cell, _)| name(&cell)).collect();
            let header: Vec<_> = named.iter().map(|name| known(name)).collect();
            lengths.unused = named.into_iter().filter(|name| known(name).is_none()).collect();
            for (column, _) in header.iter().flatten() {
                lengths.columns[*column as usize] = true;
            }
            lengths.header = Some(header);
            lengths.require(&first)?;
        }
        Ok(Opened::Lengths(Box::new(lengths)))
    }

    /// Input and output there must be.
    fn require(&self, line: &str) -> Result<(), TraceError> {
        for column in [Column::Input, Column::Output] {
            if !self.columns[column as usize] {
                let (found, one_of) = (line.chars().take(80).collect::<String>(), names(column));
                let what = format!("no column for {} in {found:?}; expected one of {one_of}", column.as_str());
                return Err(self.lines.complaint(1, what));
            }
        }
        Ok(())
    }

    /// Columns that nothing is read from.
    pub(super) fn unused(&self) -> &[String] {
        &self.unused
    }

    /// Whether times that are taken for seconds look like milliseconds; changes while it is read.
    pub(super) fn doubt(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.doubt)
    }

    pub(super) fn has_times(&self) -> bool {
        self.columns[Column::Time as usize]
    }

    pub(super) fn has_ids(&self) -> bool {
        self.columns[Column::Id as usize]
    }

    pub(super) fn complaint(&self, column: usize, what: String) -> TraceError {
        self.lines.complaint(column, what)
    }

    /// The next row as a session of one call.
    pub(super) fn next_row(&mut self) -> Result<Option<Session>, TraceError> {
        let line = match self.pending.take() {
            Some(line) => Some(line),
            None => self.lines.next_line()?,
        };
        let Some(line) = line else { return Ok(None) };
        let mut row = Row::default();
        let value: Value;
        if let Some(header) = &self.header {
            let mut count = 0;
            for ((cell, at), column) in cells(&line).zip(header.iter().chain(std::iter::repeat(&None))) {
                count += 1;
                if let Some((column, unit)) = column {
                    row.put(*column, cell, at, *unit);
                }
            }
            if count != header.len() {
                let what = format!("{count} values; expected {}, as many as the first line names", header.len());
                return Err(self.complaint(1, what));
            }
        } else {
            value = serde_json::from_str(&line)
                .map_err(|error| self.complaint(error.column(), format!("not JSON: {error}")))?;
            self.fields(&line, &value, "", &mut row);
        }
        self.session(&row).map(Some)
    }

    /// Values of a JSON object under the names that are known, also inside it.
    fn fields<'v>(&self, line: &str, value: &'v Value, above: &str, row: &mut Row<'v>) {
        let Some(object) = value.as_object() else { return };
        for (name, value) in object {
            let path = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
            if let Some((column, unit)) = known(&path) {
                let at = line.find(&format!("\"{name}\"")).map_or(1, |at| at + 1);
                let text = match value {
                    Value::String(text) => std::borrow::Cow::Borrowed(text.as_str()),
                    Value::Null => std::borrow::Cow::Borrowed(""),
                    other => std::borrow::Cow::Owned(other.to_string()),
                };
                if path == REPORTED && !text.is_empty() {
                    row.values[column as usize] = None;
                }
                let unit = if self.mooncake && path == MOONCAKE[0] { 1e6 } else { unit };
                row.put(column, text, at, unit);
            } else if value.is_object() && path.len() < 64 {
                self.fields(line, value, &path, row);
            }
        }
    }

    fn session(&mut self, row: &Row<'_>) -> Result<Session, TraceError> {
        self.judged = None;
        let input = self.tokens(row, Column::Input)?;
        let output = self.tokens(row, Column::Output)?;
        // What engines and clients leave out: no maximum.
        let asked = row.text(Column::Most).filter(|text| !matches!(*text, "null" | "None" | "-1"));
        let most = asked.map(|_| self.tokens(row, Column::Most)).transpose()?;
        let start = self.time(row)?;
        self.rows += 1;
        let prompt = self.prompt(row.text(Column::Session), input);
        let id = row.text(Column::Id).map_or_else(|| format!("row {}", self.rows), str::to_owned);
        let call = Call {
            after: Vec::new(),
            prompt,
            echo_tokens: 0,
            output_tokens: output.max(1),
            max_output_tokens: most,
            recorded: None,
        };
        Ok(Session { id, start, prefix_blocks: None, calls: vec![call] })
    }

    fn tokens(&self, row: &Row<'_>, column: Column) -> Result<u64, TraceError> {
        let text = row.text(column).unwrap_or_default();
        let tokens = text.parse::<u64>().ok().or_else(|| {
            let real = text.parse::<f64>().ok()?;
            (real >= 0.0 && real.fract() == 0.0 && real < 1e15).then_some(real as u64)
        });
        let least = u64::from(column == Column::Input);
        tokens.filter(|tokens| (least..=MOST_TOKENS).contains(tokens)).ok_or_else(|| {
            let what = format!("{:?} is no number of {}; expected {least} to {MOST_TOKENS}", text, column.as_str());
            self.complaint(row.at(column), what)
        })
    }

    /// Since the first row.
    fn time(&mut self, row: &Row<'_>) -> Result<Nanos, TraceError> {
        if !self.has_times() {
            if row.text(Column::Time).is_some() {
                let what = "a time; expected none, as in the first row".to_owned();
                return Err(self.complaint(row.at(Column::Time), what));
            }
            return Ok(Nanos::ZERO);
        }
        let text = row.text(Column::Time).unwrap_or_default();
        let unit = row.values[Column::Time as usize].as_ref().map_or(1e9, |(_, _, unit)| *unit);
        let at = time::parse(text, unit).filter(|at| *at >= 0).ok_or_else(|| {
            let what = format!("{text:?} is no time; expected a number that is not negative, or a date with a time");
            self.complaint(row.at(Column::Time), what)
        })?;
        self.whole &= unit == 1e9 && text.parse::<f64>().is_ok_and(|number| number.fract() == 0.0);
        let origin = *self.origin_ns.get_or_insert(if self.unordered { at - LATE_NS } else { at });
        // This row is not counted yet.
        let sparse = self.rows >= SPARSE_ROWS && at - origin > SPARSE_NS * i128::from(self.rows);
        self.doubt.set(self.whole && (at > EPOCH_MS_NS || at - origin > YEAR_NS || (sparse && !self.unordered)));
        u64::try_from(at - origin).map(Nanos).map_err(|_| {
            let what = format!("{text:?} lies before the first row's time; expected rows in order of time");
            self.complaint(row.at(Column::Time), what)
        })
    }

    fn prompt(&mut self, session: Option<&str>, input_tokens: u64) -> Prompt {
        let Some(session) = session else { return own_blocks(&mut self.ids, input_tokens, self.block_tokens) };
        let before = self.sessions.get(session);
        let kept = before.map_or(0, Prompt::full_blocks).min(input_tokens / self.block_tokens);
        let mut runs = before.map(|before| before.leading(kept)).unwrap_or_default();
        let rest = own_blocks(&mut self.ids, input_tokens - kept * self.block_tokens, self.block_tokens);
        runs.extend(rest.runs);
        let prompt = Prompt { block_tokens: self.block_tokens, runs, tail: rest.tail };
        self.judged = Some((session.to_owned(), prompt.clone()));
        prompt
    }

    /// The row read last is good: its session goes on from it.
    pub(super) fn remember(&mut self) {
        let Some((session, prompt)) = self.judged.take() else { return };
        if self.sessions.insert(session.clone(), prompt).is_none() {
            self.order.push_back(session);
            if self.order.len() > MOST_SESSIONS
                && let Some(oldest) = self.order.pop_front()
            {
                self.sessions.remove(&oldest);
            }
        }
    }
}

/// The values of a CSV line with the column each begins at, from 1. Quoted ones may hold commas.
fn cells(line: &str) -> impl Iterator<Item = (std::borrow::Cow<'_, str>, usize)> {
    let mut rest = Some((line, 1));
    std::iter::from_fn(move || {
        let (text, at) = rest?;
        if let Some(quoted) = text.strip_prefix('"') {
            let mut end = 0;
            while let Some(next) = quoted[end..].find('"') {
                end += next;
                if quoted[end + 1..].starts_with('"') {
                    end += 2;
                    continue;
                }
                let behind = &quoted[end + 1..];
                rest = behind.find(',').map(|comma| (&behind[comma + 1..], at + end + 3 + comma));
                return Some((std::borrow::Cow::Owned(quoted[..end].replace("\"\"", "\"")), at));
            }
            rest = None;
            return Some((std::borrow::Cow::Borrowed(quoted), at));
        }
        match text.find(',') {
            Some(comma) => {
                rest = Some((&text[comma + 1..], at + comma + 1));
                Some((std::borrow::Cow::Borrowed(&text[..comma]), at))
            }
            None => {
                rest = None;
                Some((std::borrow::Cow::Borrowed(text), at))
            }
        }
    })
}
