//! What the requests that run on a target have in common.
//!
//! KV of a shared prefix lies on an engine once, however many of its requests begin with it. Whoever reserves room for each of them whole
//! thinks an engine full that is not, and sends the next one away from its prefix. So the prompts that run are counted by their blocks,
//! one for every 256 tokens: a new prompt's leading blocks with a count above zero need no room of their own.

use super::Prompt;
use crate::fingerprint_map::FingerprintMap;
use plimsoll_core::Target;
use smallvec::SmallVec;

/// Tokens from one counted block to the next.
const STRIDE_TOKENS: u32 = 256;

/// How many requests hold a block, by target.
type Cell = SmallVec<[(Target, u32); 2]>;

#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// From a block to its cell.
    at: FingerprintMap,
    cells: Vec<Cell>,
    free: Vec<u32>,
}

/// The counted blocks of a prompt, in the first of its families: the same each time it is asked.
fn counted(prompt: &Prompt) -> (usize, impl Iterator<Item = u64> + '_) {
    let (block_tokens, chain) = prompt.chains().next().map_or((1, [].as_slice()), |(f, c)| (f.block_tokens, c));
    let stride = STRIDE_TOKENS.div_ceil(block_tokens.max(1)) as usize;
    (stride * block_tokens.max(1) as usize, chain.iter().skip(stride - 1).step_by(stride).copied())
}

impl InFlight {
    pub(super) fn enter(&mut self, target: Target, prompt: &Prompt) {
        for block in counted(prompt).1 {
            let at = self.at.get(block).unwrap_or_else(|| {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.cells.push(Cell::new());
                    self.cells.len() as u32 - 1
                });
                self.at.insert(block, at);
                at
            });
            let cell = &mut self.cells[at as usize];
            match cell.iter_mut().find(|(held, _)| *held == target) {
                Some((_, count)) => *count += 1,
                None => cell.push((target, 1)),
            }
        }
    }

    pub(super) fn leave(&mut self, target: Target, prompt: &Prompt) {
        for block in counted(prompt).1 {
            let Some(at) = self.at.get(block) else { continue };
            let cell = &mut self.cells[at as usize];
            let Some(nth) = cell.iter().position(|(held, _)| *held == target) else { continue };
            cell[nth].1 -= 1;
            if cell[nth].1 > 0 {
                continue;
            }
            cell.swap_remove(nth);
            if cell.is_empty() {
                *cell = Cell::new();
                self.at.remove(block);
                self.free.push(at);
                if self.at.is_empty() {
                    (self.cells, self.free) = (Vec::new(), Vec::new());
                }
            }
        }
    }

    /// Leading tokens of a prompt that requests on the target hold already.
    pub(super) fn tokens(&self, target: Target, prompt: &Prompt) -> u64 {
        let (tokens, blocks) = counted(prompt);
        let held = |block: &u64| {
            self.at.get(*block).is_some_and(|at| self.cells[at as usize].iter().any(|(held, _)| *held == target))
        };
        (blocks.take_while(held).count() * tokens) as u64
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.at.is_empty()
    }
}
