//! Attention of new tokens over their paged context.
//!
//! Some rows of one run and all query heads that share a KV head form a task: each tile of keys and values is read once
//! for all of them. Scores and the mix of values are products of the kind of [`crate::kernels::tile`], with a tile of
//! keys or values as the panel.
//!
//! Pages lie anywhere, and a decoding query uses each tile once: left to itself, the processor would wait at the start of
//! every tile for memory and for the address of its page. So while the keys of a span are in use its values are asked for,
//! and while those are, the keys of the next span.
//!
//! The context is walked from its beginning in spans of 128 positions with a running maximum, so nothing grows with its
//! length. The order of every sum follows the absolute position alone: scores add up over the dimension; in each span
//! the largest score is raised, what was summed so far is scaled to it, then weights are added in 16 lanes by position
//! modulo 16 and values position by position. Positions after a query have weight zero, and adding zero times a number
//! changes no sum (only the sign of a zero, which the last addition of +0 takes away). So how the context got into its
//! pages (whole, in chunks, from a prefix hit, recomputed), and which rows share a task, cannot change a bit.

use super::kv::{HeadKv, TILE};
use super::rope;
use super::{ModelConfig, Run};
use crate::kernels::elementwise::{exp, rms_norm_one, tree_sum};
use crate::kernels::lanes::{Kernel, Lanes, ZERO, prefetch_square};
use crate::kernels::tile::{tile, tiles_of, with_height};
use crate::kernels::{Block, Isa, LANES};
use std::ops::Range;

/// Tiles of a span.
const SPAN: usize = 8;
/// Queries (rows times heads) of one task: few enough that their scores stay in the cache, many enough to share keys.
const QUERIES: usize = 48;
/// Most dimensions of a head.
pub const MOST_HEAD_DIM: usize = 256;
pub(crate) const MOST_BLOCKS: usize = MOST_HEAD_DIM / LANES;

/// What all tasks of a layer have in common.
pub(crate) struct Layer<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) rope: &'a rope::Table,
    /// Norm of each query head, `[head_dim]` in blocks (Qwen3).
    pub(crate) query_gain: Option<&'a [Block]>,
    /// Queries before norm and rotation, `[heads * head_dim / 16][rows]`.
    pub(crate) queries: &'a [Block],
    /// Rows of the whole batch.
    pub(crate) rows: usize,
}

/// Some rows of one run and the heads that share one KV head.
pub(crate) struct Task<'a> {
    kv: &'a HeadKv,
    kv_head: usize,
    run: Run<'a>,
    /// Rows of the batch; the first is at position `position`.
    rows: Range<usize>,
    position: usize,
    /// `[heads of the group * head_dim / 16]`, each with the task's rows.
    out: Vec<&'a mut [Block]>,
}

/// Reused between tasks of a thread.
#[derive(Default)]
pub(crate) struct Scratch {
    /// `[head_dim / 16][queries]`.
    queries: Vec<Block>,
    /// `[tiles of the span][queries]`: scores, then weights.
    scores: Vec<Block>,
    /// `[head_dim / 16][queries]`: values so far.
    mixed: Vec<Block>,
    /// Weights so far in 16 lanes, for each query.
    totals: Vec<Block>,
    /// Largest score so far of each query.
    largest: Vec<f32>,
}

/// Cuts the attention of a batch into tasks. `out` is `[heads * head_dim / 16][rows]`.
pub(crate) fn tasks<'a>(
    config: &ModelConfig,
    runs: &[Run<'a>],
    kv: &'a [HeadKv],
    rows: usize,
    out: &'a mut [Block],
) -> Vec<Task<'a>> {
    let group = config.heads / config.kv_heads;
    let step = (QUERIES / group).max(1);
    let mut tasks = Vec::new();
    let blocks = group * config.head_dim / LANES;
    for ((kv_head, kv), out) in kv.iter().enumerate().zip(out.chunks_exact_mut(blocks * rows)) {
        let first = tasks.len();
        let mut row = 0;
        for run in runs {
            for from in (0..run.tokens.len()).step_by(step) {
                let count = (run.tokens.len() - from).min(step);
                let position = run.start + from;
                let out = Vec::with_capacity(blocks);
                tasks.push(Task { kv, kv_head, run: *run, rows: row..row + count, position, out });
                row += count;
            }
        }
        for mut column in out.chunks_exact_mut(rows) {
            for task in &mut tasks[first..] {
                let own = column.split_off_mut(..task.rows.len());
                task.out.extend(own);
            }
        }
    }
    tasks
}

