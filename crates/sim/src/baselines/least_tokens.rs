//! The rank that holds the fewest tokens: SGLang's `minimum_tokens` (`workloads.md` section 3: holding tokens and those on the
//! fly). The first of equals, as there. Here both are the ledger's, so it is never stale, which theirs is under bursts.

use super::{least, loads};
use plimsoll_core::Nanos;
use plimsoll_load::{Ask, Choice, Placement, Reason, View};

#[derive(Debug)]
pub struct LeastTokens;

impl Placement for LeastTokens {
    fn place(&mut self, _now: Nanos, view: &View<'_>, _ask: &Ask<'_>) -> Option<Choice> {
        let index = least(loads(view).iter().enumerate(), |load| load.reserved_kv_tokens)?;
        Some(Choice { index, reason: Reason::OtherRule })
    }

    fn minds_tiers(&self) -> bool {
        false
    }
}
