//! The requests of a rank that decode, added up so that a step costs the same for 2 and for 200.
//!
//! Every one of them grows by one token a step. So each is kept as its context less the number of steps taken so far, which
//! does not change, and sums, the longest, the next to end and the next pages follow from those.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::step_time::DecodeLoad;

/// Index of a job in its rank.
pub(crate) type Slot = u32;

#[derive(Debug, Default)]
pub(crate) struct DecodeBatch {
    /// Steps taken so far.
    step: u64,
    requests: u64,
    /// Sum of contexts less steps; may be negative.
    base: i64,
    /// The same one by one, as a multiset.
    offsets: BTreeMap<i64, u32>,
    /// How many of them leave each remainder by the page size.
    residues: Vec<u32>,
    /// When each ends: step, order of admission, job. Some are gone.
    ends: BinaryHeap<Reverse<(u64, u64, Slot)>>,
}

impl DecodeBatch {
    pub(crate) fn new(page_tokens: u64) -> Self {
        DecodeBatch { residues: vec![0; page_tokens as usize], ..DecodeBatch::default() }
    }

    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// A job with `kv_tokens` in its cache decodes from the next step on, `steps` times.
    pub(crate) fn join(&mut self, slot: Slot, kv_tokens: u64, steps: u64, admitted: u64) {
        let offset = kv_tokens as i64 - self.step as i64;
        self.requests += 1;
        self.base += offset;
        *self.offsets.entry(offset).or_insert(0) += 1;
        let residue = self.residue(offset);
        self.residues[residue] += 1;
        self.ends.push(Reverse((self.step + steps, admitted, slot)));
    }

    /// A job that joined at `joined_step` with `kv_tokens` is gone.
    pub(crate) fn leave(&mut self, kv_tokens: u64, joined_step: u64) {
        let offset = kv_tokens as i64 - joined_step as i64;
        self.requests -= 1;
        self.base -= offset;
        if let Some(count) = self.offsets.get_mut(&offset) {
            *count -= 1;
            if *count == 0 {
                self.offsets.remove(&offset);
            }
        }
        let residue = self.residue(offset);
        self.residues[residue] -= 1;
    }

    pub(crate) fn advance(&mut self, steps: u64) {
        self.step += steps;
    }

    /// What the next step attends to: the new tokens included.
    pub(crate) fn load(&self) -> DecodeLoad {
        let next = self.step as i64 + 1;
        let longest = self.offsets.last_key_value().map_or(0, |(offset, _)| offset + next);
        DecodeLoad {
            requests: self.requests,
            context_tokens: (self.base + next * self.requests as i64) as u64,
            longest_tokens: longest as u64,
        }
    }

    /// Steps until the first of them ends. `is_here(slot, admitted)` tells who is still in the batch.
    pub(crate) fn next_end(&mut self, is_here: impl Fn(Slot, u64) -> bool) -> Option<u64> {
        loop {
            let Reverse((at, admitted, slot)) = *self.ends.peek()?;
            if is_here(slot, admitted) {
                return Some(at - self.step);
            }
            self.ends.pop();
        }
    }

    /// The next of those that have ended, in order of admission.
    pub(crate) fn pop_ended(&mut self, is_here: impl Fn(Slot, u64) -> bool) -> Option<Slot> {
        loop {
            let Reverse((at, admitted, slot)) = *self.ends.peek()?;
            let here = is_here(slot, admitted);
            if here && at > self.step {
                return None;
            }
            self.ends.pop();
            if here {
                return Some(slot);
            }
        }
    }

    /// Pages that the next `steps` steps need.
    pub(crate) fn pages_for(&self, steps: u64) -> u64 {
        let page = self.residues.len() as u64;
        let mut pages = steps / page * self.requests;
        // A context of whole pages needs one more for its next token.
        let first = (self.step % page) as usize;
        for ahead in 0..(steps % page) as usize {
            let at = (2 * page as usize - first - ahead) % page as usize;
            pages += u64::from(self.residues[at]);
        }
        pages
    }

    /// Most steps, up to `most`, that need no more than `pages`.
    pub(crate) fn steps_within(&self, pages: u64, most: u64) -> u64 {
        if self.pages_for(most) <= pages {
            return most;
        }
        let (mut low, mut high) = (0, most);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.pages_for(middle) <= pages { low = middle } else { high = middle }
        }
        low
    }

    fn residue(&self, offset: i64) -> usize {
        offset.rem_euclid(self.residues.len() as i64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Sums and pages are those of a plain list.
        #[test]
        fn sums_are_those_of_a_list(
            page in 1u64..20,
            kv in prop::collection::vec(1u64..500, 1..20),
            before in 0u64..50,
            steps in 0u64..60,
        ) {
            let mut batch = DecodeBatch::new(page);
            let mut list = Vec::new();
            for (slot, kv) in kv.iter().enumerate() {
                batch.join(slot as Slot, *kv, 1_000, slot as u64);
                list.push((*kv, batch.step()));
                batch.advance(before % (slot as u64 + 2));
            }
            let (gone_kv, gone_step) = list.remove(0);
            batch.leave(gone_kv, gone_step);
            let now: Vec<u64> = list.iter().map(|(kv, joined)| kv + batch.step() - joined).collect();
            let pages = |more: u64| now.iter().map(|kv| (kv + more).div_ceil(page)).sum::<u64>();
            prop_assert_eq!(batch.pages_for(steps), pages(steps) - pages(0));
            let load = batch.load();
            prop_assert_eq!(load.requests, now.len() as u64);
            prop_assert_eq!(load.context_tokens, now.iter().map(|kv| kv + 1).sum::<u64>());
            prop_assert_eq!(load.longest_tokens, now.iter().max().map_or(0, |kv| kv + 1));
            let within = batch.steps_within(steps, 500);
            prop_assert!(batch.pages_for(within) <= steps);
            prop_assert!(within == 500 || batch.pages_for(within + 1) > steps);
        }
    }
}
