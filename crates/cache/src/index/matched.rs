//! The longest held prefix of one chain, for all holders in one walk.

use super::holders::{Bits, Holder};
use super::{NONE, PrefixIndex};
use smallvec::SmallVec;

/// How far each holder has a chain. Holders that have none of it are not in it.
#[derive(Clone, Debug, Default)]
pub struct Matched {
    /// Depth in blocks, ascending, and the holders whose match ends there.
    ends: SmallVec<[(u32, Bits); 4]>,
}

impl Matched {
    /// Blocks of the longest match.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.ends.last().map_or(0, |(depth, _)| *depth)
    }

    /// Blocks that this holder has.
    #[must_use]
    pub fn depth(&self, holder: Holder) -> u32 {
        self.ends.iter().find(|(_, holders)| holders.contains(holder)).map_or(0, |(depth, _)| *depth)
    }

    /// Every holder with its depth, shallow ones first.
    pub fn iter(&self) -> impl Iterator<Item = (Holder, u32)> + '_ {
        self.ends.iter().flat_map(|(depth, holders)| holders.iter().map(move |holder| (holder, *depth)))
    }

    fn end(&mut self, depth: usize, holders: Bits) {
        if depth > 0 && !holders.is_empty() {
            self.ends.push((depth as u32, holders));
        }
    }
}

impl PrefixIndex {
    /// Who has how much of a chain of block hashes.
    #[must_use]
    pub fn matched(&self, chain: &[u64]) -> Matched {
        let mut matched = Matched::default();
        let mut alive: Option<Bits> = None;
        let (mut above, mut depth) = (NONE, 0);
        while let Some(first) = chain.get(depth) {
            let Some(id) = self.edges.get(*first).filter(|id| self.begins(*id, *first, above)) else { break };
            let node = &self.nodes[id as usize];
            let common = common(&node.hashes, &chain[depth..]);
            // Those with a part of this edge end inside it, if they have all that is above.
            let mut parts: SmallVec<[(u32, Holder); 4]> = node
                .partial
                .iter()
                .filter(|(holder, _)| alive.as_ref().is_none_or(|alive| alive.contains(*holder)))
                .map(|(holder, cutoff)| ((*cutoff).min(common as u32), *holder))
                .collect();
            parts.sort_unstable();
            let gone = match &mut alive {
                None => {
                    alive = Some(node.full.bits());
                    Bits::default()
                }
                Some(alive) => {
                    let mut gone = alive.split(&node.full);
                    for (_, holder) in &parts {
                        gone.remove(*holder);
                    }
                    gone
                }
            };
            matched.end(depth, gone);
            let mut ending = Bits::default();
            let mut ending_at = 0;
            for (cutoff, holder) in parts {
                // A cut-off at the chain's own end is reached by those with the whole edge too.
                if cutoff as usize == common
                    && let Some(alive) = &mut alive
                    && (common < node.hashes.len() || chain.len() == depth + common)
                {
                    alive.insert(holder);
                    continue;
                }
                if cutoff != ending_at {
                    matched.end(depth + ending_at as usize, std::mem::take(&mut ending));
                    ending_at = cutoff;
                }
                ending.insert(holder);
            }
            matched.end(depth + ending_at as usize, ending);
            depth += common;
            above = id;
            if common < node.hashes.len() || alive.as_ref().is_none_or(Bits::is_empty) {
                break;
            }
        }
        matched.end(depth, alive.unwrap_or_default());
        matched
    }
}

/// Equal leading hashes of an edge and a chain. Chained: equal at one depth means equal above.
fn common(edge: &[u64], chain: &[u64]) -> usize {
    let (mut low, mut high) = (0, edge.len().min(chain.len()));
    if high > 0 && edge[high - 1] == chain[high - 1] {
        return high;
    }
    while low < high {
        let middle = usize::midpoint(low, high);
        if edge[middle] == chain[middle] { low = middle + 1 } else { high = middle }
    }
    low
}
