//! Least squares for three unknowns, one sample at a time: forgetting, robust, never negative.
//!
//! Kept in information form (`A = sum w x x'`, `b = sum w x y`), where each wish is one line:
//! - *forgetting:* with every sample `A` and `b` fade towards those of the prior, not towards nothing. So what the traffic does not
//!   excite (all prompts equally long, say) rests at the prior, and nothing winds up and explodes when it changes;
//! - *relative:* a sample weighs by its expected size, since the noise of times grows with them;
//! - *robust:* a sample further off than [`CLIP`] times the usual weighs as if it were just so far off (Huber). If samples stay
//!   off, "usual" grows with them, and the model follows;
//! - *never negative:* time does not shrink with work. Of the eight sets of unknowns that may be zero, the solution is the one
//!   that fits best with the rest positive (non-negative least squares, exactly, as three are few).
//!
//! The textbook's covariance form is the same without the division by a nearly singular matrix.

/// Unknowns.
pub(super) const N: usize = 3;

/// What remains of a sample after the next. Its weight is down to a third after 200.
const FADE: f64 = 0.995;
/// Samples that the prior is worth at the start; fading keeps it at the same.
const PRIOR_SAMPLES: f64 = 0.1;
/// Residuals beyond so many usual ones are outliers.
const CLIP: f64 = 2.5;
/// How fast the usual residual follows.
const SPREAD_GAIN: f64 = 0.1;
/// Usual residual at the start and at the least, as a share.
const SPREAD_START: f64 = 1.0;
const SPREAD_LEAST: f64 = 0.01;

#[derive(Clone, Debug)]
pub(super) struct LeastSquares {
    /// Features are divided by it.
    scale: [f64; N],
    prior: [f64; N],
    a: [[f64; N]; N],
    b: [f64; N],
    /// Solution in scaled units.
    theta: [f64; N],
    /// Usual relative residual.
    spread: f64,
    error: Option<f64>,
    samples: u64,
}

/// The prediction that a sample was held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Learnt {
    pub predicted: f64,
}

impl LeastSquares {
    pub(super) fn new(prior: [f64; N], scale: [f64; N]) -> Self {
        let theta = std::array::from_fn(|i| clean(prior[i] * scale[i]));
        LeastSquares {
            scale,
            prior: theta,
            a: [[0.0; N]; N],
            b: [0.0; N],
            theta,
            spread: SPREAD_START,
            error: None,
            samples: 0,
        }
    }

    pub(super) fn set_prior(&mut self, prior: [f64; N]) {
        self.prior = std::array::from_fn(|i| clean(prior[i] * self.scale[i]));
        self.solve();
    }

    /// Learns that `features` took `seconds`.
    pub(super) fn learn(&mut self, features: [f64; N], seconds: f64) -> Learnt {
        let x: [f64; N] = std::array::from_fn(|i| features[i] / self.scale[i]);
        let predicted = dot(&self.theta, &x);
        // A prior that is off by far must not decide by how much this sample weighs.
        let size = predicted.clamp(seconds / 4.0, seconds * 4.0).max(1e-6);
        let residual = (seconds - predicted).abs() / size;
        let usual = CLIP * self.spread;
        let weight = if residual > usual { usual / residual } else { 1.0 } / (size * size);
        for i in 0..N {
            for j in 0..N {
                self.a[i][j] = FADE * self.a[i][j] + weight * x[i] * x[j];
            }
            self.b[i] = FADE * self.b[i] + weight * x[i] * seconds;
        }
        self.spread = (self.spread + SPREAD_GAIN * (residual.min(usual) - self.spread)).max(SPREAD_LEAST);
        let off = (seconds - predicted).abs() / seconds.max(1e-9);
        self.error = Some(self.error.map_or(off, |error| error + SPREAD_GAIN * (off.min(10.0) - error)));
        self.samples += 1;
        self.solve();
        Learnt { predicted }
    }

    pub(super) fn coefficients(&self) -> [f64; N] {
        std::array::from_fn(|i| self.theta[i] / self.scale[i])
    }

    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    pub(super) fn error_ratio(&self) -> Option<f64> {
        self.error
    }

    fn solve(&mut self) {
        // The prior as samples of each unknown alone, as large as the prior says that a typical feature is.
        let typical = self.prior.iter().sum::<f64>().max(1e-6);
        let ridge = PRIOR_SAMPLES / (typical * typical);
        let mut a = self.a;
        let mut b = self.b;
        for i in 0..N {
            a[i][i] += ridge;
            b[i] += ridge * self.prior[i];
        }
        let mut best: Option<(f64, [f64; N])> = None;
        for free in 1u8..1 << N {
            let Some(theta) = solve_free(&a, &b, free) else { continue };
            if theta.iter().any(|t| *t < 0.0 || !t.is_finite()) {
                continue;
            }
            // At a solution the loss is smaller by `b . theta` than that of all zeros.
            let gain = dot(&b, &theta);
            if best.is_none_or(|(most, _)| gain > most) {
                best = Some((gain, theta));
            }
        }
        if let Some((_, theta)) = best {
            self.theta = theta;
        }
    }
}

/// Solves for the unknowns in the set `free`, the others being zero. `None` where it cannot be solved.
fn solve_free(a: &[[f64; N]; N], b: &[f64; N], free: u8) -> Option<[f64; N]> {
    let is_free = |i: usize| free & (1 << i) != 0;
    // A row of the identity stands for an unknown that is zero.
    let mut m = [[0.0; N + 1]; N];
    for i in 0..N {
        for j in 0..N {
            m[i][j] = match (is_free(i), is_free(j)) {
                (true, true) => a[i][j],
                _ if i == j => 1.0,
                _ => 0.0,
            };
        }
        m[i][N] = if is_free(i) { b[i] } else { 0.0 };
    }
    for k in 0..N {
        let pivot = (k..N).max_by(|i, j| m[*i][k].abs().total_cmp(&m[*j][k].abs()))?;
        m.swap(k, pivot);
        if m[k][k].abs() < f64::MIN_POSITIVE {
            return None;
        }
        for i in k + 1..N {
            let factor = m[i][k] / m[k][k];
            let above = m[k];
            m[i].iter_mut().zip(above).for_each(|(own, above)| *own -= factor * above);
        }
    }
    let mut theta = [0.0; N];
    for i in (0..N).rev() {
        let rest: f64 = (i + 1..N).map(|j| m[i][j] * theta[j]).sum();
        theta[i] = (m[i][N] - rest) / m[i][i];
    }
    Some(theta)
}

fn dot(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn clean(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}
