//! Drawing from a distribution that is known by its quantiles.
//!
//! The lengths and pauses of agent calls fit no textbook family (the body is log-normal, the tails are not), and a
//! fitted family would miss the quantiles that make prefix caching easy or hard. So the published and measured
//! quantiles themselves are the model: between two of them the logarithm is linear.

use rand::RngExt;

/// Points `(probability, value)`, both rising, from probability 0 to 1; values above 0.
#[derive(Clone, Copy, Debug)]
pub struct Quantiles(pub &'static [(f64, f64)]);

impl Quantiles {
    /// The value below which a share `p` (0..=1) lies.
    #[must_use]
    pub fn at(&self, p: f64) -> f64 {
        let above = self.0.partition_point(|(q, _)| *q < p).clamp(1, self.0.len() - 1);
        let (q0, v0) = self.0[above - 1];
        let (q1, v1) = self.0[above];
        let t = ((p - q0) / (q1 - q0)).clamp(0.0, 1.0);
        (v0.ln() + t * (v1.ln() - v0.ln())).exp()
    }

    pub(crate) fn draw(&self, rng: &mut rand_chacha::ChaCha8Rng) -> f64 {
        self.at(rng.random::<f64>())
    }

    pub(crate) fn draw_tokens(&self, rng: &mut rand_chacha::ChaCha8Rng) -> u64 {
        self.draw(rng).round().max(1.0) as u64
    }
}
