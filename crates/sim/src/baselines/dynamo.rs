//! Dynamo's default cost (`dynamo.md` section 1.1): prefill blocks that a worker has still to compute with this request, and blocks
//! it decodes with; the lowest sum wins, equals are drawn from.
//!
//! ```text
//! prefill = max(0, (active prefill tokens + prompt) / block - overlap blocks)
//! cost    = prefill + decode blocks
//! ```
//!
//! Its defaults: weight of overlap 1, no decay, no weight of requests, temperature 0. Decode blocks are the prompts' of active requests
//! and this one's, less what a running request holds already. The original counts prompts only, so what the
//! ledger reserves for answers is taken out again. The ledger does not know which blocks two running requests share: what is held
//! counts once for each, and this prompt's hit (which may be idle) is credited where prefill is counted and nowhere else.

use super::{drawn_least, loads};
use plimsoll_core::Nanos;
use plimsoll_load::{Ask, Choice, Load, Placement, Reason, View};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

#[derive(Debug)]
pub struct DynamoCost {
    draws: ChaCha8Rng,
    block_tokens: f64,
}

impl DynamoCost {
    #[must_use]
    pub fn new(seed: u64, block_tokens: u64) -> Self {
        DynamoCost { draws: ChaCha8Rng::seed_from_u64(seed), block_tokens: block_tokens.max(1) as f64 }
    }
}

impl Placement for DynamoCost {
    fn place(&mut self, _now: Nanos, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        let prompt = ask.charge.uncached_prefill_tokens as f64;
        // A request whose KV comes with it has no prompt to compute, and does not say how much of its reservation is answer.
        let answer = if prompt > 0.0 { (ask.charge.reserved_kv_tokens as f64 - prompt).max(0.0) } else { 0.0 };
        let cost = |load: &Load| {
            let prefill = (load.uncached_prefill_tokens + prompt - load.hit_tokens).max(0.0);
            let decode = (load.reserved_kv_tokens - load.requests * answer).max(0.0) + prompt;
            (prefill + decode) / self.block_tokens
        };
        let costs: Vec<(usize, f64)> = loads(view).iter().map(cost).enumerate().collect();
        let index = drawn_least(&mut self.draws, &costs)?;
        Some(Choice { index, reason: Reason::OtherRule })
    }

    fn minds_tiers(&self) -> bool {
        false
    }
}
