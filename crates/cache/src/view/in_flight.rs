//! What the requests that run on a target have in common.
//!
//! KV of a shared prefix lies on an engine once, however many of its requests begin with it. Whoever reserves room for each of them whole
//! thinks an engine full that is not, and sends the next one away from its prefix. So the prompts that run are counted by their blocks,
//! one for every 256 tokens: a new prompt's leading blocks with a count above zero need no room of their own.

use super::Prompt;
use super::by_block::ByBlock;
use plimsoll_core::Target;

/// Tokens from one counted block to the next.
const STRIDE_TOKENS: u32 = 256;

/// How many requests hold each block, by target in ascending order.
#[derive(Debug, Default)]
pub(super) struct InFlight(ByBlock<(Target, u32)>);

/// The counted blocks of a prompt, in the first of its families: the same each time it is asked.
fn counted(prompt: &Prompt) -> (usize, impl Iterator<Item = u64> + '_) {
    let (block_tokens, chain) = prompt.chains().next().map_or((1, [].as_slice()), |(f, c)| (f.block_tokens, c));
    let stride = STRIDE_TOKENS.div_ceil(block_tokens.max(1)) as usize;
    (stride * block_tokens.max(1) as usize, chain.iter().skip(stride - 1).step_by(stride).copied())
}

impl InFlight {
    pub(super) fn enter(&mut self, target: Target, prompt: &Prompt) {
        for block in counted(prompt).1 {
            let cell = self.0.of(block);
            match cell.binary_search_by_key(&target, |(held, _)| *held) {
                Ok(nth) => cell[nth].1 += 1,
                Err(nth) => cell.insert(nth, (target, 1)),
            }
        }
    }

    /// Where a model's view was dropped and made anew meanwhile, nothing of the request is in it.
    pub(super) fn leave(&mut self, target: Target, prompt: &Prompt) {
        for block in counted(prompt).1 {
            self.0.take(block, |cell| {
                let Ok(nth) = cell.binary_search_by_key(&target, |(held, _)| *held) else { return };
                cell[nth].1 -= 1;
                if cell[nth].1 == 0 {
                    cell.remove(nth);
                }
            });
        }
    }

    /// Leading tokens of a prompt that requests hold already, by target in ascending order: one walk along the prompt for all of them.
    pub(super) fn tokens(&self, prompt: &Prompt) -> Vec<(Target, u64)> {
        let (tokens, blocks) = counted(prompt);
        let mut all: Vec<(Target, u64)> = Vec::new();
        // Places in `all` of those that hold everything so far.
        let mut going: Vec<usize> = Vec::new();
        for (depth, block) in (0u64..).zip(blocks) {
            let Some(cell) = self.0.get(block) else { break };
            if depth == 0 {
                all.extend(cell.iter().map(|(target, _)| (*target, 0)));
                going.extend(0..all.len());
            }
            // Both in ascending order of targets.
            let mut held = cell.iter().map(|(target, _)| *target).peekable();
            going.retain(|place| {
                while held.next_if(|target| *target < all[*place].0).is_some() {}
                held.peek() == Some(&all[*place].0)
            });
            if going.is_empty() {
                break;
            }
            going.iter().for_each(|place| all[*place].1 += tokens as u64);
        }
        all
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
