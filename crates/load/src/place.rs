//! The placement rule behind one trait. Later rules (length buckets) implement [`Placement`] and
//! see the same candidates.
//!
//! The scheduler has already filtered: alive, of the model, not excluded, and only the best *tier* (with KV room
//! before full, accepting before refusing), so a policy cannot send a request where it must not go; a rule that says so
//! ([`Placement::minds_tiers`]) is given the other tiers as well. Candidates carry their score in seconds ([`price`]).

pub mod least_score;
pub mod power_of_two;
pub mod price;
pub mod round_robin;

use crate::ask::Ask;
use crate::config::{PolicyKind, SchedulerConfig};
use crate::roster::Row;
use plimsoll_core::{LegRole, Nanos, Target};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Scores closer than this to the best are ties whatever the fraction, in seconds.
pub const TIE_FLOOR_S: f64 = 0.001;

/// One rank that may be chosen, with what is compared. Small, because a choice writes and reads a thousand of them; the
/// numbers behind the score are worked out again for the few that are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub target: Target,
    /// Own seconds to the first token, and the delay put on others times its weight.
    pub score_s: f64,
    /// Handle for the scheduler.
    pub(crate) row: Row,
    pub(crate) tier: Tier,
}

/// Which candidates come before others whatever their score; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tier(u8);

impl Tier {
    /// Refusing a moment ago is worse than having no KV room: a full instance queues, a refusing one answers 429.
    #[inline]
    pub(crate) const fn new(refusing: bool, has_room: bool) -> Tier {
        Tier(refusing as u8 * 2 + !has_room as u8)
    }

    /// The tier in a set of tiers.
    #[inline]
    pub(crate) const fn bit(self) -> u8 {
        1 << self.0
    }

    /// The best of a set that is not empty.
    pub(crate) const fn best(set: u8) -> Tier {
        Tier(set.trailing_zeros() as u8)
    }
}

/// What a policy chooses from. Never empty.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub model: &'a str,
    pub candidates: &'a [Candidate],
    pub tie_fraction: f64,
    /// The numbers behind the scores, for rules that weigh them otherwise.
    pub loads: &'a dyn Loads,
}

/// Works out the numbers of one candidate.
pub trait Loads: fmt::Debug {
    fn of(&self, candidate: &Candidate) -> Load;
}

/// One candidate's load, own plus trusted foreign, before this request is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    pub requests: f64,
    pub uncached_prefill_tokens: f64,
    pub reserved_kv_tokens: f64,
    /// Of this request's prompt.
    pub hit_tokens: f64,
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
    /// A rule that was set in place of the configured one.
    OtherRule,
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
            Reason::OtherRule => "other_rule",
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

    /// It chooses within the best tier. False for rules of others that know no tiers: they get everybody alive, since
    /// keeping the full ones from them would be a rule of ours at work in theirs.
    fn minds_tiers(&self) -> bool {
        true
    }

    /// What its next choice for this model and role depends on besides what it will be shown. `None`: it does not say, and its choices
    /// cannot be made again from their records.
    fn state(&self, _model: &str, _role: LegRole) -> Option<State> {
        None
    }
}

/// What a rule remembers from one choice to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// So many words were drawn from the seeded generator.
    Drawn(u64),
    /// Who was chosen last; `None` before the first choice.
    Last(Option<Target>),
}

/// A rule as it stood before a choice. `None` where the state is another rule's.
pub(crate) fn resume(policy: PolicyKind, seed: u64, state: State, model: &str) -> Option<Box<dyn Placement>> {
    let least = |reason, drawn| Box::new(least_score::LeastScore::resume(seed, reason, drawn)) as Box<dyn Placement>;
    Some(match (policy, state) {
        (PolicyKind::LeastDelay, State::Drawn(drawn)) => least(Reason::LeastDelay, drawn),
        (PolicyKind::LeastWait, State::Drawn(drawn)) => least(Reason::LeastWait, drawn),
        (PolicyKind::PowerOfTwo, State::Drawn(drawn)) => Box::new(power_of_two::PowerOfTwo::resume(seed, drawn)),
        (PolicyKind::RoundRobin, State::Last(last)) => Box::new(round_robin::RoundRobin::resume(model, last)),
        _ => return None,
    })
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
