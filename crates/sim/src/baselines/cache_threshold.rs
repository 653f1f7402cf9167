//! sglang-router's `cache_aware` (`gateways.md` section 1.1): when loads differ by more than 64 requests and by more than half,
//! least loaded; else who holds the longest part of the prompt if that is more than 0.3 of it; else least loaded. The first of
//! equals.
//!
//! The original keeps a tree of the characters it has sent where; here hits are the cache view's.

use super::{least, loads};
use plimsoll_core::Nanos;
use plimsoll_load::{Ask, Choice, Placement, Reason, View};

/// Requests by which the most and the least loaded may differ, and by which factor.
const BALANCE_ABSOLUTE: f64 = 64.0;
const BALANCE_RELATIVE: f64 = 1.5;
/// Share of a prompt that is worth going for.
const CACHE_THRESHOLD: f64 = 0.3;

#[derive(Debug)]
pub struct CacheThreshold;

impl Placement for CacheThreshold {
    fn place(&mut self, _now: Nanos, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        let loads = loads(view);
        let requests = || loads.iter().map(|load| load.requests);
        let (most, fewest) = (requests().fold(0.0, f64::max), requests().fold(f64::INFINITY, f64::min));
        let imbalanced = most - fewest > BALANCE_ABSOLUTE && most > BALANCE_RELATIVE * fewest;
        let longest = least(loads.iter().enumerate(), |load| -load.hit_tokens)?;
        let prompt = (ask.charge.uncached_prefill_tokens as f64).max(1.0);
        let worth = loads[longest].hit_tokens / prompt > CACHE_THRESHOLD;
        let index = if worth && !imbalanced { longest } else { least(loads.iter().enumerate(), |load| load.requests)? };
        Some(Choice { index, reason: Reason::OtherRule })
    }

    fn minds_tiers(&self) -> bool {
        false
    }
}
