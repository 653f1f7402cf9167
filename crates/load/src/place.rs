//! The placement rule behind one trait. Later rules (length buckets) implement [`Placement`] and
//! see the same candidates.
//!
//! The scheduler has already filtered: alive, of the model, not excluded, and only the best *tier* (with KV room
//! before full, accepting before refusing), so a policy cannot send a request where it must not go. Candidates carry
//! their seconds ([`price`]) and the numbers those were made of.

pub mod least_score;
pub mod power_of_two;
pub mod price;
pub mod round_robin;

use crate::ask::Ask;
use crate::config::{PolicyKind, SchedulerConfig};
use plimsoll_core::{Nanos, Target};
use serde::Serialize;
use std::fmt;

/// Scores closer than this to the best are ties whatever the fraction, in seconds.
pub const TIE_FLOOR_S: f64 = 0.001;

/// One rank that may be chosen. Loads are own plus trusted foreign, before this request is charged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub target: Target,
    pub requests: f64,
    pub uncached_prefill_tokens: f64,
    pub reserved_kv_tokens: f64,
    /// Tokens of this request's prompt that it need not compute.
    pub hit_tokens: f64,
    /// Those of them that it has to load from host memory.
    pub host_tokens: f64,
    /// Inverse prefill rate: observed, or that of its peers, or assumed; above zero.
    pub prefill_s_per_token: f64,
    /// This request's own seconds to its first token.
    pub expected_wait_s: f64,
    /// What is compared: those, and the delay put on others times its weight.
    pub score_s: f64,
    /// Refused a moment ago.
    pub refusing: bool,
    /// KV capacity is unknown, or fits this request.
    pub has_room: bool,
    /// Handle for the scheduler.
    pub(crate) slot: u32,
}

impl Candidate {
    /// 0 is best. Refusing is worse than full: a full instance queues, a refusing one answers 429.
    #[inline]
    pub(crate) const fn tier(&self) -> u8 {
        self.refusing as u8 * 2 + !self.has_room as u8
    }
}

/// What a policy chooses from. Never empty.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub model: &'a str,
    pub candidates: &'a [Candidate],
    pub tie_fraction: f64,
}

/// Index into [`View::candidates`], and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub index: usize,
    pub reason: Reason,
}

/// The rule that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// There was one candidate.
    Only,
    LeastWait,
    /// As least wait, with the delay of others counted in.
    LeastDelay,
    /// Drawn among those within the tie window of the best.
    TieDraw,
    RoundRobin,
    /// The better of two draws.
    BetterOfTwo,
}

impl Reason {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Only => "only",
            Reason::LeastWait => "least_wait",
            Reason::LeastDelay => "least_delay",
            Reason::TieDraw => "tie_draw",
            Reason::RoundRobin => "round_robin",
            Reason::BetterOfTwo => "better_of_two",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A placement rule. It may keep state (cursors, a seeded generator), never a clock. `None` means that no candidate
/// is acceptable; the request is then refused for lack of capacity.
pub trait Placement: fmt::Debug + Send {
    fn place(&mut self, now: Nanos, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice>;
}

/// The rule that the configuration names.
pub(crate) fn make(config: &SchedulerConfig) -> Box<dyn Placement> {
    match config.policy {
        PolicyKind::LeastDelay => Box::new(least_score::LeastScore::new(config.seed, Reason::LeastDelay)),
        PolicyKind::LeastWait => Box::new(least_score::LeastScore::new(config.seed, Reason::LeastWait)),
        PolicyKind::RoundRobin => Box::new(round_robin::RoundRobin::default()),
        PolicyKind::PowerOfTwo => Box::new(power_of_two::PowerOfTwo::new(config.seed)),
    }
}
