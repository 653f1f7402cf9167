//! A weight matrix in panels, and its product with rows laid out in blocks.

use super::grid::Grid;
use super::lanes::{Block, Isa, Kernel, LANES, Lanes, Square, ZERO, prefetch_share};
use super::tile::{ROWS, tile, tiles_of, with_height};
use crate::team::Team;
use std::ops::Range;

/// A matrix `[inputs][outputs]` stored as panels of 16 outputs: `[outputs / 16][inputs / 16]` squares of
/// `[16 inputs][16 outputs]`. Both widths are multiples of 16.
#[derive(Clone)]
pub struct Matrix {
    squares: Vec<Square>,
    inputs: usize,
    outputs: usize,
    /// Added to every row; `[outputs]` in blocks.
    bias: Option<Vec<Block>>,
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} x {})", self.inputs, self.outputs)
    }
}

/// Multiply-adds below which a product is not worth a second thread.
const WORTH_SHARING: usize = 1 << 19;

impl Matrix {
    /// All zero, without bias.
    ///
    /// # Panics
    /// When a width is no multiple of 16.
    #[must_use]
    pub fn new(inputs: usize, outputs: usize) -> Self {
        assert!(inputs.is_multiple_of(LANES) && outputs.is_multiple_of(LANES), "widths must be multiples of {LANES}");
        Matrix { squares: vec![[ZERO; LANES]; inputs / LANES * outputs / LANES], inputs, outputs, bias: None }
    }

    /// `value(input, output)` is called once per element, output-major within each input row.
    pub fn from_fn(inputs: usize, outputs: usize, mut value: impl FnMut(usize, usize) -> f32) -> Self {
        let mut matrix = Matrix::new(inputs, outputs);
        for input in 0..inputs {
            for output in 0..outputs {
                *matrix.at(input, output) = value(input, output);
            }
        }
        matrix
    }

    /// Matrices of the same input, their outputs side by side.
    ///
    /// # Panics
    /// When the inputs differ, or only some have a bias.
    #[must_use]
    pub fn beside(parts: Vec<Matrix>) -> Self {
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or_else(|| Matrix::new(0, 0));
        for part in parts {
            assert_eq!(all.inputs, part.inputs, "inputs differ");
            all.squares.extend_from_slice(&part.squares);
            all.outputs += part.outputs;
            match (&mut all.bias, part.bias) {
                (Some(bias), Some(more)) => bias.extend(more),
                (None, None) => {}
                _ => panic!("only some parts have a bias"),
            }
        }
        all
    }

    /// Sets the weights of one output from its row in the transposed form `[outputs][inputs]`, in which files have it.
    pub fn set_output(&mut self, output: usize, weights: impl IntoIterator<Item = f32>) {
        let blocks = self.inputs / LANES;
        let panel = &mut self.squares[output / LANES * blocks..][..blocks];
        for (row, weight) in panel.as_flattened_mut().iter_mut().zip(weights) {
            row.0[output % LANES] = weight;
        }
    }

    /// The weights of one output, in the order of the inputs.
    pub fn output(&self, output: usize) -> impl Iterator<Item = f32> {
        let blocks = self.inputs / LANES;
        self.squares[output / LANES * blocks..][..blocks].as_flattened().iter().map(move |row| row.0[output % LANES])
    }

    pub fn set_bias(&mut self, bias: &[f32]) {
        let mut blocks = vec![ZERO; self.outputs / LANES];
        for (index, value) in bias.iter().enumerate() {
            blocks[index / LANES].0[index % LANES] = *value;
        }
        self.bias = Some(blocks);
    }

    #[must_use]
    pub fn bias(&self) -> Option<Vec<f32>> {
        self.bias.as_ref().map(|blocks| blocks.iter().flat_map(|block| block.0).collect())
    }

    fn at(&mut self, input: usize, output: usize) -> &mut f32 {
        let square = output / LANES * (self.inputs / LANES) + input / LANES;
        &mut self.squares[square][input % LANES].0[output % LANES]
    }

    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    #[must_use]
    pub fn len_bytes(&self) -> usize {
        size_of_val(self.squares.as_slice()) + self.bias.as_ref().map_or(0, |bias| size_of_val(bias.as_slice()))
    }

    /// `y[row] = x[row] · self + bias` for every row; `y` gets the rows of `x`.
    pub fn multiply(&self, isa: Isa, team: &Team, x: &Grid, y: &mut Grid) {
        let rows = x.rows();
        debug_assert_eq!(x.width(), self.inputs);
        y.resize(rows, self.outputs);
        if rows == 0 {
            return;
        }
        let panels = self.outputs / LANES;
        let work = rows * self.inputs * self.outputs;
        let parts = team.parts(work, WORTH_SHARING).min(panels.div_ceil(4));
        // Whole groups of four panels, so that a cut costs nothing.
        let share = panels.div_ceil(parts).next_multiple_of(4);
        let tasks = y.blocks_mut().chunks_mut(share * rows).enumerate().collect();
        team.each(tasks, |(), (index, y)| {
            let first = index * share;
            let product = Product { matrix: self, x: x.blocks(), rows, panels: first..first + y.len() / rows, y };
            isa.run(product);
        });
    }
}

