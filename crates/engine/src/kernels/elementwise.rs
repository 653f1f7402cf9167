//! What happens between products: norms and the activation, element by element or along one row.

use super::grid::Grid;
use super::lanes::{Block, Isa, Kernel, LANES, Lanes, ZERO};
use crate::team::Team;

/// Sum of sixteen, as a fixed tree.
#[must_use]
#[inline(always)]
pub fn tree_sum(block: &Block) -> f32 {
    let mut lanes = block.0;
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// `e^x` within 2 ulp for -87 <= x <= 88, clamped outside. Branch-free, so that loops over it vectorise.
#[must_use]
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer in the low bits
    let x = x.clamp(-87.0, 88.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(2.121_944_4e-4, n.mul_add(-0.693_359_4, x)); // ln 2 in two parts
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul_add(r, c);
    }
    let p = (p * r).mul_add(r, r) + 1.0;
    let power = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    p * f32::from_bits(power)
}

/// `y = x / rms(x) * gain`, row by row; `gain` is `[width]` in blocks. Squares are added up in 16 lanes by column modulo
/// 16, from first to last, then as a tree.
pub fn rms_norm(isa: Isa, x: &Grid, gain: &[Block], epsilon: f32, y: &mut Grid) {
    y.resize(x.rows(), x.width());
    if x.rows() > 0 {
        let mut scales = vec![ZERO; x.rows()];
        isa.run(RmsNorm { x: x.blocks(), gain, epsilon, y: y.blocks_mut(), scales: &mut scales });
    }
}

struct RmsNorm<'a> {
    x: &'a [Block],
    gain: &'a [Block],
    epsilon: f32,
    y: &'a mut [Block],
    /// `[rows]`: running sums of squares, then the scale of each row in lane 0.
    scales: &'a mut [Block],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let RmsNorm { x, gain, epsilon, y, scales } = self;
        let rows = scales.len();
        let width = (gain.len() * LANES) as f32;
        for column in x.chunks_exact(rows) {
            for (sums, x) in scales.iter_mut().zip(column) {
                *sums = add_squares(sums, x);
            }
        }
        for sums in scales.iter_mut() {
            sums.0[0] = 1.0 / (tree_sum(sums) / width + epsilon).sqrt();
        }
        for ((column, y), gain) in x.chunks_exact(rows).zip(y.chunks_exact_mut(rows)).zip(gain) {
            for ((x, y), scale) in column.iter().zip(y).zip(scales.iter()) {
                *y = scaled(x, scale.0[0], gain);
            }
        }
    }
}

#[inline(always)]
fn add_squares(sums: &Block, x: &Block) -> Block {
    Block(std::array::from_fn(|lane| x.0[lane].mul_add(x.0[lane], sums.0[lane])))
}

#[inline(always)]
fn scaled(x: &Block, scale: f32, gain: &Block) -> Block {
    Block(std::array::from_fn(|lane| x.0[lane] * scale * gain.0[lane]))
}

/// As [`rms_norm`], in place, for one vector of up to 256 dimensions: a head of a query or key.
#[inline(always)]
pub(crate) fn rms_norm_one(x: &mut [Block], gain: &[Block], epsilon: f32) {
    let sums = x.iter().fold(ZERO, |sums, x| add_squares(&sums, x));
    let scale = 1.0 / (tree_sum(&sums) / (x.len() * LANES) as f32 + epsilon).sqrt();
    for (x, gain) in x.iter_mut().zip(gain) {
        *x = scaled(x, scale, gain);
    }
}

/// Values below which a share of the activation is not worth a second thread.
const WORTH_SHARING: usize = 1 << 16;

/// `out = silu(gate) * up`, where `both` has the gate's columns and then those of `up`.
pub fn swiglu(isa: Isa, team: &Team, both: &Grid, out: &mut Grid) {
    out.resize(both.rows(), both.width() / 2);
    let (gate, up) = both.blocks().split_at(both.blocks().len() / 2);
    if gate.is_empty() {
        return;
    }
    let share = gate.len().div_ceil(team.parts(gate.len() * LANES, WORTH_SHARING));
    let tasks = gate.chunks(share).zip(up.chunks(share)).zip(out.blocks_mut().chunks_mut(share)).collect();
    team.each(tasks, |(), ((gate, up), out)| isa.run(SwiGlu { gate, up, out }));
}

struct SwiGlu<'a> {
    gate: &'a [Block],
    up: &'a [Block],
    out: &'a mut [Block],
}

impl Kernel for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        for ((gate, up), out) in self.gate.iter().zip(self.up).zip(self.out) {
            for lane in 0..LANES {
                let gate = gate.0[lane];
                out.0[lane] = gate / (1.0 + exp(-gate)) * up.0[lane];
            }
        }
    }
}
