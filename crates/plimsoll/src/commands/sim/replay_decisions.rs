//! A decision log, made again (design rule 7).

use super::{ReplayArgs, write};
use crate::{Failure, output};
use plimsoll_core::{InstanceId, Rank, Target};
use plimsoll_load::replay::{ReplayError, choose};
use plimsoll_load::{Basis, Scored};
use plimsoll_workload::traces::lines::Lines;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Differences that are told one by one.
const MOST_TOLD: usize = 10;

/// By how much a score may differ from its record: what reading a number back may lose.
const SAME: f64 = 1e-12;

/// Of a decision record what a replay needs.
#[derive(Deserialize)]
struct Record {
    id: String,
    model: Option<String>,
    attempts: Vec<Attempt>,
}

#[derive(Deserialize)]
struct Attempt {
    engine: InstanceId,
    rank: Rank,
    policy_reason: String,
    candidates: Vec<Scored>,
    basis: Option<Basis>,
}

/// One choice that came out otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Difference {
    line: u64,
    id: String,
    attempt: usize,
    what: String,
}

#[derive(Debug, Default, Serialize)]
struct Tally {
    records: u64,
    choices: u64,
    equal: u64,
    different: u64,
    /// Choices that cannot be made again, by why.
    not_replayable: BTreeMap<String, u64>,
    /// The first of those that differ.
    differences: Vec<Difference>,
}

pub(super) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let mut lines = Lines::open(&args.log).map_err(Failure::usage)?;
    let mut tally = Tally::default();
    // The last line may be cut short: a log that is being written, or was when its gateway ended.
    while let Some(line) = lines.next_line().map_err(Failure::failed)? {
        let record: Record = match serde_json::from_str(&line) {
            Ok(record) => record,
            Err(error) => {
                let what = format!("no decision record: {error}");
                let failure = Failure::failed(lines.complaint(error.column().max(1), what));
                if !error.is_eof() || lines.next_line().map_err(Failure::failed)?.is_some() {
                    return Err(failure.hint("`plimsoll serve --decision-log FILE` writes one a line"));
                }
                *tally.not_replayable.entry("the last line is cut short".to_owned()).or_default() += 1;
                break;
            }
        };
        tally.take(lines.number(), &record);
    }
    if let Some(path) = &args.json {
        let mut text = serde_json::to_string_pretty(&tally).unwrap_or_default();
        text.push('\n');
        write(path, &text)?;
    }
    if args.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        output::data(&tally.text())?;
    }
    match (tally.different, tally.equal) {
        (0, 0) => Err(Failure::failed("no choice in this log could be made again")),
        (0, _) => Ok(()),
        (different, _) => Err(Failure::failed(format!("{different} choices came out otherwise than the log says"))),
    }
}

impl Tally {
    fn take(&mut self, line: u64, record: &Record) {
        self.records += 1;
        for (at, attempt) in record.attempts.iter().enumerate() {
            self.choices += 1;
            match attempt.replay(record.model.as_deref().unwrap_or_default()) {
                Ok(None) => self.equal += 1,
                Ok(Some(what)) => {
                    self.different += 1;
                    if self.differences.len() < MOST_TOLD {
                        self.differences.push(Difference { line, id: record.id.clone(), attempt: at, what });
                    }
                }
                Err(why) => *self.not_replayable.entry(why).or_default() += 1,
            }
        }
    }

    fn text(&self) -> String {
        let Tally { records, choices, equal, different, .. } = self;
        let mut text = format!("{records} records, {choices} choices: {equal} made again, {different} differ\n");
        for (why, count) in &self.not_replayable {
            let _ = writeln!(text, "{count} cannot be made again: {why}");
        }
        for Difference { line, id, attempt, what } in &self.differences {
            let _ = writeln!(text, "line {line}, request {id}, attempt {attempt}: {what}");
        }
        if self.different > self.differences.len() as u64 {
            let _ = writeln!(text, "and {} more", self.different - self.differences.len() as u64);
        }
        text
    }
}

impl Attempt {
    /// What is different this time, if anything; an error where the choice cannot be made again.
    fn replay(&self, model: &str) -> Result<Option<String>, String> {
        let basis = self.basis.as_ref().ok_or("its record does not say what it followed from")?;
        let again = match choose(basis, model, &self.candidates) {
            Ok(again) => again,
            Err(why @ ReplayError::TooFew { .. }) => return Err(why.to_string()),
            // A log that the gateway wrote has none of these.
            Err(why) => return Ok(Some(why.to_string())),
        };
        let chosen = Target { instance: self.engine, rank: self.rank };
        if (again.target, again.reason.as_str()) != (chosen, self.policy_reason.as_str()) {
            return Ok(Some(format!(
                "engine {} rank {} by {}; now engine {} rank {} by {}",
                chosen.instance,
                chosen.rank.0,
                self.policy_reason,
                again.target.instance,
                again.target.rank.0,
                again.reason
            )));
        }
        let apart = |then: f64, now: f64| (then - now).abs() > SAME * then.abs().max(now.abs());
        let other = again.scores.iter().find(|(_, then, now)| apart(*then, *now));
        Ok(other.map(|(target, then, now)| {
            format!("engine {} rank {} scored {then} s; now {now} s", target.instance, target.rank.0)
        }))
    }
}