/// One thread's share of a product: some panels, all rows.
struct Product<'a> {
    matrix: &'a Matrix,
    x: &'a [Block],
    rows: usize,
    panels: Range<usize>,
    /// `[panels][rows]`.
    y: &'a mut [Block],
}

/// Weights that are needed next, and the share of them that a tile asks for.
#[derive(Clone, Copy)]
struct Ahead<'a, const P: usize> {
    panels: &'a [Option<&'a [Square]>; P],
    share: (usize, usize),
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let (from, to) = (self.panels.start, self.panels.end);
        let mut panel = from;
        if L::PANELS == 4 {
            while panel + 4 <= to {
                self.group::<L, 4>(lanes, panel);
                panel += 4;
            }
        }
        while panel < to {
            self.group::<L, 1>(lanes, panel);
            panel += 1;
        }
    }
}

impl<'a> Product<'a> {
    /// All rows of `P` panels. A stretch of the weights stays in the first cache while all tiles of rows use it, and each
    /// of these asks for its share of the next one: a processor waits for few lines at a time, so weights that one tile
    /// asks for alone come no faster while the others compute (half as fast again at 16 rows, from memory).
    #[inline(always)]
    fn group<L: Lanes, const P: usize>(&mut self, lanes: L, panel: usize) {
        let (rows, blocks) = (self.rows, self.matrix.inputs / LANES);
        let own: [&[Square]; P] = std::array::from_fn(|p| &self.matrix.squares[(panel + p) * blocks..][..blocks]);
        let stretch = if rows <= ROWS {
            blocks
        } else if rows <= 48 {
            4
        } else {
            8
        };
        let mut start = 0;
        while start < blocks {
            let inner = start..(start + stretch).min(blocks);
            let ahead = if rows > ROWS { self.after(&inner, panel, stretch) } else { [None; P] };
            for (index, (row, height)) in tiles_of(rows).enumerate() {
                let ahead = Ahead { panels: &ahead, share: (index, rows.div_ceil(ROWS)) };
                with_height!(height, M => self.tile::<L, M, P>(lanes, panel, row, inner.clone(), &own, ahead));
            }
            start += stretch;
        }
    }

    /// For each panel what follows its stretch `inner`: the next one, or the first of the panel that takes its place.
    #[inline(always)]
    fn after<const P: usize>(&self, inner: &Range<usize>, panel: usize, stretch: usize) -> [Option<&'a [Square]>; P] {
        let blocks = self.matrix.inputs / LANES;
        let (panel, from) = if inner.end < blocks { (panel, inner.end) } else { (panel + P, 0) };
        let length = stretch.min(blocks - from);
        std::array::from_fn(|p| {
            let first = (panel + p) * blocks + from;
            (panel + p < self.panels.end).then(|| &self.matrix.squares[first..first + length])
        })
    }

    #[inline(always)]
    fn tile<L: Lanes, const M: usize, const P: usize>(
        &mut self,
        lanes: L,
        panel: usize,
        row: usize,
        inner: Range<usize>,
        squares: &[&[Square]; P],
        ahead: Ahead<'_, P>,
    ) {
        let rows = self.rows;
        let at = |p: usize| (panel + p - self.panels.start) * rows + row;
        let mut sums = [[lanes.load(&ZERO); P]; M];
        for p in 0..P {
            let bias = self.matrix.bias.as_ref().map(|bias| bias[panel + p]);
            for (m, sums) in sums.iter_mut().enumerate() {
                if inner.start > 0 {
                    sums[p] = lanes.load(&self.y[at(p) + m]);
                } else if let Some(bias) = &bias {
                    sums[p] = lanes.load(bias);
                }
            }
        }
        let x = &self.x[row..];
        let first = inner.start;
        let own = |block: usize| {
            for square in ahead.panels.iter().flatten().filter_map(|panel| panel.get(block - first)) {
                prefetch_share(lanes, square, ahead.share);
            }
            std::array::from_fn(|p| &squares[p][block])
        };
        let sums = tile(lanes, x, rows, inner, LANES, own, sums);
        for p in 0..P {
            for (m, sums) in sums.iter().enumerate() {
                lanes.store(sums[p], &mut self.y[at(p) + m]);
            }
        }
    }
}
