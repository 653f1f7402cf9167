//! The sum: what a step costs, and where.

use crate::attention;
use crate::profile::Profile;
use crate::shape::StepShape;
use plimsoll_core::Nanos;

#[cfg(test)]
mod tests;

/// Microseconds of one step by part, all layers together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Host work that no kernel overlaps.
    pub host_us: f64,
    /// Matrix products, all-reduces, norms.
    pub dense_us: f64,
    /// Decode attention as if all requests were equally long.
    pub decode_us: f64,
    /// What their unequal lengths add; 0 for a kernel that balances perfectly.
    pub skew_us: f64,
    /// Prefill attention.
    pub prefill_us: f64,
    /// The language-model head.
    pub head_us: f64,
}

impl Cost {
    #[must_use]
    pub fn total_us(&self) -> f64 {
        self.host_us + self.dense_us + self.decode_us + self.skew_us + self.prefill_us + self.head_us
    }

    #[must_use]
    pub fn total(&self) -> Nanos {
        // Positive and far below 2^63.
        Nanos((self.total_us() * 1000.0 + 0.5) as u64)
    }
}

impl Profile {
    /// What a step takes. An empty one takes nothing.
    #[must_use]
    pub fn cost(&self, shape: &StepShape) -> Cost {
        if shape.is_empty() {
            return Cost::default();
        }
        let layers = f64::from(self.model.layers);
        let (decode, skew) = attention::decode(self, shape);
        Cost {
            host_us: self.step.host_us,
            dense_us: layers * (self.dense.at(shape.new_tokens() as f64) + self.step.layer_us),
            decode_us: layers * decode,
            skew_us: layers * skew,
            prefill_us: layers * attention::prefill(self, shape),
            head_us: if shape.outputs() == 0 { 0.0 } else { self.head.at(shape.outputs() as f64) },
        }
    }

    /// How long a step takes on one rank.
    #[must_use]
    pub fn step_time(&self, shape: &StepShape) -> Nanos {
        self.cost(shape).total()
    }
}
