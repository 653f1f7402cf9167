//! Rows of activations, laid out in blocks: `[width / 16][rows][16]`.
//!
//! In this form a tile of rows lies together for any 16 steps of an inner dimension, a panel's outputs lie together for
//! all rows (so threads can write one range of panels each), and what one product writes the next can read.

use super::lanes::{Block, LANES, ZERO};

#[derive(Clone, Debug, Default)]
pub struct Grid {
    blocks: Vec<Block>,
    rows: usize,
    width: usize,
}

impl Grid {
    #[must_use]
    pub fn new(rows: usize, width: usize) -> Self {
        let mut grid = Grid::default();
        grid.resize(rows, width);
        grid
    }

    /// Sets the shape; the values are then anything. `width` is a multiple of 16.
    pub fn resize(&mut self, rows: usize, width: usize) {
        debug_assert!(width.is_multiple_of(LANES));
        self.blocks.resize(rows * width / LANES, ZERO);
        (self.rows, self.width) = (rows, width);
    }

    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    pub fn blocks_mut(&mut self) -> &mut [Block] {
        &mut self.blocks
    }

    /// The blocks of one row, from first to last column.
    pub fn row(&self, row: usize) -> impl Iterator<Item = &Block> {
        self.blocks[row..].iter().step_by(self.rows)
    }

    /// As [`Self::row`], to write.
    pub fn row_mut(&mut self, row: usize) -> impl Iterator<Item = &mut Block> {
        self.blocks[row..].iter_mut().step_by(self.rows)
    }

    /// Becomes the named rows of another grid, in this order.
    pub fn take_rows(&mut self, from: &Grid, rows: &[usize]) {
        self.resize(rows.len(), from.width);
        if rows.is_empty() {
            return;
        }
        for (to, from) in self.blocks.chunks_exact_mut(rows.len()).zip(from.blocks.chunks_exact(from.rows)) {
            for (to, row) in to.iter_mut().zip(rows) {
                *to = from[*row];
            }
        }
    }

    /// `self += other`, of the same shape.
    pub fn add(&mut self, other: &Grid) {
        for (sum, value) in self.blocks.iter_mut().zip(&other.blocks) {
            for (sum, value) in sum.0.iter_mut().zip(value.0) {
                *sum += value;
            }
        }
    }
}
