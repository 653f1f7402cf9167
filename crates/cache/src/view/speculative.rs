//! Blocks that a routing decision will bring about, until an event says so or the time is over.
//!
//! Between a choice and the first event lie a prefill and an event batch: a second or two in which the next turn of the same session, or nine
//! others with the same document, would find nothing. Every decision writes down the part of its chain that the target does not
//! hold, with one time of expiry: ancestors never expire before what stands on them, so that depth can be found by halving.

//!
//! With a hundred engines most have been sent nothing of a prompt: that has to be seen from its first block, for all of them at once, and not by
//! asking for each. (Asking took half of a lookup's time before 100 engines in the simulator.)

use super::Family;
use super::by_block::ByBlock;
use plimsoll_core::{Nanos, Target};
use std::borrow::Cow;
use std::collections::VecDeque;

/// Most blocks written down at once; older decisions give way.
const MOST_BLOCKS: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Speculative {
    /// Who will have a block, and until when that counts.
    notes: ByBlock<(Target, Nanos)>,
    /// Pairs of block and target.
    noted: usize,
    /// Decisions in order of time.
    order: VecDeque<(Nanos, Target, Vec<u64>)>,
}

impl Speculative {
    pub(super) fn add(&mut self, until: Nanos, target: Target, blocks: &[u64]) {
        if blocks.is_empty() {
            return;
        }
        for block in blocks {
            self.note(*block, target, until);
        }
        self.order.push_back((until, target, blocks.to_vec()));
        while self.noted > MOST_BLOCKS {
            self.drop_first();
        }
    }

    fn note(&mut self, block: u64, target: Target, until: Nanos) {
        let cell = self.notes.of(block);
        match cell.iter_mut().find(|(held, _)| *held == target) {
            Some((_, known)) => *known = until,
            None => {
                cell.push((target, until));
                self.noted += 1;
            }
        }
    }

    /// Takes a note out, if it counts until the time that is given, or whenever.
    fn strike(&mut self, block: u64, target: Target, until: Option<Nanos>) {
        let struck = self.notes.take(block, |cell| {
            let nth = cell.iter().position(|(held, _)| *held == target)?;
            // A later decision may have renewed it.
            until.is_none_or(|until| cell[nth].1 == until).then(|| cell.swap_remove(nth))
        });
        self.noted -= usize::from(struck.flatten().is_some());
    }

    fn drop_first(&mut self) {
        let Some((until, target, blocks)) = self.order.pop_front() else { return };
        for block in blocks {
            self.strike(block, target, Some(until));
        }
    }

    pub(super) fn expire(&mut self, now: Nanos) {
        while self.order.front().is_some_and(|(until, ..)| *until <= now) {
            self.drop_first();
        }
    }

    /// A block is there no more, or will not come.
    pub(super) fn gone(&mut self, target: Target, block: u64) {
        self.strike(block, target, None);
    }

    pub(super) fn forget(&mut self, target: Target) {
        for (until, held, blocks) in std::mem::take(&mut self.order) {
            if held == target {
                blocks.into_iter().for_each(|block| self.strike(block, target, None));
            } else {
                self.order.push_back((until, held, blocks));
            }
        }
    }

    /// The decision that would have brought it about until then is void.
    pub(super) fn withdrawn(&mut self, target: Target, block: u64, until: Nanos) {
        self.strike(block, target, Some(until));
    }

    /// Targets that may have something of a chain of which they are known to have nothing.
    pub(super) fn beginning(&self, chain: &[u64]) -> impl Iterator<Item = Target> + '_ {
        let first = chain.first().and_then(|block| self.notes.get(*block));
        first.into_iter().flat_map(|cell| cell.iter().map(|(target, _)| *target))
    }

    /// Depth of a chain on a target that is known to have its first `from` blocks.
    pub(super) fn depth(&self, now: Nanos, target: Target, chain: &[u64], from: usize) -> usize {
        let rest = chain.get(from..).unwrap_or_default();
        let counts = |block: &u64| {
            self.notes.get(*block).is_some_and(|cell| cell.iter().any(|(held, until)| *held == target && *until > now))
        };
        if rest.first().is_some_and(counts) { from + rest.partition_point(counts) } else { from }
    }
}

/// The blocks of a chain that are written down: with pages of a token or two, one for every sixteen tokens, or a long prompt would
/// be a hundred thousand notes.
pub(super) struct Noted<'a> {
    pub(super) names: Cow<'a, [u64]>,
    /// Blocks of the chain to one of these.
    stride: usize,
}

const FEWEST_TOKENS: u32 = 16;

pub(super) fn noted(family: Family, chain: &[u64]) -> Noted<'_> {
    let stride = FEWEST_TOKENS.div_ceil(family.block_tokens.max(1)) as usize;
    let names = match stride {
        0 | 1 => Cow::Borrowed(chain),
        _ => chain.iter().skip(stride - 1).step_by(stride).copied().collect::<Vec<u64>>().into(),
    };
    Noted { names, stride: stride.max(1) }
}

impl Noted<'_> {
    /// Depth in blocks of the chain, on a target that is known to have the first `from`.
    pub(super) fn depth(&self, notes: &Speculative, now: Nanos, target: Target, from: usize) -> usize {
        (notes.depth(now, target, &self.names, from / self.stride) * self.stride).max(from)
    }

    /// Those that are not within the first `from` blocks of the chain.
    pub(super) fn behind(&self, from: usize) -> &[u64] {
        self.names.get(from / self.stride..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