/// Runs one task.
pub(crate) fn attend(isa: Isa, layer: &Layer<'_>, task: Task<'_>, scratch: &mut Scratch) {
    isa.run(Attend { layer, task, scratch });
}

struct Attend<'a, 'b> {
    layer: &'a Layer<'a>,
    task: Task<'b>,
    scratch: &'a mut Scratch,
}

impl Kernel for Attend<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let tiles = self.tiles();
        for tile in 0..SPAN.min(tiles) {
            self.task.kv.keys(self.task.run.pages, tile).iter().for_each(|square| prefetch_square(lanes, square));
        }
        let count = self.prepare();
        let mut first = 0;
        while first < tiles {
            let span = first..(first + SPAN).min(tiles);
            self.score(lanes, count, span.clone());
            self.weigh(count, span.clone());
            self.mix(lanes, count, span);
            first += SPAN;
        }
        self.finish(count);
    }
}

impl Attend<'_, '_> {
    fn blocks(&self) -> usize {
        self.layer.config.head_dim / LANES
    }

    /// Of the whole context.
    fn tiles(&self) -> usize {
        (self.task.position + self.task.rows.len()).div_ceil(TILE)
    }

    /// Collects the queries, normed, rotated and scaled; query `row * group + head` is that head's of a row.
    #[inline(always)]
    fn prepare(&mut self) -> usize {
        let (layer, blocks) = (self.layer, self.blocks());
        let group = layer.config.heads / layer.config.kv_heads;
        let count = self.task.rows.len() * group;
        let scratch = &mut *self.scratch;
        scratch.queries.resize(blocks * count, ZERO);
        scratch.scores.resize(SPAN * count, ZERO);
        scratch.mixed.clear();
        scratch.mixed.resize(blocks * count, ZERO);
        scratch.totals.clear();
        scratch.totals.resize(count, ZERO);
        scratch.largest.clear();
        scratch.largest.resize(count, f32::NEG_INFINITY);
        let scale = 1.0 / (layer.config.head_dim as f32).sqrt();
        let mut head = [ZERO; MOST_BLOCKS];
        let head = &mut head[..blocks];
        for index in 0..count {
            let (row, own) = (index / group, index % group);
            let first = (self.task.kv_head * group + own) * blocks;
            for (block, to) in head.iter_mut().enumerate() {
                *to = layer.queries[(first + block) * layer.rows + self.task.rows.start + row];
            }
            if let Some(gain) = layer.query_gain {
                rms_norm_one(head, gain, layer.config.norm_epsilon);
            }
            layer.rope.rotate(head, self.task.position + row);
            for (block, from) in head.iter().enumerate() {
                scratch.queries[block * count + index] = Block(from.0.map(|value| value * scale));
            }
        }
        count
    }

    /// Scores of all queries at the positions of a span.
    #[inline(always)]
    fn score<L: Lanes>(&mut self, lanes: L, count: usize, span: Range<usize>) {
        let mut at = span.start;
        if L::PANELS == 4 {
            while at + 4 <= span.end {
                self.score_tiles::<L, 4>(lanes, count, at, at - span.start);
                at += 4;
            }
        }
        while at < span.end {
            self.score_tiles::<L, 1>(lanes, count, at, at - span.start);
            at += 1;
        }
    }

    #[inline(always)]
    fn score_tiles<L: Lanes, const P: usize>(&mut self, lanes: L, count: usize, at: usize, to: usize) {
        let blocks = self.blocks();
        let task = &self.task;
        let keys: [_; P] = std::array::from_fn(|p| task.kv.keys(task.run.pages, at + p));
        let values: [_; P] = std::array::from_fn(|p| task.kv.values(task.run.pages, at + p));
        let Scratch { queries, scores, .. } = &mut *self.scratch;
        for (first, height) in tiles_of(count) {
            with_height!(height, M => {
                let zero = [[lanes.load(&ZERO); P]; M];
                let squares = |block: usize| {
                    if first == 0 {
                        values.iter().for_each(|values| prefetch_square(lanes, &values[block]));
                    }
                    std::array::from_fn(|p| &keys[p][block])
                };
                let sums = tile::<L, M, P>(lanes, &queries[first..], count, 0..blocks, LANES, squares, zero);
                for p in 0..P {
                    for m in 0..M {
                        lanes.store(sums[m][p], &mut scores[(to + p) * count + first + m]);
                    }
                }
            });
        }
    }

