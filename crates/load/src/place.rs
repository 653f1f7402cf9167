//! The placement rule behind one trait. Later rules (cache affinity, length buckets) implement [`Placement`] and
//! see the same candidates.
//!
//! The scheduler has already filtered: alive, of the model, not excluded, and only the best *tier* (with KV room
//! before full, accepting before refusing), so a policy cannot send a request where it must not go. Candidates carry
//! the seconds of [`expected_wait_s`] and the numbers it was made of.

pub mod least_wait;
pub mod power_of_two;
pub mod round_robin;

use crate::ask::Ask;
use crate::config::{PolicyKind, SchedulerConfig};
use plimsoll_core::{Nanos, Target};
use serde::Serialize;
use std::fmt;

/// Delay that one request in flight puts on a newcomer's first token, in seconds.
///
/// An assumption between two measured bounds (42 SGLang configurations on H100/H200 in aiconfigurator's silicon table):
/// one more concurrent request lengthens a decode step by 0.34 ms in the median, and the closed-loop time to first
/// token by 28 ms, which includes its prefill, counted apart here. It must exceed the tie floor, so that requests
/// past their prefill still tell instances apart.
pub const DECODE_SHARE_S: f64 = 0.004;

/// Waits closer than this to the best are ties whatever the fraction, in seconds.
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
    /// Inverse prefill rate: observed, or that of its peers, or assumed; above zero.
    pub prefill_s_per_token: f64,
    /// [`expected_wait_s`] for this request's charge.
    pub expected_wait_s: f64,
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

/// Expected seconds to the first token:
///
/// `(outstanding + own) / prefill rate + requests * DECODE_SHARE_S`
///
/// Uncached tokens in front plus this request's over the prefill rate is the article's token-based load and SMG's
/// expected wait (`gateways.md` §1.1, `least_load`) with real token counts in place of a constant per request; the
/// second term is the share that running decodes take of each step (SMG's `lambda * k / (1 - k)`, linear here because
/// the saturation point `k` of a stock engine is not known).
#[must_use]
#[inline]
pub fn expected_wait_s(outstanding_tokens: f64, own_tokens: f64, prefill_s_per_token: f64, requests: f64) -> f64 {
    (outstanding_tokens + own_tokens) * prefill_s_per_token + requests * DECODE_SHARE_S
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
    /// Drawn among those within the tie window of the least wait.
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
        PolicyKind::LeastWait => Box::new(least_wait::LeastWait::new(config.seed)),
        PolicyKind::RoundRobin => Box::new(round_robin::RoundRobin::default()),
        PolicyKind::PowerOfTwo => Box::new(power_of_two::PowerOfTwo::new(config.seed)),
    }
}
