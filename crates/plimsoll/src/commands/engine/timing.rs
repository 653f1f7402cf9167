//! Timing profiles on the command line: which there are, which is meant, what it costs.

use crate::{Failure, output};
use plimsoll_engine::EngineConfig;
use plimsoll_engine::timing::Timing;
use plimsoll_timing::{Profile, find, names};
use std::fmt::Write as _;

/// `--timing help`: every built-in profile, one a line.
pub(super) fn list() -> Result<(), Failure> {
    let mut text = String::new();
    for name in names() {
        let Profile { summary, founded, serving, .. } = find(name).map_err(Failure::failed)?;
        let tokens = serving.kv_tokens / 1000;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:24}{summary}; KV for {tokens}k tokens a rank; times are {founded}");
    }
    output::data(&text)
}

/// The profile of this name, or in this file when it ends with `.toml`.
pub(super) fn of(name: &str, speedup: f64) -> Result<Timing, Failure> {
    let profile = if name.ends_with(".toml") {
        let text = std::fs::read_to_string(name)
            .map_err(|error| Failure::usage(format!("cannot read the timing profile {name}: {error}")))?;
        Profile::parse(name, &text)
    } else {
        find(name)
    };
    let profile =
        profile.map_err(|error| Failure::usage(error).hint("`plimsoll engine --timing help` says what they are"))?;
    Ok(Timing { profile, speedup })
}

/// What the operator should know about an engine in timing mode.
pub(super) fn note(config: &EngineConfig) -> Option<String> {
    let timing = config.timing.as_ref()?;
    Some(format!(
        "plimsoll engine: timing mode, step times of {} ({}, {} x); {} MiB of KV once it is full",
        timing.profile.summary,
        timing.profile.founded,
        timing.speedup,
        config.kv_bytes() >> 20,
    ))
}
