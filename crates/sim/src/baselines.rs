//! Rules of others, for honest comparison: written from their descriptions, behind the same trait as our own.
//!
//! Each sees what our rules see: the ledger's loads and the cache view's hits, which are fresher and more exact than what those
//! routers have of their own (polled loads, trees of what was sent). So a difference is one of the rule, and where
//! ours wins it wins against a baseline that is better informed than the original. They choose among all that are alive, full ones
//! included, as the originals do: that full engines come last is a rule of ours.

mod cache_threshold;
mod dynamo;
mod least_tokens;
mod random;
mod sticky;

pub use cache_threshold::CacheThreshold;
pub use dynamo::DynamoCost;
pub use least_tokens::LeastTokens;
pub use random::Random;
pub use sticky::StickyUntilSaturated;

use plimsoll_load::{Load, Placement, PolicyKind, View};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

/// A rule by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// One of the gateway's own.
    Own(PolicyKind),
    Random,
    LeastTokens,
    CacheThreshold,
    DynamoCost,
    StickyUntilSaturated,
}

impl Policy {
    pub const ALL: [Policy; 9] = [
        Policy::Own(PolicyKind::LeastDelay),
        Policy::Own(PolicyKind::LeastWait),
        Policy::Own(PolicyKind::RoundRobin),
        Policy::Own(PolicyKind::PowerOfTwo),
        Policy::Random,
        Policy::LeastTokens,
        Policy::CacheThreshold,
        Policy::DynamoCost,
        Policy::StickyUntilSaturated,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Policy::Own(PolicyKind::LeastDelay) => "least_delay",
            Policy::Own(PolicyKind::LeastWait) => "least_wait",
            Policy::Own(PolicyKind::RoundRobin) => "round_robin",
            Policy::Own(PolicyKind::PowerOfTwo) => "power_of_two",
            Policy::Random => "random",
            Policy::LeastTokens => "least_tokens",
            Policy::CacheThreshold => "cache_threshold",
            Policy::DynamoCost => "dynamo_cost",
            Policy::StickyUntilSaturated => "sticky_until_saturated",
        }
    }

    /// Whose rule it is.
    #[must_use]
    pub const fn origin(self) -> &'static str {
        match self {
            Policy::Own(_) => "this program's gateway",
            Policy::Random => "every router's simplest",
            Policy::LeastTokens => "SGLang's minimum_tokens (pull request 7379)",
            Policy::CacheThreshold => "sglang-router 0.3.2, cache_aware",
            Policy::DynamoCost => "NVIDIA Dynamo's KV router, default cost",
            Policy::StickyUntilSaturated => "llm-d's prefix-cache affinity filter and token load scorer",
        }
    }

    #[must_use]
    pub fn of_name(name: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.as_str() == name)
    }

    /// What the scheduler is configured with.
    #[must_use]
    pub const fn kind(self) -> PolicyKind {
        match self {
            Policy::Own(kind) => kind,
            _ => PolicyKind::LeastDelay,
        }
    }

    /// What takes its place, if it is none of the gateway's own.
    #[must_use]
    pub fn placement(self, seed: u64, block_tokens: u64) -> Option<Box<dyn Placement>> {
        Some(match self {
            Policy::Own(_) => return None,
            Policy::Random => Box::new(Random::new(seed)),
            Policy::LeastTokens => Box::new(LeastTokens),
            Policy::CacheThreshold => Box::new(CacheThreshold),
            Policy::DynamoCost => Box::new(DynamoCost::new(seed, block_tokens)),
            Policy::StickyUntilSaturated => Box::new(StickyUntilSaturated::new(seed)),
        })
    }
}

/// The first of those with the least value.
fn least<'a>(loads: impl Iterator<Item = (usize, &'a Load)>, value: impl Fn(&Load) -> f64) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (index, load) in loads {
        let value = value(load);
        if best.is_none_or(|(_, least)| value < least) {
            best = Some((index, value));
        }
    }
    best.map(|(index, _)| index)
}

/// The numbers of all candidates.
fn loads(view: &View<'_>) -> Vec<Load> {
    view.candidates.iter().map(|candidate| view.loads.of(candidate)).collect()
}

/// One of those with the least value, by chance.
fn drawn_least(draws: &mut ChaCha8Rng, costs: &[(usize, f64)]) -> Option<usize> {
    let best = costs.iter().map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
    let tied = || costs.iter().filter(|(_, cost)| *cost <= best + EQUAL);
    let nth = draws.random_range(0..tied().count().max(1));
    tied().nth(nth).map(|(index, _)| *index)
}

/// Costs closer than this are equal.
const EQUAL: f64 = 1e-9;

#[cfg(test)]
mod tests;
