//! The inner loop of everything: a few rows times a few panels, in registers.
//!
//! A tile takes up to six rows of `x` and [`Lanes::PANELS`] panels of weights through a stretch of the inner dimension.
//! Each output has one accumulator, to which products are added in the order of the inner dimension. Where a stretch
//! ends, the accumulator is stored as f32 and taken up again unchanged, so cutting the inner dimension into stretches
//! (for the caches) changes no bit, and neither does the number of rows or panels that share a tile.

use super::lanes::{Block, LANES, Lanes, Square};
use std::ops::Range;

/// Most rows of a tile. Six rows of four panels fill the registers of AVX-512, six of one those of AVX2.
pub(crate) const ROWS: usize = 6;

/// `sums[m][p] += x[m] · panel[p]` over the inner blocks `inner`.
///
/// `x` is laid out in blocks, `[inner block][stride]`, and begins at the tile's first row. `squares(block)` gives the
/// weights of an inner block for each panel. Of the last block only the first `last_steps` (1 to 16) count.
#[inline(always)]
pub(crate) fn tile<'w, L: Lanes, const M: usize, const P: usize>(
    lanes: L,
    x: &[Block],
    stride: usize,
    inner: Range<usize>,
    last_steps: usize,
    squares: impl Fn(usize) -> [&'w Square; P],
    mut sums: [[L::V; P]; M],
) -> [[L::V; P]; M] {
    let Range { start, end } = inner;
    let whole = if last_steps == LANES { end } else { end - 1 };
    for block in start..whole {
        let (rows, squares) = (rows_at::<M>(x, stride, block), squares(block));
        for step in 0..LANES {
            sums = one_step(lanes, rows, &squares, step, sums);
        }
    }
    if whole < end {
        let (rows, squares) = (rows_at::<M>(x, stride, whole), squares(whole));
        for step in 0..last_steps.min(LANES) {
            sums = one_step(lanes, rows, &squares, step, sums);
        }
    }
    sums
}

#[inline(always)]
fn rows_at<const M: usize>(x: &[Block], stride: usize, block: usize) -> &[Block; M] {
    let (rows, _) = x[block * stride..].as_chunks::<M>();
    &rows[0]
}

#[inline(always)]
fn one_step<L: Lanes, const M: usize, const P: usize>(
    lanes: L,
    rows: &[Block; M],
    squares: &[&Square; P],
    step: usize,
    mut sums: [[L::V; P]; M],
) -> [[L::V; P]; M] {
    let weights: [L::V; P] = std::array::from_fn(|p| lanes.load(&squares[p][step]));
    for m in 0..M {
        for p in 0..P {
            sums[m][p] = lanes.add_scaled(rows[m].0[step], weights[p], sums[m][p]);
        }
    }
    sums
}

/// Cuts `rows` into tiles of nearly equal height, so that no tile is left with a single row.
#[inline(always)]
pub(crate) fn tiles_of(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = rows.div_ceil(ROWS);
    let (height, taller) = (rows / count.max(1), rows % count.max(1));
    (0..count).map(move |tile| (tile * height + tile.min(taller), height + usize::from(tile < taller)))
}

/// Calls `$body` with the constant `$m` set to the height of the tile.
macro_rules! with_height {
    ($height:expr, $m:ident => $body:expr) => {
        match $height {
            1 => {
                const $m: usize = 1;
                $body
            }
            2 => {
                const $m: usize = 2;
                $body
            }
            3 => {
                const $m: usize = 3;
                $body
            }
            4 => {
                const $m: usize = 4;
                $body
            }
            5 => {
                const $m: usize = 5;
                $body
            }
            _ => {
                const $m: usize = 6;
                $body
            }
        }
    };
}
pub(crate) use with_height;
