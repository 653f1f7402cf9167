//! What admission answers, always with the rule and its numbers.

use super::{Basis, Recorded};
use plimsoll_core::{Class, ErrorCode, Nanos, RequestId};
use serde::Serialize;
use std::fmt;

/// What becomes of an arrival.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It may be placed now.
    Go(Go),
    /// Its key comes back in a [`Decision`], exactly once, unless it is cancelled.
    Wait,
    Refuse(Refusal),
}

/// What became of one that waited.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    Go { key: RequestId, go: Go },
    Refuse { key: RequestId, refusal: Refusal },
}

impl Decision {
    #[must_use]
    pub fn key(&self) -> RequestId {
        match self {
            Decision::Go { key, .. } | Decision::Refuse { key, .. } => *key,
        }
    }
}

/// It may be placed now.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Go {
    /// The class it goes in; one that could not meet its deadline may have become low.
    pub class: Class,
    /// What it was charged, in tokens of prefill.
    pub cost_tokens: u64,
    pub waited: Nanos,
    pub why: GoWhy,
    /// The water level that counted.
    pub level: Option<f64>,
    /// The share of capacity that its class had.
    pub share: f64,
}

/// Why it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoWhy {
    /// Nothing waited and there was room.
    Room,
    /// Its turn came.
    Turn,
}

impl GoWhy {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            GoWhy::Room => "room",
            GoWhy::Turn => "turn",
        }
    }
}

/// The rule that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The class has had its share of the capacity at this level.
    QuotaClass,
    /// So has the tenant, of its class.
    QuotaTenant,
    /// The tenant's own rate, whatever the level.
    TenantRate,
    /// A repetition beyond the tenant's budget, while others wait.
    RetryBudget,
    /// The queue is full of what is at least as important.
    QueueFull,
    /// It waited, and something more important needed its place.
    Displaced,
    /// Its first token cannot be there in time.
    SloUnattainable,
    /// It has waited as long as a request may.
    WaitBudget,
    /// Its own deadline has passed.
    Deadline,
}

impl Rule {
    pub const ALL: [Rule; 9] = [
        Rule::QuotaClass,
        Rule::QuotaTenant,
        Rule::TenantRate,
        Rule::RetryBudget,
        Rule::QueueFull,
        Rule::Displaced,
        Rule::SloUnattainable,
        Rule::WaitBudget,
        Rule::Deadline,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Rule::QuotaClass => "quota_class",
            Rule::QuotaTenant => "quota_tenant",
            Rule::TenantRate => "tenant_rate",
            Rule::RetryBudget => "retry_budget",
            Rule::QueueFull => "queue_full",
            Rule::Displaced => "displaced",
            Rule::SloUnattainable => "slo_unattainable",
            Rule::WaitBudget => "wait_budget",
            Rule::Deadline => "deadline",
        }
    }

    /// What the client is told.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Rule::QuotaClass => ErrorCode::QuotaClass,
            Rule::QuotaTenant | Rule::TenantRate => ErrorCode::QuotaTenant,
            Rule::RetryBudget => ErrorCode::RetryBudget,
            Rule::QueueFull | Rule::Displaced => ErrorCode::QueueFull,
            Rule::SloUnattainable => ErrorCode::SloUnattainable,
            Rule::WaitBudget => ErrorCode::WaitBudget,
            Rule::Deadline => ErrorCode::DeadlineExceeded,
        }
    }
}

/// A refusal with what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusal {
    pub rule: Rule,
    pub class: Class,
    pub waited: Nanos,
    /// The water level that counted; `None` where none is known.
    pub level: Option<f64>,
    /// The share of capacity that its class had.
    pub share: f64,
    /// When to come back: the time that what is in front takes, with jitter, so that all who are refused together do not come
    /// back together.
    pub retry_after: Nanos,
    /// From arrival to first token if it had been kept, where that was the reason.
    pub predicted: Option<Nanos>,
    /// What it had from arrival to first token, where that was the reason.
    pub allowed: Option<Nanos>,
    /// What the rest follows from; apart, so that whoever may go carries no room for it.
    pub basis: Box<Basis>,
}

impl Refusal {
    /// As a record has it.
    #[must_use]
    pub fn recorded(&self) -> Recorded {
        let Refusal { rule, level, share, waited, predicted, allowed, ref basis, .. } = *self;
        Recorded { rule, level, share, waited, predicted, allowed, basis: **basis }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { class, .. } = self;
        match self.rule {
            Rule::QuotaClass => write!(f, "class {class} has had its share")?,
            Rule::QuotaTenant => write!(f, "this tenant has had its share of class {class}")?,
            Rule::TenantRate => f.write_str("this tenant is above its configured rate")?,
            Rule::RetryBudget => f.write_str("this tenant repeats more than its retry budget allows")?,
            Rule::QueueFull => write!(f, "the queue is full of what matters at least as much as class {class}")?,
            Rule::Displaced => write!(f, "the queue is full and class {class} gave way to a higher one")?,
            Rule::SloUnattainable => f.write_str("the first token cannot be there in time")?,
            Rule::WaitBudget => f.write_str("no engine had room within the time that a request may wait")?,
            Rule::Deadline => f.write_str("the request's deadline passed while it waited for an engine")?,
        }
        if let (Some(predicted), Some(allowed)) = (self.predicted, self.allowed) {
            let (predicted, allowed) = (predicted.as_secs_f64(), allowed.as_secs_f64());
            write!(f, ": {predicted:.1} s from its arrival are predicted and {allowed:.1} s allowed")?;
        }
        write!(f, " (rule {}", self.rule.as_str())?;
        match self.level {
            Some(level) => write!(f, ", water level {level:.2}")?,
            None => f.write_str(", water level unknown")?,
        }
        if matches!(self.rule, Rule::QuotaClass | Rule::QuotaTenant) {
            write!(f, ", share of class {class} {:.2}", self.share)?;
        }
        if self.waited > Nanos::ZERO {
            write!(f, ", waited {:.1} s", self.waited.as_secs_f64())?;
        }
        f.write_str("); repeat it later")
    }
}
