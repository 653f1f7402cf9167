//! A function given by a few points, straight between them.
//!
//! The times of matrix products are flat while weights are read and then straight in the number of tokens, with steps
//! where tiles fill up: a handful of points says that within a percent or two.

use serde::{Deserialize, Serialize};

/// Straight between its knots, constant before the first, going on like the last piece after the last.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Rising.
    pub at: Vec<f64>,
    /// Microseconds, one for each of `at`.
    pub us: Vec<f64>,
}

impl Curve {
    /// The value at `x`, in microseconds.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        let right = self.at.partition_point(|knot| *knot < x);
        match (right, self.at.len()) {
            (_, 0) => 0.0,
            (0, _) | (_, 1) => self.us[0],
            (right, len) => {
                let right = right.min(len - 1);
                let (x0, x1) = (self.at[right - 1], self.at[right]);
                let (y0, y1) = (self.us[right - 1], self.us[right]);
                y0 + (y1 - y0) * ((x - x0) / (x1 - x0))
            }
        }
    }

    /// What is wrong with it.
    pub(crate) fn complaint(&self) -> Option<&'static str> {
        let finite = |list: &[f64]| list.iter().all(|value| value.is_finite() && *value >= 0.0);
        if self.at.is_empty() || self.at.len() != self.us.len() {
            Some("needs as many `us` as `at`, at least one")
        } else if !finite(&self.at) || !finite(&self.us) {
            Some("numbers must not be negative")
        } else if !self.at.windows(2).all(|pair| pair[0] < pair[1]) {
            Some("`at` must rise")
        } else {
            None
        }
    }
}
