//! The arithmetic of the model, written so that a result never depends on its surroundings.
//!
//! Rule: every output element is summed in one fixed order that depends only on its own position. Products go over the
//! inner dimension from first to last, one accumulator per output; vector lanes are different outputs, never parts of
//! one sum. So a row's result has the same bits alone, in a batch, in any chunk. Only IEEE-exact operations are used
//! (add, multiply, divide, square root; Rust never contracts to FMA), `exp`, `sin` and `cos` are polynomials made of
//! them: the bits are also the same on every machine.

#[cfg(test)]
mod tests;

/// Vector lanes of a weight panel. Output widths must be multiples of it.
pub const LANES: usize = 16;

/// A matrix `[inputs][outputs]` stored as panels of [`LANES`] outputs: `[outputs / 16][inputs][16]`.
#[derive(Clone, Debug)]
pub struct Matrix {
    panels: Vec<f32>,
    inputs: usize,
    outputs: usize,
}

impl Matrix {
    /// `value(input, output)` is called once per element, output-major within each input row. `outputs` must be a multiple of 16.
    pub fn from_fn(inputs: usize, outputs: usize, mut value: impl FnMut(usize, usize) -> f32) -> Self {
        assert!(outputs.is_multiple_of(LANES), "matrix width {outputs} is not a multiple of {LANES}");
        let mut panels = vec![0.0; inputs * outputs];
        for input in 0..inputs {
            for output in 0..outputs {
                panels[(output / LANES * inputs + input) * LANES + output % LANES] = value(input, output);
            }
        }
        Matrix { panels, inputs, outputs }
    }

    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// One weight, for tests.
    #[cfg(test)]
    pub(crate) fn get(&self, input: usize, output: usize) -> f32 {
        self.panels[(output / LANES * self.inputs + input) * LANES + output % LANES]
    }

    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.panels.len() * size_of::<f32>()
    }

    /// `y[row] = x[row] · self` for every row. `x` is `[rows][inputs]`, `y` is `[rows][outputs]`.
    pub fn multiply(&self, x: &[f32], y: &mut [f32]) {
        let (k, n) = (self.inputs, self.outputs);
        debug_assert_eq!(x.len() / k, y.len() / n);
        let (panels, _) = self.panels.as_chunks::<LANES>();
        // The panel stays in the first-level cache over all rows; two rows share every weight that is loaded.
        for (index, panel) in panels.chunks_exact(k).enumerate() {
            let at = index * LANES;
            let mut xs = x.chunks_exact(2 * k);
            let mut ys = y.chunks_exact_mut(2 * n);
            for (x2, y2) in (&mut xs).zip(&mut ys) {
                let (x0, x1) = x2.split_at(k);
                let (a, b) = dot_two(panel, x0, x1);
                y2[at..at + LANES].copy_from_slice(&a);
                y2[n + at..n + at + LANES].copy_from_slice(&b);
            }
            for (x0, y0) in xs.remainder().chunks_exact(k).zip(ys.into_remainder().chunks_exact_mut(n)) {
                let mut a = [0.0f32; LANES];
                for (w, p) in panel.iter().zip(x0) {
                    add_scaled(&mut a, *p, w);
                }
                y0[at..at + LANES].copy_from_slice(&a);
            }
        }
    }
}

#[inline]
fn dot_two(panel: &[[f32; LANES]], x0: &[f32], x1: &[f32]) -> ([f32; LANES], [f32; LANES]) {
    let (mut a, mut b) = ([0.0f32; LANES], [0.0f32; LANES]);
    for ((w, p), q) in panel.iter().zip(x0).zip(x1) {
        add_scaled(&mut a, *p, w);
        add_scaled(&mut b, *q, w);
    }
    (a, b)
}

/// `sums += factor * row`, lane by lane.
#[inline(always)]
pub fn add_scaled(sums: &mut [f32; LANES], factor: f32, row: &[f32; LANES]) {
    for lane in 0..LANES {
        sums[lane] += factor * row[lane];
    }
}

/// Sum of a slice whose length is a multiple of [`LANES`]: 16 running sums, then a fixed tree.
#[must_use]
pub fn sum(values: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for block in values.chunks_exact(LANES) {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane += value;
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// `y = x / rms(x) * gain`, row by row.
pub fn rms_norm(x: &[f32], gain: &[f32], y: &mut [f32]) {
    let width = gain.len();
    for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x * x;
        }
        let scale = 1.0 / (sum(y) / width as f32 + 1e-6).sqrt();
        for ((y, x), gain) in y.iter_mut().zip(x).zip(gain) {
            *y = x * scale * gain;
        }
    }
}

/// `e^x` within 2 ulp for -87 <= x <= 88, clamped outside. Branch-free, so that loops over it vectorise.
#[must_use]
#[inline]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer in the low bits
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4; // ln 2 in two parts
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let p = p * r * r + r + 1.0;
    let power = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    p * f32::from_bits(power)
}

/// `gate = silu(gate) * up`.
pub fn swiglu(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

/// `(sin, cos)` of a non-negative angle in radians, by reduction to an eighth of a turn and Taylor series in f64.
#[must_use]
pub fn sin_cos(angle: f64) -> (f64, f64) {
    let quarter = std::f64::consts::FRAC_PI_2;
    let turns = (angle / quarter).round();
    let r = angle - turns * quarter;
    let r2 = r * r;
    let (mut sin, mut cos) = (0.0, 0.0);
    for i in (0..10u32).rev() {
        // Horner form of sum (-1)^i r^2i / (2i)! and of its odd twin.
        let even = f64::from((2 * i + 1) * (2 * i + 2));
        let odd = f64::from((2 * i + 2) * (2 * i + 3));
        cos = 1.0 - r2 / even * (if i == 9 { 1.0 } else { cos });
        sin = 1.0 - r2 / odd * (if i == 9 { 1.0 } else { sin });
    }
    let sin = sin * r;
    match turns as u64 % 4 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}
