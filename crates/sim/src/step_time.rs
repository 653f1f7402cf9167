//! How long a step takes, and many of the same kind in a row, exactly.
//!
//! Between two arrivals an engine decodes the same batch over and over, each context growing by one token a step. One event per
//! step would make a simulation as slow as its tokens are many. The cost model is affine in those contexts, so the end of
//! any number of such steps has a closed form. To be *exact*, whatever cuts a run in two must not change when it ends:
//! steps are therefore whole femtoseconds, and their sums are sums of integers. Float noise would make the figures of a
//! report depend on how often somebody looked.

use plimsoll_timing::{Profile, StepShape};
use std::fmt;

#[cfg(test)]
mod tests;

/// Femtoseconds in a nanosecond and in a microsecond.
pub const FS_PER_NS: u128 = 1_000_000;
const FS_PER_US: f64 = 1e9;

/// What a step costs. Implementations use plain arithmetic only, so that every machine gets the same bits.
pub trait StepTime: fmt::Debug + Send {
    /// Microseconds of one step of one rank; 0 for an empty one.
    fn step_us(&self, shape: &StepShape) -> f64;

    /// Microseconds that one more token of context of one decoding request adds, whatever else is in the step. `None`
    /// where time is not affine in contexts; every step is then computed for itself.
    fn context_token_us(&self) -> Option<f64>;
}

impl StepTime for Profile {
    fn step_us(&self, shape: &StepShape) -> f64 {
        self.cost(shape).total_us()
    }

    fn context_token_us(&self) -> Option<f64> {
        let at = |tokens| {
            let mut shape = StepShape::default();
            shape.add_decodes(1, tokens, tokens);
            self.cost(&shape).decode_us
        };
        const FAR: u64 = 1 << 20;
        Some((at(FAR) - at(0)) / FAR as f64)
    }
}

/// Another's steps, so many times as fast: what `plimsoll engine --timing-speedup` does.
#[derive(Debug)]
pub struct SpedUp {
    pub time: Box<dyn StepTime>,
    /// Above 0.
    pub times: f64,
}

impl StepTime for SpedUp {
    fn step_us(&self, shape: &StepShape) -> f64 {
        self.time.step_us(shape) / self.times
    }

    fn context_token_us(&self) -> Option<f64> {
        self.time.context_token_us().map(|us| us / self.times)
    }
}

/// Requests that decode together, as far as time depends on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeLoad {
    pub requests: u64,
    /// Sum of the contexts that the next step attends to.
    pub context_tokens: u64,
    /// The longest of them.
    pub longest_tokens: u64,
}

/// Steps in a row, each longer than the one before by the same amount. Femtoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ramp {
    pub first_fs: u64,
    pub growth_fs: u64,
}

impl Ramp {
    /// All of the first `steps`.
    #[must_use]
    pub fn total_fs(self, steps: u64) -> u128 {
        let (first, growth, steps) = (u128::from(self.first_fs), u128::from(self.growth_fs), u128::from(steps));
        first * steps + growth * (steps * steps.saturating_sub(1) / 2)
    }

    /// The step with this number, from 0.
    #[must_use]
    pub fn step_fs(self, step: u64) -> u64 {
        self.first_fs.saturating_add(self.growth_fs.saturating_mul(step))
    }

    /// Fewest steps, at most `most`, that together take at least `span_fs`.
    #[must_use]
    pub fn steps_to(self, span_fs: u128, most: u64) -> u64 {
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.total_fs(middle) >= span_fs { high = middle } else { low = middle + 1 }
        }
        low
    }
}

/// A cost model with what is asked of it often.
#[derive(Debug)]
pub struct StepClock {
    time: Box<dyn StepTime>,
    context_token_fs: Option<u64>,
    /// Coalescing is switched off where a test wants to see that it changes nothing.
    pub single_steps: bool,
}

impl StepClock {
    #[must_use]
    pub fn new(time: Box<dyn StepTime>) -> Self {
        let context_token_fs = time.context_token_us().map(fs);
        StepClock { time, context_token_fs, single_steps: false }
    }

    /// A step with prefill in it, in femtoseconds.
    #[must_use]
    pub fn step_fs(&self, shape: &StepShape) -> u64 {
        fs(self.time.step_us(shape))
    }

    /// Decode steps from here on, and for how many in a row that holds.
    #[must_use]
    pub fn decode(&self, load: DecodeLoad) -> (Ramp, u64) {
        let mut shape = StepShape::default();
        let Some(token_fs) = self.context_token_fs else {
            shape.add_decodes(load.requests, load.context_tokens, load.longest_tokens);
            return (Ramp { first_fs: self.step_fs(&shape), growth_fs: 0 }, 1);
        };
        // All contexts less the same number of tokens: what is left stays as it is while they grow, to the last bit.
        let mean = load.context_tokens / load.requests.max(1);
        let base = mean.min(load.longest_tokens);
        shape.add_decodes(load.requests, load.context_tokens - base * load.requests, load.longest_tokens - base);
        let growth_fs = token_fs.saturating_mul(load.requests);
        let first_fs = self.step_fs(&shape).saturating_add(growth_fs.saturating_mul(base));
        (Ramp { first_fs, growth_fs }, if self.single_steps { 1 } else { u64::MAX })
    }
}

fn fs(us: f64) -> u64 {
    (us * FS_PER_US + 0.5) as u64
}
