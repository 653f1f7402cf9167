//! How fast an instance prefills, learnt from first tokens.
//!
//! Expected wait needs tokens per second, and engines of one fleet differ. Each first token gives one observation:
//! the uncached tokens the rank served while this request waited (others in front of it, then itself), divided by the
//! time from choice to first token. Single observations are wild (a wrongly predicted cache hit looks like a
//! tenfold rate, a swapped-out engine like none), so the estimate is an exponential mean over the median of a window.
//! Few tokens in a fixed round trip say nothing about the rate; below [`MIN_TOKENS`] an observation is only a
//! lower bound, and raises the estimate at most.
//!
//! The full step-time model of `design/load.md` (intercept, quadratic term) replaces this when it comes.

#[cfg(test)]
mod tests;

use plimsoll_core::Nanos;
use smallvec::SmallVec;

/// Observations of fewer tokens than this are lower bounds.
pub const MIN_TOKENS: u64 = 256;
/// Observations before the first estimate.
const MIN_SAMPLES: usize = 3;
const WINDOW: usize = 15;
const SMOOTHING: f64 = 0.3;

/// One instance's estimate (of one rank of it).
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefillRate {
    window: SmallVec<[f64; WINDOW]>,
    next: usize,
    smoothed: Option<f64>,
}

impl PrefillRate {
    /// Tokens per second, once known.
    pub(crate) fn tokens_per_s(&self) -> Option<f64> {
        self.smoothed
    }

    /// `served_tokens` were prefilled on the rank within `elapsed`.
    pub(crate) fn observe(&mut self, served_tokens: u64, elapsed: Nanos) {
        if served_tokens == 0 || elapsed == Nanos::ZERO {
            return;
        }
        let rate = served_tokens as f64 / elapsed.as_secs_f64();
        if served_tokens < MIN_TOKENS && self.smoothed.is_none_or(|known| rate <= known) {
            return;
        }
        if self.window.len() < WINDOW {
            self.window.push(rate);
        } else {
            self.window[self.next] = rate;
            self.next = (self.next + 1) % WINDOW;
        }
        if self.window.len() < MIN_SAMPLES {
            return;
        }
        let median = median(&mut self.window.clone());
        self.smoothed = Some(match self.smoothed {
            Some(old) => old + SMOOTHING * (median - old),
            None => median,
        });
    }
}

/// Upper median. Zero for an empty slice.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}
