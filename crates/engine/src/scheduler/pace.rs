//! How fast this engine computes, from its own steps.
//!
//! A step takes a fixed time and a time per token, so a straight line is fitted to recent steps (least squares, older
//! steps count less). Two lines: steps with prefill by their prefill tokens, steps without by their batch. They serve to
//! refuse requests that would be late, so they must never say longer than it takes for lack of knowledge:
//! - nothing seen lately is no figure at all, and a figure is forgotten after a while, or an engine that was slow once
//!   would refuse everybody and never learn better;
//! - steps of nearly one size tell nothing about the slope: then smaller ones are taken to be proportionally faster and
//!   larger ones not to be slower;
//! - beyond the largest step seen the line is flat.

use plimsoll_core::Nanos;

#[cfg(test)]
mod tests;

/// A figure without a new observation for this long is unknown.
const HORIZON: Nanos = Nanos::from_secs(10);
/// What is left of a step's weight after the next one.
const KEPT: f64 = 0.95;
/// And of the largest size seen.
const KEPT_LARGEST: f64 = 0.99;
/// The slope counts when sizes spread by this share of their mean.
const SPREAD: f64 = 0.5;

#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    prefill: Line,
    decode: Line,
}

impl Pace {
    /// A step of `prefill_tokens` and `decoding` sequences ended at `now` and took so long.
    pub(crate) fn observe(&mut self, now: Nanos, prefill_tokens: usize, decoding: usize, took: Nanos) {
        if prefill_tokens > 0 {
            self.prefill.observe(now, prefill_tokens as f64, took.0 as f64);
        } else if decoding > 0 {
            self.decode.observe(now, decoding as f64, took.0 as f64);
        }
    }

    /// How long a step with so many prefill tokens takes, in nanoseconds.
    pub(crate) fn prefill_step_ns(&self, now: Nanos, tokens: usize) -> Option<f64> {
        self.prefill.at(now, tokens as f64)
    }

    /// How long a step takes that gives each of so many sequences a token.
    pub(crate) fn decode_step(&self, now: Nanos, batch: usize) -> Option<Nanos> {
        self.decode.at(now, batch as f64).map(|ns| Nanos(ns as u64))
    }

    /// The most prefill tokens that a step can compute in `time`; `None` when no limit is known. Where the slope cannot be
    /// told, in proportion to the steps seen: unlike a refusal, a smaller chunk than needed costs little.
    pub(crate) fn prefill_within(&self, now: Nanos, time: Nanos) -> Option<usize> {
        let (fixed, slope) = self.prefill.fit(now)?;
        let time = time.0 as f64;
        match slope {
            None => Some((self.prefill.n / self.prefill.weight * time / fixed.max(1.0)) as usize),
            Some(slope) => (slope > 0.0).then(|| ((time - fixed) / slope).max(0.0) as usize),
        }
    }
}

/// Weighted sums of sizes and times.
#[derive(Clone, Debug, Default)]
struct Line {
    last: Nanos,
    largest: f64,
    weight: f64,
    n: f64,
    t: f64,
    nn: f64,
    nt: f64,
}

impl Line {
    fn observe(&mut self, now: Nanos, n: f64, t: f64) {
        if now.since(self.last) > HORIZON {
            *self = Line::default();
        }
        self.last = now;
        self.largest = n.max(self.largest * KEPT_LARGEST);
        for (sum, value) in
            [(&mut self.weight, 1.0), (&mut self.n, n), (&mut self.t, t), (&mut self.nn, n * n), (&mut self.nt, n * t)]
        {
            *sum = *sum * KEPT + value;
        }
    }

    fn is_known(&self, now: Nanos) -> bool {
        self.weight > 0.0 && now.since(self.last) <= HORIZON
    }

    /// Fixed part, and slope where it can be told; without one the fixed part is the mean.
    fn fit(&self, now: Nanos) -> Option<(f64, Option<f64>)> {
        if !self.is_known(now) {
            return None;
        }
        let (n, t) = (self.n / self.weight, self.t / self.weight);
        let spread = self.nn / self.weight - n * n;
        if spread < (SPREAD * n).powi(2) {
            return Some((t, None));
        }
        let slope = ((self.nt / self.weight - n * t) / spread).max(0.0);
        let fixed = t - slope * n;
        // A line that begins below zero is one through the origin.
        Some(if fixed < 0.0 { (0.0, Some(t / n)) } else { (fixed, Some(slope)) })
    }

    fn at(&self, now: Nanos, n: f64) -> Option<f64> {
        let (fixed, slope) = self.fit(now)?;
        let mean = self.n / self.weight;
        Some(match slope {
            Some(slope) => fixed + slope * n.min(self.largest),
            None => fixed * (n / mean).min(1.0),
        })
    }
}
