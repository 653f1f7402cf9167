//! What a client wishes of the service: how soon, how steadily, how urgent.
//!
//! Gateways invented a header each for the same five wishes, and clients send them already. Whoever has to rename them in
//! every client does not switch, so all spellings are accepted; [`SPELLINGS`] is the one table that is read here and that
//! `docs/reference/headers.md` is generated from. A wish that cannot be meant (negative, NaN, longer than a day) or that
//! is said twice and differently is refused and not guessed at: half of the fleet would guess otherwise.
//!
//! Names: llm-d's router (`x-llm-d-slo-*`, before that `x-slo-*`), SGLang's router (`x-sgl-*`), SGLang's and vLLM's
//! `priority`, OpenAI's `service_tier`.

mod table;
#[cfg(test)]
mod tests;

pub use table::{Form, Place, SPELLINGS, Spelling, Wish};

use http::HeaderMap;
use plimsoll_core::{Class, Nanos};
use thiserror::Error;

/// Two spellings of one wish may differ by this fraction: one counts milliseconds, another tokens per second.
const SAME: f64 = 0.01;

/// What one request wishes. The default wishes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wishes {
    /// Longest time from arrival to the first token.
    pub ttft: Option<Nanos>,
    /// Longest time between two tokens.
    pub tpot: Option<Nanos>,
    /// What the sender has left of its own budget, counted from arrival. It goes before every other deadline: after it
    /// nobody waits for the answer.
    pub remaining: Option<Nanos>,
    /// Class asked for. What it gets is for its tenant's rules to say.
    pub class: Option<Class>,
    /// `priority` of the body, in the sense of the engine that serves it: SGLang takes the higher first, vLLM the lower.
    pub priority: Option<i32>,
}

/// A wish that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WishError {
    #[error("`{name}` must be {wanted}")]
    Absurd { name: &'static str, wanted: String },
    #[error("`{name}` and `{other}` ask for different things; send one of them")]
    Contradiction { name: &'static str, other: &'static str },
}

impl WishError {
    /// The header or field that is to blame.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            WishError::Absurd { name, .. } | WishError::Contradiction { name, .. } => name,
        }
    }
}

impl Wishes {
    /// Reads headers, and from the body `priority` and `service_tier` as the scan found them.
    ///
    /// # Errors
    /// [`WishError`] for the first wish that is absurd or contradicts another.
    pub fn read(headers: &HeaderMap, priority: Option<i64>, service_tier: Option<&str>) -> Result<Wishes, WishError> {
        let mut reading = Reading::default();
        for (name, value) in headers {
            // All of them begin so; nearly no other header of a request does.
            let name = name.as_str();
            if !name.starts_with("x-") {
                continue;
            }
            if let Some(spelling) = SPELLINGS.iter().find(|s| s.place == Place::Header && s.name == name) {
                reading.text(spelling, value.to_str().unwrap_or(""))?;
            }
        }
        for spelling in SPELLINGS.iter().filter(|spelling| spelling.place == Place::Body) {
            match spelling.form {
                Form::Integer => reading.integer(spelling, priority)?,
                _ => reading.tier(spelling, service_tier)?,
            }
        }
        Ok(reading.wishes)
    }

    /// When the first token is due, counted from arrival, as far as the client says so.
    #[must_use]
    pub fn first_token_within(&self) -> Option<Nanos> {
        self.remaining.or(self.ttft)
    }
}

/// Wishes so far, and who said them.
#[derive(Default)]
struct Reading {
    wishes: Wishes,
    said: [Option<&'static str>; 5],
}

impl Reading {
    fn text(&mut self, spelling: &'static Spelling, text: &str) -> Result<(), WishError> {
        let text = text.trim_ascii();
        match spelling.form {
            Form::Class => {
                let class = Class::ALL.into_iter().find(|class| text.eq_ignore_ascii_case(class.as_str()));
                self.class(spelling, class.ok_or_else(|| spelling.absurd())?)
            }
            form => {
                let number = if form == Form::WholeMilliseconds { whole(text) } else { decimal(text) };
                let number = number.filter(|number| form.range().contains(number)).ok_or_else(|| spelling.absurd())?;
                let ms = if form == Form::TokensPerSecond { 1e3 / number } else { number };
                self.time(spelling, ms)
            }
        }
    }

    fn time(&mut self, spelling: &'static Spelling, ms: f64) -> Result<(), WishError> {
        let time = Nanos::from_secs_f64(ms / 1e3);
        let before = match spelling.wish {
            Wish::Ttft => self.wishes.ttft.replace(time),
            Wish::Tpot => self.wishes.tpot.replace(time),
            _ => self.wishes.remaining.replace(time),
        };
        let near = |before: Nanos| before.0.abs_diff(time.0) as f64 <= SAME * before.0.max(time.0) as f64;
        self.agrees(spelling, before.is_none_or(near))
    }

    fn class(&mut self, spelling: &'static Spelling, class: Class) -> Result<(), WishError> {
        let before = self.wishes.class.replace(class);
        self.agrees(spelling, before.is_none_or(|before| before == class))
    }

    fn integer(&mut self, spelling: &'static Spelling, value: Option<i64>) -> Result<(), WishError> {
        let Some(value) = value else { return Ok(()) };
        self.wishes.priority = Some(i32::try_from(value).map_err(|_| spelling.absurd())?);
        self.agrees(spelling, true)
    }

    /// Tiers that name no urgency (`auto`, `default`, a provider's own) say nothing.
    fn tier(&mut self, spelling: &'static Spelling, value: Option<&str>) -> Result<(), WishError> {
        match value {
            Some("priority") => self.class(spelling, Class::High),
            Some("flex") => self.class(spelling, Class::Low),
            _ => Ok(()),
        }
    }

    fn agrees(&mut self, spelling: &'static Spelling, same: bool) -> Result<(), WishError> {
        match self.said[spelling.wish as usize].replace(spelling.name) {
            Some(other) if !same => Err(WishError::Contradiction { name: spelling.name, other }),
            _ => Ok(()),
        }
    }
}

/// Digits and at most one point: no sign, exponent, infinity or NaN.
fn decimal(text: &str) -> Option<f64> {
    text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.').then(|| text.parse().ok()).flatten()
}

fn whole(text: &str) -> Option<f64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
