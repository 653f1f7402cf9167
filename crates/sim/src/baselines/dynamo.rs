//! Dynamo's default cost (`dynamo.md` section 1.1): prefill blocks that a worker has still to compute with this request, and blocks
//! it decodes with; the lowest sum wins, equals are drawn from.
//!
//! ```text
//! prefill = max(0, (active prefill tokens + prompt) / block - overlap blocks)
//! cost    = prefill + decode blocks
//! ```
//!
//! Its defaults: weight of overlap 1, no decay, no weight of requests, temperature 0. Decode blocks are those of active requests and this
//! one's, less what a running request holds already; the ledger does not know which blocks are shared, so all that is
//! reserved counts, less this prompt's hit.

use super::loads;
use plimsoll_core::Nanos;
use plimsoll_load::{Ask, Choice, Placement, Reason, View};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Costs closer than this are equal, in blocks.
const EQUAL: f64 = 1e-9;

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
        let own = ask.charge.reserved_kv_tokens as f64;
        let cost = |load: &plimsoll_load::Load| {
            let prefill = (load.uncached_prefill_tokens + prompt - load.hit_tokens).max(0.0);
            let decode = load.reserved_kv_tokens + own - load.hit_tokens;
            (prefill + decode) / self.block_tokens
        };
        let costs: Vec<f64> = loads(view).iter().map(cost).collect();
        let best = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let tied: Vec<usize> = (0..costs.len()).filter(|index| costs[*index] <= best + EQUAL).collect();
        let index = *tied.get(self.draws.random_range(0..tied.len().max(1)))?;
        Some(Choice { index, reason: Reason::OtherRule })
    }
}
