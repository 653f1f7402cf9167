//! How fast an instance prefills, learnt from first tokens.
//!
//! Expected wait needs tokens per second, and engines of one fleet differ. Each request whose answer says how much of
//! its prompt was cached gives one observation: the tokens the rank prefilled while this request waited (others in front
//! of it, then itself), divided by the time from choice to first token. Its own part is known; what others were charged is
//! scaled by the share of charged tokens that this instance had really to prefill of late, since charges do not know the
//! cache. Without that, an instance that holds many prefixes looks fast, gets more, holds more, and drowns (seen: 90 % of
//! an agent workload on one of three equal engines).
//! Only streams teach. Of an answer that comes whole the first token is not seen; the tokens of such requests count as
//! served by others when they were in front at the choice, never when the ledger released them by time, since that time
//! comes from this very rate.
//! Single observations are wild, so the estimate is an exponential mean over the median of a window.
//! Few tokens in a fixed round trip say nothing about the rate; below [`MIN_TOKENS`] an observation is only a
//! lower bound, and raises the estimate at most.
//!
//! Placement reckons with this rate. The model of [`crate::latency`] (fixed part, quadratic term) learns from clean samples only, which
//! become rare when engines are busy; it answers how long a request takes by itself.

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
    /// Share of charged tokens that had really to be prefilled, 0 to 1.
    uncached_share: Option<f64>,
    window: SmallVec<[f64; WINDOW]>,
    next: usize,
    smoothed: Option<f64>,
}

impl PrefillRate {
    /// Tokens per second, once known.
    pub(crate) fn tokens_per_s(&self) -> Option<f64> {
        self.smoothed
    }

    /// Share of charged tokens that had really to be prefilled, once known.
    pub(crate) fn uncached_share(&self) -> Option<f64> {
        self.uncached_share
    }

    /// A request waited `elapsed` while `others_tokens` (as charged) and its own `uncached_tokens` of `charged_tokens`
    /// were prefilled.
    pub(crate) fn observe(&mut self, elapsed: Nanos, others_tokens: u64, charged_tokens: u64, uncached_tokens: u64) {
        if elapsed == Nanos::ZERO {
            return;
        }
        if charged_tokens > 0 {
            let share = (uncached_tokens as f64 / charged_tokens as f64).min(1.0);
            self.uncached_share = Some(match self.uncached_share {
                Some(old) => old + SMOOTHING * (share - old),
                None => share,
            });
        }
        let others = others_tokens as f64 * self.uncached_share.unwrap_or(1.0);
        let served_tokens = (others as u64).saturating_add(uncached_tokens);
        if served_tokens == 0 {
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
