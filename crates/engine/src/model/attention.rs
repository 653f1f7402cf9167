//! One token's attention over its paged context.
//!
//! The order of every sum follows the absolute position alone: scores add up over the dimension, the softmax
//! denominator over 16 lanes by position modulo 16 and then a fixed tree, values over positions from first to last. How
//! the context got into its pages (whole, in chunks, from a prefix hit, recomputed) cannot change a bit.

use super::kv::{KvStore, TILE};
use crate::kernels::{LANES, add_scaled, exp, sum};

/// Dimensions of one head.
pub const HEAD_DIM: usize = 16;

const _: () = assert!(HEAD_DIM == LANES && TILE == LANES);

/// Scores of one head, reused between calls.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    scores: Vec<[f32; TILE]>,
}

/// Attention of a query row `[heads][16]` over positions `0 .. length`, into `out` of the same shape.
pub fn attend(
    kv: &KvStore,
    layer: usize,
    pages: &[u32],
    length: usize,
    q: &[f32],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let (q, _) = q.as_chunks::<HEAD_DIM>();
    let (out, _) = out.as_chunks_mut::<HEAD_DIM>();
    let heads = kv.layer(layer);
    let group = q.len() / heads.len();
    let tiles = length.div_ceil(TILE);
    scratch.scores.resize(tiles, [0.0; TILE]);
    for (head, (q, out)) in q.iter().zip(out).enumerate() {
        let head = &heads[head / group];
        // 1 / sqrt(16) is exact.
        let q = q.map(|value| value * 0.25);
        for (tile, scores) in scratch.scores.iter_mut().enumerate() {
            *scores = score_tile(head.keys(pages, tile), &q);
        }
        let total = softmax(&mut scratch.scores, length);
        let mut mixed = [0.0; HEAD_DIM];
        for (tile, weights) in scratch.scores.iter().enumerate() {
            let valid = (length - tile * TILE).min(TILE);
            mix_tile(&mut mixed, head.values(pages, tile), &weights[..valid]);
        }
        let scale = 1.0 / total;
        *out = mixed.map(|value| value * scale);
    }
}

#[inline]
fn score_tile(keys: &[f32], q: &[f32; HEAD_DIM]) -> [f32; TILE] {
    let mut scores = [0.0; TILE];
    for (q, row) in q.iter().zip(keys.as_chunks::<TILE>().0) {
        add_scaled(&mut scores, *q, row);
    }
    scores
}

#[inline]
fn mix_tile(mixed: &mut [f32; HEAD_DIM], values: &[f32], weights: &[f32]) {
    let mut sums = *mixed;
    for (weight, row) in weights.iter().zip(values.as_chunks::<HEAD_DIM>().0) {
        add_scaled(&mut sums, *weight, row);
    }
    *mixed = sums;
}

/// Turns scores into weights relative to the largest, zero beyond `length`, and returns their sum.
fn softmax(scores: &mut [[f32; TILE]], length: usize) -> f32 {
    if let Some(last) = scores.last_mut() {
        last[(length - 1) % TILE + 1..].fill(f32::NEG_INFINITY);
    }
    let mut largest = [f32::NEG_INFINITY; TILE];
    for tile in scores.iter() {
        for lane in 0..TILE {
            largest[lane] = if tile[lane] > largest[lane] { tile[lane] } else { largest[lane] };
        }
    }
    let largest = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    for tile in scores.iter_mut() {
        for score in tile.iter_mut() {
            *score = exp(*score - largest);
        }
    }
    if let Some(last) = scores.last_mut() {
        last[(length - 1) % TILE + 1..].fill(0.0);
    }
    sum(scores.as_flattened())
}
