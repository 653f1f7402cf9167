//! Every spelling of every wish, with its unit and range.

use super::WishError;
use std::ops::RangeInclusive;

/// Longest time that may be asked for: a day, in milliseconds.
const DAY_MS: f64 = 86_400_000.0;

/// What is wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Ttft,
    Tpot,
    Remaining,
    Class,
    Priority,
}

impl Wish {
    /// For the reference page.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Wish::Ttft => "longest time from arrival to the first token",
            Wish::Tpot => "longest time between two tokens",
            Wish::Remaining => {
                "what the sender has left of its own budget: goes before a wished first token, and ends the request \
                 with `deadline_exceeded` when it is used up"
            }
            Wish::Class => "class; a lower one than the request would get is given, a higher one where its tenant may",
            Wish::Priority => "order among its equals, in the sense of the engine that serves it",
        }
    }
}

/// Where it stands in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Header,
    /// A top-level member of the JSON body.
    Body,
}

/// How it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    WholeMilliseconds,
    /// With a fraction, if wanted.
    Milliseconds,
    TokensPerSecond,
    /// `high`, `medium` or `low`.
    Class,
    /// OpenAI's `service_tier`.
    Tier,
    Integer,
}

impl Form {
    /// Values that are accepted, for forms that are numbers with a fraction or counts.
    #[must_use]
    pub const fn range(self) -> RangeInclusive<f64> {
        match self {
            Form::WholeMilliseconds => 1.0..=DAY_MS,
            Form::Milliseconds => 1.0..=DAY_MS,
            Form::TokensPerSecond => 0.001..=1e6,
            Form::Class | Form::Tier | Form::Integer => 0.0..=0.0,
        }
    }

    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Form::WholeMilliseconds => "whole milliseconds",
            Form::Milliseconds => "milliseconds",
            Form::TokensPerSecond => "tokens per second",
            Form::Class | Form::Tier => "a word",
            Form::Integer => "an integer",
        }
    }

    /// The range in words.
    #[must_use]
    pub fn allowed(self) -> String {
        match self {
            Form::Class => "`high`, `medium` or `low`".to_owned(),
            Form::Tier => "`priority` asks for high, `flex` for low; every other value asks for nothing".to_owned(),
            Form::Integer => format!("{} to {}", i32::MIN, i32::MAX),
            form => format!("{} to {}", form.range().start(), form.range().end()),
        }
    }
}

/// One name for one wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spelling {
    /// Lower case.
    pub name: &'static str,
    pub place: Place,
    pub wish: Wish,
    pub form: Form,
    /// Whose clients send it.
    pub from: &'static str,
}

impl Spelling {
    pub(super) fn absurd(&self) -> WishError {
        let wanted = match self.form {
            Form::Class => self.form.allowed(),
            Form::Integer => format!("an integer from {}", self.form.allowed()),
            form => format!("a number of {} from {}, without sign or exponent", form.unit(), form.allowed()),
        };
        WishError::Absurd { name: self.name, wanted }
    }
}

const fn header(name: &'static str, wish: Wish, form: Form, from: &'static str) -> Spelling {
    Spelling { name, place: Place::Header, wish, form, from }
}

const fn body(name: &'static str, wish: Wish, form: Form, from: &'static str) -> Spelling {
    Spelling { name, place: Place::Body, wish, form, from }
}

/// Every spelling that is read, in the order of the reference page.
pub const SPELLINGS: &[Spelling] = &[
    header("x-request-deadline-ms", Wish::Remaining, Form::WholeMilliseconds, "Plimsoll"),
    header("x-slo-ttft-ms", Wish::Ttft, Form::Milliseconds, "Plimsoll, older llm-d"),
    header("x-llm-d-slo-ttft-ms", Wish::Ttft, Form::Milliseconds, "llm-d"),
    header("x-sgl-ttft-slo-ms", Wish::Ttft, Form::Milliseconds, "SGLang's router"),
    header("x-slo-tpot-ms", Wish::Tpot, Form::Milliseconds, "Plimsoll, older llm-d"),
    header("x-llm-d-slo-tpot-ms", Wish::Tpot, Form::Milliseconds, "llm-d"),
    header("x-sgl-tps-slo", Wish::Tpot, Form::TokensPerSecond, "SGLang's router"),
    header("x-plimsoll-class", Wish::Class, Form::Class, "Plimsoll"),
    body("service_tier", Wish::Class, Form::Tier, "OpenAI"),
    body("priority", Wish::Priority, Form::Integer, "SGLang, vLLM"),
];
