//! Names of a prompt's blocks: one number for a block and everything before it.
//!
//! Traces number blocks by content; a cache needs the whole prefix. A name is the mix of the name before and the block's
//! id, so equal names are equal prefixes, and an index of them is the one that the gateway keeps of real engines' names.

use plimsoll_core::BlockName;
use plimsoll_workload::Prompt;

/// `splitmix64`'s finaliser (Steele, Lea, Flood 2014).
pub(crate) const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The name of block `id` behind the block named `previous`; 0 at the root.
#[must_use]
pub const fn name(previous: BlockName, id: u64) -> BlockName {
    mix(previous.rotate_left(23) ^ mix(id ^ 0x5851_F42D_4C95_7F2D))
}

/// Names of a prompt's full blocks, appended to `into`.
pub fn extend(into: &mut Vec<BlockName>, prompt: &Prompt) {
    let mut previous = into.last().copied().unwrap_or(0);
    for id in prompt.block_ids() {
        previous = name(previous, id);
        into.push(previous);
    }
}

/// Names of what request `request` has generated itself, behind its prompt; nobody else has them.
pub fn extend_own(into: &mut Vec<BlockName>, request: u64, blocks: u64) {
    let mut previous = into.last().copied().unwrap_or(0);
    for block in 0..blocks {
        previous = name(previous, mix(request) ^ mix(!block));
        into.push(previous);
    }
}
