//! Hits as a function of capacity: the miss-ratio curve at chosen sizes, exact.
//!
//! A piece of a path is an interval of stack distances; a cache of C blocks hits those up to C. Sums are kept per chosen capacity, so
//! that memory and cost do not grow with the trace: O(log sizes) for a piece that lies between two sizes, plus one step
//! for each size that cuts it.

use super::run_stack::Piece;

/// Counts of one stream of accesses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Curve {
    /// Ascending, in blocks.
    capacities: Vec<u64>,
    /// Hits that begin to count at this capacity.
    from: Vec<u64>,
    /// Hits of pieces that this capacity cuts, for it alone.
    cut: Vec<u64>,
    accesses: u64,
    /// Hits of a cache without limit.
    hits: u64,
}

impl Curve {
    #[must_use]
    pub fn new(capacities: &[u64]) -> Self {
        let mut capacities = capacities.to_vec();
        capacities.sort_unstable();
        capacities.dedup();
        let zeros = vec![0; capacities.len()];
        Curve { from: zeros.clone(), cut: zeros, capacities, accesses: 0, hits: 0 }
    }

    /// A path of `blocks` met `pieces`.
    pub fn add(&mut self, blocks: u64, pieces: &[Piece]) {
        self.accesses += blocks;
        for piece in pieces {
            self.hits += piece.blocks;
            let mut at = self.capacities.partition_point(|capacity| *capacity <= piece.above);
            while let Some(capacity) = self.capacities.get(at).filter(|c| **c < piece.above + piece.blocks) {
                self.cut[at] += capacity - piece.above;
                at += 1;
            }
            if let Some(from) = self.from.get_mut(at) {
                *from += piece.blocks;
            }
        }
    }

    /// Blocks asked for.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Blocks that a cache without limit would have had.
    #[must_use]
    pub fn ceiling_hits(&self) -> u64 {
        self.hits
    }

    /// `(capacity, hits)` for every capacity, ascending.
    pub fn points(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut whole = 0;
        self.capacities.iter().zip(&self.from).zip(&self.cut).map(move |((capacity, from), cut)| {
            whole += from;
            (*capacity, whole + cut)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Curve, Piece};
    use plimsoll_core::Nanos;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn points_are_counts_of_distances(
            pieces in proptest::collection::vec((0u64..60, 1u64..30), 0..20),
            capacities in proptest::collection::vec(0u64..100, 0..12),
        ) {
            let mut curve = Curve::new(&capacities);
            for (above, blocks) in &pieces {
                curve.add(*blocks, &[Piece { above: *above, blocks: *blocks, touched: Nanos::ZERO }]);
            }
            let distances: Vec<u64> = pieces.iter().flat_map(|(above, blocks)| above + 1..=above + blocks).collect();
            for (capacity, hits) in curve.points() {
                prop_assert_eq!(hits, distances.iter().filter(|d| **d <= capacity).count() as u64, "{}", capacity);
            }
            prop_assert_eq!((curve.accesses(), curve.ceiling_hits()), (distances.len() as u64, distances.len() as u64));
        }
    }
}
