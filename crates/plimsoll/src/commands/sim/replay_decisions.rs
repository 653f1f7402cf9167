//! A decision log, made again (design rule 7): classes, refusals and choices.

use super::ReplayArgs;
use crate::commands::outputs::{Output, apart};
use crate::{Failure, output};
use plimsoll_core::{Class, InstanceId, Nanos, Rank, Target};
use plimsoll_load::replay::{ReplayError, choose};
use plimsoll_load::{Basis, Scored};
use plimsoll_traffic::admission::{Basis as RefusalBasis, Recorded, Rule};
use plimsoll_traffic::class::basis::Basis as ClassBasis;
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
    class: Option<Class>,
    class_rule: Option<String>,
    class_basis: Option<ClassBasis>,
    traffic: Option<Traffic>,
    attempts: Vec<Attempt>,
}

/// What traffic scheduling said.
#[derive(Deserialize)]
struct Traffic {
    why: String,
    queue_wait_ms: f64,
    level: Option<f64>,
    share: f64,
    predicted_ms: Option<f64>,
    allowed_ms: Option<f64>,
    basis: Option<RefusalBasis>,
}

#[derive(Deserialize)]
struct Attempt {
    engine: InstanceId,
    rank: Rank,
    policy_reason: String,
    candidates: Vec<Scored>,
    basis: Option<Basis>,
}

/// One decision that came out otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Difference {
    line: u64,
    id: String,
    /// Of a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<usize>,
    what: String,
}

/// Decisions of a kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Count {
    equal: u64,
    different: u64,
}

#[derive(Debug, Default, Serialize)]
struct Tally {
    records: u64,
    choices: u64,
    equal: u64,
    different: u64,
    /// From length, hits, session, client and tenant.
    classes: Count,
    /// From what their records say.
    refusals: Count,
    /// Decisions that cannot be made again, by why.
    not_replayable: BTreeMap<String, u64>,
    /// The first of those that differ.
    differences: Vec<Difference>,
}

pub(super) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    apart(std::iter::once(args.log.as_path()), &[args.json.as_ref()])?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
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
    if let Some(file) = json {
        let mut text = serde_json::to_string_pretty(&tally).unwrap_or_default();
        text.push('\n');
        file.put(&text)?;
    }
    if args.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        output::data(&tally.text())?;
    }
    match (tally.all_different(), tally.all_equal()) {
        (0, 0) => Err(Failure::failed("no choice in this log could be made again")),
        (0, _) => Ok(()),
        (different, _) => Err(Failure::failed(format!("{different} decisions came out otherwise than the log says"))),
    }
}

/// What came of one decision: nothing to say, what is different, or why it cannot be made again.
type Outcome = Result<Option<String>, String>;

impl Tally {
    fn all_equal(&self) -> u64 {
        self.equal + self.classes.equal + self.refusals.equal
    }

    fn all_different(&self) -> u64 {
        self.different + self.classes.different + self.refusals.different
    }

    fn take(&mut self, line: u64, record: &Record) {
        self.records += 1;
        let mut told = |outcome: Outcome, attempt: Option<usize>, count: &mut Count| match outcome {
            Ok(None) => count.equal += 1,
            Ok(Some(what)) => {
                count.different += 1;
                if self.differences.len() < MOST_TOLD {
                    self.differences.push(Difference { line, id: record.id.clone(), attempt, what });
                }
            }
            Err(why) => *self.not_replayable.entry(why).or_default() += 1,
        };
        if let Some(outcome) = record.classify() {
            told(outcome, None, &mut self.classes);
        }
        if let Some(outcome) = record.traffic.as_ref().and_then(Traffic::check) {
            told(outcome, None, &mut self.refusals);
        }
        let mut choices = Count::default();
        for (at, attempt) in record.attempts.iter().enumerate() {
            told(attempt.replay(record.model.as_deref().unwrap_or_default()), Some(at), &mut choices);
        }
        self.choices += record.attempts.len() as u64;
        self.equal += choices.equal;
        self.different += choices.different;
    }

    fn text(&self) -> String {
        let Tally { records, choices, equal, different, .. } = self;
        let mut text = format!("{records} records, {choices} choices: {equal} made again, {different} differ\n");
        for (kind, Count { equal, different }) in [("classes", self.classes), ("refusals", self.refusals)] {
            if equal + different > 0 {
                let _ = writeln!(
                    text,
                    "{} {kind}: {equal} follow from their records, {different} differ",
                    equal + different
                );
            }
        }
        for (why, count) in &self.not_replayable {
            let _ = writeln!(text, "{count} cannot be made again: {why}");
        }
        for Difference { line, id, attempt, what } in &self.differences {
            let attempt = attempt.map_or_else(String::new, |attempt| format!(", attempt {attempt}"));
            let _ = writeln!(text, "line {line}, request {id}{attempt}: {what}");
        }
        let (all, told) = (self.all_different(), self.differences.len() as u64);
        if all > told {
            let _ = writeln!(text, "and {} more", all - told);
        }
        text
    }
}

impl Record {
    /// `None` where no class is recorded.
    fn classify(&self) -> Option<Outcome> {
        let (class, rule) = (self.class?, self.class_rule.as_deref()?);
        let Some(basis) = &self.class_basis else {
            return Some(Err("its record does not say what its class followed from".to_owned()));
        };
        let again = basis.decide();
        let same = again.class == class && again.rule == rule;
        Some(Ok((!same).then(|| format!("class {class} by {rule}; now {} by {}", again.class, again.rule))))
    }
}

impl Traffic {
    /// `None` where it was not refused.
    fn check(&self) -> Option<Outcome> {
        let rule = Rule::ALL.into_iter().find(|rule| rule.as_str() == self.why)?;
        let Some(basis) = self.basis else {
            return Some(Err("its record does not say what its refusal followed from".to_owned()));
        };
        let time = |ms: f64| Nanos::from_secs_f64(ms / 1e3);
        let recorded = Recorded {
            rule,
            level: self.level,
            share: self.share,
            waited: time(self.queue_wait_ms),
            predicted: self.predicted_ms.map(time),
            allowed: self.allowed_ms.map(time),
            basis,
        };
        Some(match recorded.check() {
            Ok(true) => Ok(None),
            Ok(false) => Err(format!("a refusal by {rule} depends on what stood in the queue", rule = self.why)),
            Err(what) => Ok(Some(format!("refused by {}: {what}", self.why))),
        })
    }
}

impl Attempt {
    /// What is different this time, if anything; an error where the choice cannot be made again.
    fn replay(&self, model: &str) -> Outcome {
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
