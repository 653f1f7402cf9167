//! Too much traffic, planned once: `plimsoll bench overload` sends the same plan to real processes, and [`simulate`] plays it on the virtual clock.
//!
//! Four scenarios, each in three parts: usual load, too much, usual load again. Four ways to deal with it, of which only the gateway's settings
//! or what stands before it differ. What was refused is counted with what was served.
//!
//! Tokens are divided by [`SCALE`] and the engines slowed down by it, so that waits and steps last as long as at full size
//! while two cores can compute them in real time. Class bounds and the times that are promised go with it. Figures are of this model of
//! a fleet, not of a GPU.

pub mod entrance;
mod excess;
mod figures;
mod outcome;
mod plan;
mod shape;
mod simulate;

pub use excess::windows_of_load;
pub use figures::{Figures, MINUTE_S, Percentiles, SHORT_S};
pub use outcome::{Done, Outcome, PATIENCE_S, Whole, in_time, repeat_after_s};
pub use plan::{Ask, LOUD_TENANT, Plan, TENANTS, class_rules, promised};
pub use shape::Shape;
pub use simulate::{Simulation, saturation_of_capacity, simulate};

use crate::engine::EngineShape;
use plimsoll_timing::StepShape;

/// Lengths are divided by it, and engines slowed down by it.
pub const SCALE: u64 = 16;
/// Llama 3 8B on one H100.
pub const PROFILE: &str = "h100-llama3-8b";
/// A scheduler step's tokens, scaled from the profile's 8,192.
pub const TOKEN_BUDGET: u64 = 8_192 / SCALE;
pub const PAGE_TOKENS: u64 = 16;
pub const MAX_RUNNING: u64 = 64;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A flash crowd of cold long requests doubles the load.
    A,
    /// The hit rate falls from 90 to 40 % at a constant rate: sessions are replaced by new users.
    B,
    /// One of four tenants sends ten times as much.
    C,
    /// The usual mix doubles, and whoever is refused repeats three times.
    D,
}

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Control {
    /// Traffic scheduling off: everything is placed and waits in the engines.
    None,
    /// One token bucket for all in front of the gateway, of this rate.
    Uniform { tokens_per_s: f64 },
    /// Refused while every engine has more than a fixed number of tokens to prefill (Dynamo's busy threshold).
    Static,
    /// Traffic scheduling on.
    Plimsoll,
}

/// Tokens that so many engines prefill in a second at most, in scenario time: full steps with half a context behind them.
///
/// # Errors
/// When the profile cannot be read.
pub fn capacity_tokens_per_s(engines: u16) -> Result<f64, String> {
    let profile = plimsoll_timing::find(PROFILE).map_err(|error| error.to_string())?;
    let mut step = StepShape::default();
    step.add_prefill(TOKEN_BUDGET, TOKEN_BUDGET, true);
    let seconds = profile.step_time(&step).as_secs_f64() * SCALE as f64;
    Ok(f64::from(engines) * TOKEN_BUDGET as f64 / seconds)
}

/// Sizes of one engine, scaled.
///
/// # Errors
/// When the profile cannot be read.
pub fn engine_shape() -> Result<EngineShape, String> {
    let profile = plimsoll_timing::find(PROFILE).map_err(|error| error.to_string())?;
    let scaled = |tokens: u64| tokens / SCALE / PAGE_TOKENS * PAGE_TOKENS;
    Ok(EngineShape {
        page_tokens: PAGE_TOKENS,
        kv_tokens: scaled(profile.serving.kv_tokens),
        context_tokens: scaled(profile.serving.context_tokens),
        token_budget: TOKEN_BUDGET,
        max_running: MAX_RUNNING,
        ..EngineShape::of(&profile.serving, PAGE_TOKENS)
    })
}
