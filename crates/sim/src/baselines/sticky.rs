//! llm-d's affinity until saturation (`llmd.md` section 1.4): only pods that hold at least 0.8 of the prompt stay, unless the tokens that
//! wait there cost more than 18 s at 15,928 tokens a second; of those that stay, or of all when none does, the one with
//! the fewest tokens in flight.
//!
//! The rate is theirs, measured on Qwen3-32B on two H100, and a constant in their code; so it is here.

use super::{least, loads};
use plimsoll_core::Nanos;
use plimsoll_load::{Ask, Choice, Placement, Reason, View};

/// Share of the prompt that makes a pod sticky.
const AFFINITY: f64 = 0.8;
/// Tokens that may wait at a sticky pod: 18 s at their rate.
const MOST_WAITING_TOKENS: f64 = 18.0 * 15_928.0;

#[derive(Debug)]
pub struct StickyUntilSaturated;

impl Placement for StickyUntilSaturated {
    fn place(&mut self, _now: Nanos, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        let prompt = (ask.charge.uncached_prefill_tokens as f64).max(1.0);
        let loads = loads(view);
        let all = || loads.iter().enumerate();
        let sticky = all().filter(|(_, load)| {
            load.hit_tokens / prompt >= AFFINITY && load.uncached_prefill_tokens <= MOST_WAITING_TOKENS
        });
        let tokens = |load: &plimsoll_load::Load| load.reserved_kv_tokens;
        let index = least(sticky, tokens).or_else(|| least(all(), tokens))?;
        Some(Choice { index, reason: Reason::OtherRule })
    }
}
