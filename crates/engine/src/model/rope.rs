//! Rotary positions (base 10,000, halves rotated as in Llama), from a table made with exact operations.

use super::attention::HEAD_DIM;
use crate::kernels::sin_cos;

const HALF: usize = HEAD_DIM / 2;

#[derive(Debug)]
pub(crate) struct Table {
    /// `[position][sin of 8 frequencies, cos of 8 frequencies]`.
    rows: Vec<[f32; HEAD_DIM]>,
}

impl Table {
    pub(crate) fn new(positions: usize) -> Self {
        // 10000^(-i/8) = 10^(-i/2): powers of 10 and one square root, which IEEE defines to the last bit.
        let mut frequencies = [1.0f64; HALF];
        for (i, frequency) in frequencies.iter_mut().enumerate() {
            let tens = 10f64.powi((i / 2) as i32);
            *frequency = 1.0 / (if i % 2 == 0 { tens } else { tens * 10f64.sqrt() });
        }
        let rows = (0..positions)
            .map(|position| {
                let mut row = [0.0; HEAD_DIM];
                for (i, frequency) in frequencies.iter().enumerate() {
                    let (sin, cos) = sin_cos(position as f64 * frequency);
                    row[i] = sin as f32;
                    row[HALF + i] = cos as f32;
                }
                row
            })
            .collect();
        Table { rows }
    }

    /// Rotates every head of a row in place.
    pub(crate) fn rotate(&self, heads: &mut [f32], position: usize) {
        let (sin, cos) = self.rows[position].split_at(HALF);
        for head in heads.chunks_exact_mut(HEAD_DIM) {
            let (low, high) = head.split_at_mut(HALF);
            for i in 0..HALF {
                let (a, b) = (low[i], high[i]);
                low[i] = a * cos[i] - b * sin[i];
                high[i] = b * cos[i] + a * sin[i];
            }
        }
    }
}
