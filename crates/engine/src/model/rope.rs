//! Rotary positions: halves rotated as in Llama and Qwen, from a table made with exact operations.
//!
//! Frequencies and angles are rounded to f32 where PyTorch's `transformers` rounds them (exponent, power, reciprocal,
//! angle): at position 2000 an angle that was not rounded would differ by 1e-4, and weights were trained with the
//! rounded ones. What is exact is how each of these numbers is computed.

use crate::kernels::exact::{pow, sin_cos};
use crate::kernels::{Block, LANES};

/// How positions turn queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    pub scaling: Scaling,
}

/// How frequencies are stretched for contexts longer than those of the first training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    None,
    /// All by the same factor.
    Linear {
        factor: f64,
    },
    /// Long waves by `factor`, short ones not, those between smoothly (Llama 3.1).
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_context_tokens: f64,
    },
}

impl Default for Rope {
    fn default() -> Self {
        Rope { theta: 10_000.0, scaling: Scaling::None }
    }
}

impl Rope {
    /// The frequency of each pair of dimensions, in radians per position: `head_dim / 2` of them.
    #[must_use]
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let frequency = |pair: usize| {
            let exponent = (2 * pair) as f32 / head_dim as f32;
            let plain = 1.0 / pow(self.theta, f64::from(exponent)) as f32;
            self.scaling.stretch(plain)
        };
        (0..head_dim / 2).map(frequency).collect()
    }
}

impl Scaling {
    fn stretch(self, plain: f32) -> f32 {
        match self {
            Scaling::None => plain,
            Scaling::Linear { factor } => plain / factor as f32,
            Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_tokens } => {
                let (factor, old) = (factor as f32, original_context_tokens as f32);
                let (low, high) = (low_freq_factor as f32, high_freq_factor as f32);
                let wave = std::f32::consts::TAU / plain;
                if wave < old / high {
                    return plain;
                }
                if wave > old / low {
                    return plain / factor;
                }
                let smooth = (old / wave - low) / (high - low);
                (1.0 - smooth) * plain / factor + smooth * plain
            }
        }
    }
}

/// Sines and cosines of the positions that were needed so far.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    frequencies: Vec<f32>,
    /// `[position][sines, cosines]`, `head_dim / 2` of each.
    rows: Vec<f32>,
}

/// Positions are added in steps of this, so that a step is never held up for long.
const GROWTH: usize = 256;

impl Table {
    pub(crate) fn new(rope: &Rope, head_dim: usize) -> Self {
        Table { frequencies: rope.frequencies(head_dim), rows: Vec::new() }
    }

    /// Makes sure that positions below `positions` are there.
    pub(crate) fn grow(&mut self, positions: usize) {
        let half = self.frequencies.len();
        let known = self.rows.len() / (2 * half).max(1);
        if positions <= known {
            return;
        }
        for position in known..positions.next_multiple_of(GROWTH) {
            let at = self.rows.len();
            self.rows.resize(at + 2 * half, 0.0);
            let (sines, cosines) = self.rows[at..].split_at_mut(half);
            for ((sine, cosine), frequency) in sines.iter_mut().zip(cosines).zip(&self.frequencies) {
                let (sin, cos) = sin_cos(f64::from(position as f32 * frequency));
                (*sine, *cosine) = (sin as f32, cos as f32);
            }
        }
    }

    /// Rotates one head in place; its position must have been grown to.
    #[inline(always)]
    pub(crate) fn rotate(&self, head: &mut [Block], position: usize) {
        let half = self.frequencies.len();
        let (sin, cos) = self.rows[position * 2 * half..][..2 * half].split_at(half);
        if half.is_multiple_of(LANES) {
            let (low, high) = head.split_at_mut(half / LANES);
            let (sin, cos) = (sin.as_chunks::<LANES>().0, cos.as_chunks::<LANES>().0);
            for (((low, high), sin), cos) in low.iter_mut().zip(high).zip(sin).zip(cos) {
                for lane in 0..LANES {
                    (low.0[lane], high.0[lane]) = turn(low.0[lane], high.0[lane], sin[lane], cos[lane]);
                }
            }
            return;
        }
        for pair in 0..half {
            let (low, high) = (pair, pair + half);
            let (a, b) = (head[low / LANES].0[low % LANES], head[high / LANES].0[high % LANES]);
            let (a, b) = turn(a, b, sin[pair], cos[pair]);
            (head[low / LANES].0[low % LANES], head[high / LANES].0[high % LANES]) = (a, b);
        }
    }
}

#[inline(always)]
fn turn(low: f32, high: f32, sin: f32, cos: f32) -> (f32, f32) {
    (low * cos - high * sin, high * cos + low * sin)
}
