//! How long an instance takes for a prefill and for a decode step, learnt while it serves (`design/load.md`).
//!
//! Whether a deadline can be met has to be known before the request is sent. Peers ship offline profiles, which know
//! neither this machine nor this release, or a service that trains trees; two small linear models do, because engine time
//! is close to linear in the right quantities:
//!
//! - `prefill = p0 + p1*u + p2*u*(h + u/2)`: a fixed part, the dense layers per uncached token, and attention of each uncached
//!   token to all before it (`u` uncached, `h` cached tokens);
//! - `step = a + b*batch + c*kv_tokens`: reading the weights, work per sequence, reading the KV cache.
//!
//! Only what is clean teaches. A prefill sample is a stream in front of which nothing else was prefilled; a decode
//! sample is a stream's mean time between tokens with the load of its rank at both its ends. Under overload clean prefills
//! become rare, and the model stays at what it has learnt.

mod least_squares;
#[cfg(test)]
mod tests;

use least_squares::{Learnt, LeastSquares, N};
use plimsoll_core::Nanos;
use serde::Serialize;

/// Samples before a model is believed more than its peers.
pub const ENOUGH: u64 = 16;

/// Typical sizes, so that the three unknowns of a model are of one order of magnitude.
const PREFILL_SCALE: [f64; N] = [1.0, 1e3, 1e7];
const DECODE_SCALE: [f64; N] = [1.0, 8.0, 1e5];

/// What is taken for true before anything is measured, in seconds per unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Coefficients {
    /// `p0`, `p1`, `p2`: per prefill, per uncached token, per pair of an uncached token and one that it attends to.
    pub prefill: [f64; N],
    /// `a`, `b`, `c`: per step, per sequence, per KV token.
    pub decode: [f64; N],
}

impl Coefficients {
    /// From the assumed prefill rate; the rest as a large model on one current accelerator has it, to the order of
    /// magnitude: 8 ms to read the weights, 50 us a sequence, 10 ns a KV token.
    #[must_use]
    pub fn assumed(prefill_tokens_per_s: f64) -> Self {
        Coefficients { prefill: [0.02, 1.0 / prefill_tokens_per_s.max(1.0), 0.0], decode: [0.008, 5e-5, 1e-8] }
    }

    /// Seconds for `uncached_tokens` behind `hit_tokens`.
    #[must_use]
    pub fn prefill_s(&self, uncached_tokens: u64, hit_tokens: u64) -> f64 {
        dot(&self.prefill, &prefill_features(uncached_tokens, hit_tokens))
    }

    /// Seconds for one step.
    #[must_use]
    pub fn step_s(&self, batch: f64, kv_tokens: f64) -> f64 {
        dot(&self.decode, &[1.0, batch, kv_tokens])
    }

    /// The middle of each coefficient over several instances; `None` for none.
    #[must_use]
    pub fn median(of: &[Coefficients]) -> Option<Coefficients> {
        let middle = |pick: &dyn Fn(&Coefficients) -> f64| {
            let mut values: Vec<f64> = of.iter().map(pick).collect();
            crate::prefill_rate::median(&mut values)
        };
        (!of.is_empty()).then(|| Coefficients {
            prefill: std::array::from_fn(|i| middle(&|c| c.prefill[i])),
            decode: std::array::from_fn(|i| middle(&|c| c.decode[i])),
        })
    }
}

fn prefill_features(uncached_tokens: u64, hit_tokens: u64) -> [f64; N] {
    let (u, h) = (uncached_tokens as f64, hit_tokens as f64);
    [1.0, u, u * (h + u / 2.0)]
}

fn dot(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// What came of one sample: the prediction made before it was learnt from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    pub predicted: Nanos,
    pub observed: Nanos,
}

impl Judged {
    /// How far off the prediction was, as a share of what was observed.
    #[must_use]
    pub fn error_ratio(&self) -> f64 {
        (self.predicted.0 as f64 - self.observed.0 as f64).abs() / (self.observed.0 as f64).max(1.0)
    }
}

/// Both models of one instance.
#[derive(Clone, Debug)]
pub struct LatencyModel {
    prefill: LeastSquares,
    decode: LeastSquares,
}

impl LatencyModel {
    /// Nothing measured yet: predicts what `prior` says.
    #[must_use]
    pub fn new(prior: &Coefficients) -> Self {
        LatencyModel {
            prefill: LeastSquares::new(prior.prefill, PREFILL_SCALE),
            decode: LeastSquares::new(prior.decode, DECODE_SCALE),
        }
    }

    /// Takes what peers have learnt for what is taken for true. Counts where there are few samples, or none of a kind.
    pub fn set_prior(&mut self, prior: &Coefficients) {
        self.prefill.set_prior(prior.prefill);
        self.decode.set_prior(prior.decode);
    }

    /// A prefill that had the instance to itself. `None`: a sample without tokens or time teaches nothing.
    pub fn observe_prefill(&mut self, uncached_tokens: u64, hit_tokens: u64, elapsed: Nanos) -> Option<Judged> {
        if uncached_tokens == 0 || elapsed == Nanos::ZERO {
            return None;
        }
        let learnt = self.prefill.learn(prefill_features(uncached_tokens, hit_tokens), elapsed.as_secs_f64());
        Some(judged(learnt, elapsed))
    }

    /// The mean step of a stream, in a batch of `batch` sequences that held `kv_tokens`.
    pub fn observe_step(&mut self, batch: f64, kv_tokens: f64, step: Nanos) -> Option<Judged> {
        if !(batch.is_finite() && kv_tokens.is_finite() && batch >= 1.0 && kv_tokens >= 0.0) || step == Nanos::ZERO {
            return None;
        }
        Some(judged(self.decode.learn([1.0, batch, kv_tokens], step.as_secs_f64()), step))
    }

    #[must_use]
    pub fn coefficients(&self) -> Coefficients {
        Coefficients { prefill: self.prefill.coefficients(), decode: self.decode.coefficients() }
    }

    /// Samples learnt from: prefills, steps.
    #[must_use]
    pub fn samples(&self) -> (u64, u64) {
        (self.prefill.samples(), self.decode.samples())
    }

    /// Recent error of predictions made before their sample was learnt, as a share; `None` before the first.
    #[must_use]
    pub fn error_ratios(&self) -> (Option<f64>, Option<f64>) {
        (self.prefill.error_ratio(), self.decode.error_ratio())
    }

    /// Time to first token on this instance with nothing else to do.
    #[must_use]
    pub fn prefill(&self, uncached_tokens: u64, hit_tokens: u64) -> Nanos {
        Nanos::from_secs_f64(self.coefficients().prefill_s(uncached_tokens, hit_tokens))
    }

    /// Time of one decode step.
    #[must_use]
    pub fn step(&self, batch: f64, kv_tokens: f64) -> Nanos {
        Nanos::from_secs_f64(self.coefficients().step_s(batch, kv_tokens))
    }
}

fn judged(learnt: Learnt, observed: Nanos) -> Judged {
    Judged { predicted: Nanos::from_secs_f64(learnt.predicted), observed }
}