    /// Turns the scores of a span into weights relative to the largest so far, and scales what was summed before.
    #[inline(always)]
    fn weigh(&mut self, count: usize, span: Range<usize>) {
        let (blocks, group) = (self.blocks(), count / self.task.rows.len());
        let Scratch { scores, mixed, totals, largest, .. } = &mut *self.scratch;
        for query in 0..count {
            let position = self.task.position + query / group;
            let mut most = Block([f32::NEG_INFINITY; LANES]);
            for tile in span.clone() {
                let scores = &mut scores[(tile - span.start) * count + query];
                if tile * TILE + LANES > position + 1 {
                    for (lane, score) in scores.0.iter_mut().enumerate() {
                        *score = if tile * TILE + lane > position { f32::NEG_INFINITY } else { *score };
                    }
                }
                for lane in 0..LANES {
                    most.0[lane] = if scores.0[lane] > most.0[lane] { scores.0[lane] } else { most.0[lane] };
                }
            }
            let before = largest[query];
            let now = most.0.into_iter().fold(before, f32::max);
            largest[query] = now;
            let scale = exp(before - now);
            let mut total = Block(totals[query].0.map(|total| total * scale));
            if scale != 1.0 {
                for block in 0..blocks {
                    let mixed = &mut mixed[block * count + query];
                    *mixed = Block(mixed.0.map(|value| value * scale));
                }
            }
            for tile in 0..span.len() {
                let scores = &mut scores[tile * count + query];
                for lane in 0..LANES {
                    let below = scores.0[lane] - now;
                    let weight = if below < -87.0 { 0.0 } else { exp(below) };
                    scores.0[lane] = weight;
                    total.0[lane] += weight;
                }
            }
            totals[query] = total;
        }
    }

    /// Adds the values of a span.
    #[inline(always)]
    fn mix<L: Lanes>(&mut self, lanes: L, count: usize, span: Range<usize>) {
        let mut block = 0;
        if L::PANELS == 4 {
            while block + 4 <= self.blocks() {
                self.mix_blocks::<L, 4>(lanes, count, block, span.clone());
                block += 4;
            }
        }
        while block < self.blocks() {
            self.mix_blocks::<L, 1>(lanes, count, block, span.clone());
            block += 1;
        }
    }

    #[inline(always)]
    fn mix_blocks<L: Lanes, const P: usize>(&mut self, lanes: L, count: usize, block: usize, span: Range<usize>) {
        let task = &self.task;
        // What lies behind the task's last position was never written: it may be anything and is not touched.
        let end = task.position + task.rows.len();
        let last_steps = (end - (span.end - 1) * TILE).min(TILE);
        let tiles = self.tiles();
        let Scratch { scores, mixed, .. } = &mut *self.scratch;
        for (first, height) in tiles_of(count) {
            let values = |tile: usize| {
                let ahead = span.start + tile + SPAN;
                if first == 0 && ahead < tiles {
                    let keys = &task.kv.keys(task.run.pages, ahead)[block..block + P];
                    keys.iter().for_each(|square| prefetch_square(lanes, square));
                }
                let values = task.kv.values(task.run.pages, span.start + tile);
                std::array::from_fn(|p| &values[block + p])
            };
            with_height!(height, M => {
                let mut sums = [[lanes.load(&ZERO); P]; M];
                for p in 0..P {
                    for m in 0..M {
                        sums[m][p] = lanes.load(&mixed[(block + p) * count + first + m]);
                    }
                }
                let sums = tile::<L, M, P>(lanes, &scores[first..], count, 0..span.len(), last_steps, values, sums);
                for p in 0..P {
                    for m in 0..M {
                        lanes.store(sums[m][p], &mut mixed[(block + p) * count + first + m]);
                    }
                }
            });
        }
    }

    /// Divides by the sum of weights and hands out.
    #[inline(always)]
    fn finish(&mut self, count: usize) {
        let (blocks, group) = (self.blocks(), count / self.task.rows.len());
        let Scratch { mixed, totals, .. } = &*self.scratch;
        for query in 0..count {
            let (row, head) = (query / group, query % group);
            let scale = 1.0 / tree_sum(&totals[query]);
            for block in 0..blocks {
                let from = &mixed[block * count + query];
                self.task.out[head * blocks + block][row] = Block(from.0.map(|value| value * scale + 0.0));
            }
        }
    }
}
