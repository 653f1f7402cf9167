//! The hits of a request, met in the order of a walk.
//!
//! A shared system prompt hits on every engine, and a search per candidate would cost more than all else. Engines mostly
//! join in the order of their ids, which is that of the hits, so walk and hits are merged; a target out of order is
//! searched.

use crate::ask::{Ask, HeldTokens};
use plimsoll_core::Target;

#[derive(Clone, Copy)]
pub(super) struct Hits<'a> {
    hits: &'a [(Target, HeldTokens)],
    prompt_tokens: u64,
    /// Behind the last hit that was met.
    cursor: usize,
    /// In [`order`]: one more than the hit before the cursor, or zero.
    after: u64,
    /// The hit at the cursor, or what no target reaches.
    next: u64,
}

impl<'a> Hits<'a> {
    pub(super) fn new(ask: &Ask<'a>) -> Self {
        let prompt_tokens = ask.charge.uncached_prefill_tokens;
        Hits { hits: ask.hits, prompt_tokens, cursor: 0, after: 0, next: 0 }.at_cursor(0)
    }

    /// The same as [`Ask::held`].
    #[inline(always)]
    pub(super) fn at(&mut self, target: Target) -> HeldTokens {
        let sought = order(target);
        // Between two hits there is none.
        if self.after <= sought && sought < self.next {
            return HeldTokens::default();
        }
        if sought != self.next {
            *self = self.search(target);
            if sought != self.next {
                return HeldTokens::default();
            }
        }
        let held = self.hits[self.cursor].1;
        self.cursor += 1;
        self.after = sought + 1;
        self.next = self.hits.get(self.cursor).map_or(u64::MAX, |(target, _)| order(*target));
        held.within(self.prompt_tokens)
    }

    #[inline(never)]
    fn search(self, target: Target) -> Self {
        self.at_cursor(self.hits.partition_point(|(held, _)| *held < target))
    }

    fn at_cursor(self, cursor: usize) -> Self {
        let after = cursor.checked_sub(1).map_or(0, |at| order(self.hits[at].0) + 1);
        let next = self.hits.get(cursor).map_or(u64::MAX, |(target, _)| order(*target));
        Hits { cursor, after, next, ..self }
    }
}

/// A target as one number of the same order.
#[inline]
const fn order(target: Target) -> u64 {
    (target.instance.0 as u64) << 16 | target.rank.0 as u64
}
