//! Which workload runs, and how much smaller and faster than its source.
//!
//! The default divisors let the three built-in engines on two CPU cores keep up; each is stated before the run, in
//! the table and in the JSON, because a figure without its scale says nothing.

use super::DemoArgs;
use crate::Failure;
use plimsoll_core::Nanos;
use plimsoll_workload::traces::{Format, Summary, Trace, TraceError};
use plimsoll_workload::{Scale, Session, SessionGenerator, Shape};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const PROMPT_DIVISOR: u64 = 32;
const OUTPUT_DIVISOR: u64 = 16;
const OPEN_LOOP_SPEED: f64 = 4.0;
const CLOSED_LOOP_SPEED: f64 = 200.0;
/// Recorded pauses reach a day; the trace's README proposes this cut.
const PAUSE_LIMIT: Nanos = Nanos::from_secs(60);
const GENERATED_SESSIONS: u64 = 12;
/// Largest context of a generated session after scaling. The built-in engine holds 32,768 tokens, but a prefill's cost
/// grows with the square: a few giants would be most of the demo.
const CONTEXT_LIMIT_WORDS: u64 = 8_192;
/// Generated sessions stop here: the longest of the trace has 514 turns, which would be the demo's last minutes alone.
const TURN_LIMIT: u64 = 80;
/// Recorded agent sessions have clocks of their own; they are started this far apart.
const SESSION_GAP: Nanos = Nanos::from_secs(30);

pub(super) struct Source {
    kind: Kind,
    scale: Scale,
    limit: Option<u64>,
    summary: Summary,
}

enum Kind {
    Generated { seed: u64, shape: Shape },
    Trace { path: PathBuf, format: Format },
}

impl Source {
    /// Reads a trace once from end to end, so that a broken line is known before anything is started.
    pub(super) fn choose(args: &DemoArgs) -> Result<Source, Failure> {
        let prompt_divisor = args.scale.unwrap_or(PROMPT_DIVISOR);
        let mut scale = Scale {
            prompt_divisor,
            output_divisor: args.output_scale.unwrap_or(OUTPUT_DIVISOR.min(prompt_divisor)),
            time_divisor: args.speed.unwrap_or(CLOSED_LOOP_SPEED),
            pause_limit: Some(PAUSE_LIMIT),
        };
        let Some(path) = &args.trace else {
            let limit = args.limit.unwrap_or(GENERATED_SESSIONS);
            let context_limit_tokens = CONTEXT_LIMIT_WORDS.saturating_mul(prompt_divisor).min(900_000);
            let shape = Shape { turn_limit: TURN_LIMIT, context_limit_tokens, ..Shape::default() };
            let mut summary = Summary::default();
            SessionGenerator::new(args.seed, shape).take(length(limit)).for_each(|session| add(&mut summary, &session));
            return Ok(Source { kind: Kind::Generated { seed: args.seed, shape }, scale, limit: Some(limit), summary });
        };
        let format = Trace::open(path).map_err(Failure::usage)?.format();
        let summary = Trace::survey(path, args.limit).map_err(Failure::usage)?;
        if format == Format::Mooncake {
            scale.time_divisor = args.speed.unwrap_or(OPEN_LOOP_SPEED);
            scale.pause_limit = None;
        }
        Ok(Source { kind: Kind::Trace { path: path.clone(), format }, scale, limit: args.limit, summary })
    }

    /// Sessions in order of their start.
    pub(super) fn sessions(&self) -> Result<Box<dyn Iterator<Item = Result<Session, TraceError>>>, Failure> {
        let limit = self.limit.map_or(usize::MAX, length);
        Ok(match &self.kind {
            Kind::Generated { seed, shape } => Box::new(SessionGenerator::new(*seed, *shape).take(limit).map(Ok)),
            Kind::Trace { path, format } => {
                let apart = *format == Format::Agentic;
                let trace = Trace::open(path).map_err(Failure::usage)?.take(limit).enumerate();
                Box::new(trace.map(move |(n, session)| {
                    session.map(|mut session| {
                        if apart {
                            session.start = Nanos(SESSION_GAP.0.saturating_mul(n as u64));
                        }
                        session
                    })
                }))
            }
        })
    }

    pub(super) fn scale(&self) -> Scale {
        self.scale
    }

    pub(super) fn calls(&self) -> u64 {
        self.summary.calls
    }

    /// Generated sessions are chats; traces are replayed as exact text.
    pub(super) fn is_chat(&self) -> bool {
        matches!(self.kind, Kind::Generated { .. })
    }

    pub(super) fn title(&self) -> String {
        let Summary { sessions, calls, .. } = self.summary;
        match &self.kind {
            Kind::Generated { seed, .. } => {
                format!("{sessions} generated agent sessions with {} calls (seed {seed})", thousands(calls))
            }
            Kind::Trace { path, format: Format::Mooncake } => {
                format!("{} rows of {} (mooncake, open loop)", thousands(calls), name(path))
            }
            Kind::Trace { path, format: Format::Agentic } => {
                format!("{sessions} sessions of {} with {} calls (agentic, closed loop)", name(path), thousands(calls))
            }
        }
    }

    pub(super) fn scale_in_words(&self) -> String {
        let Scale { prompt_divisor, output_divisor, time_divisor, pause_limit } = self.scale;
        let pauses =
            pause_limit.map_or_else(String::new, |limit| format!(", pauses at most {:.0} s", limit.as_secs_f64()));
        format!(
            "prompts divided by {prompt_divisor}, answers by {output_divisor}; time divided by {time_divisor}{pauses}"
        )
    }

    /// For the JSON report.
    pub(super) fn description(&self) -> Value {
        let (source, seed) = match &self.kind {
            Kind::Generated { seed, .. } => ("generated".to_owned(), Some(*seed)),
            Kind::Trace { path, .. } => (path.display().to_string(), None),
        };
        let format = match &self.kind {
            Kind::Generated { .. } => "sessions",
            Kind::Trace { format, .. } => format.name(),
        };
        json!({
            "source": source,
            "format": format,
            "scale": self.scale.prompt_divisor,
            "output_scale": self.scale.output_divisor,
            "speed": self.scale.time_divisor,
            "pause_limit_s": self.scale.pause_limit.map(Nanos::as_secs_f64),
            "seed": seed,
            "limit": self.limit,
            "sessions": self.summary.sessions,
            "source_prompt_tokens": self.summary.prompt_tokens,
            "source_output_tokens": self.summary.output_tokens,
        })
    }
}

fn add(summary: &mut Summary, session: &Session) {
    summary.sessions += 1;
    for call in &session.calls {
        summary.calls += 1;
        summary.prompt_tokens += call.prompt.tokens();
        summary.output_tokens += call.output_tokens;
    }
}

fn length(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// `12031` as `12,031`.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
