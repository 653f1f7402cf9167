//! llm-d's affinity until saturation (`llmd.md` section 1.4): of pods that hold at least 0.8 of the prompt (sticky ones) and the others,
//! the sticky ones alone stay, unless the best of them would take more than 18 s longer to the first token than the best
//! of the others; then all stay. Of those that stay the one with the fewest tokens still to compute, this request's included
//! as far as that pod does not hold it; equals are drawn from.
//!
//! A time to the first token is those tokens at 15,928 a second. The rate is theirs, measured on Qwen3-32B on two H100, and a constant
//! in their code; so it is here.

use super::{drawn_least, loads};
use plimsoll_core::Nanos;
use plimsoll_load::{Ask, Choice, Placement, Reason, View};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

/// Share of the prompt that makes a pod sticky.
const AFFINITY: f64 = 0.8;
/// Tokens by which the best sticky pod may be behind the best other: 18 s at their rate.
const MOST_BEHIND_TOKENS: f64 = 18.0 * 15_928.0;

#[derive(Debug)]
pub struct StickyUntilSaturated {
    draws: ChaCha8Rng,
}

impl StickyUntilSaturated {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        StickyUntilSaturated { draws: ChaCha8Rng::seed_from_u64(seed) }
    }
}

impl Placement for StickyUntilSaturated {
    fn place(&mut self, _now: Nanos, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        let prompt = ask.charge.uncached_prefill_tokens as f64;
        let (mut sticky, mut others) = (Vec::new(), Vec::new());
        for (index, load) in loads(view).iter().enumerate() {
            let tokens = load.uncached_prefill_tokens + (prompt - load.hit_tokens).max(0.0);
            let holds = load.hit_tokens / prompt.max(1.0) >= AFFINITY;
            if holds { &mut sticky } else { &mut others }.push((index, tokens));
        }
        let best = |pods: &[(usize, f64)]| pods.iter().map(|(_, tokens)| *tokens).fold(f64::INFINITY, f64::min);
        if sticky.is_empty() || best(&sticky) - best(&others) > MOST_BEHIND_TOKENS {
            sticky.append(&mut others);
        }
        let index = drawn_least(&mut self.draws, &sticky)?;
        Some(Choice { index, reason: Reason::OtherRule })
    }

    fn minds_tiers(&self) -> bool {
        false
    }
}
