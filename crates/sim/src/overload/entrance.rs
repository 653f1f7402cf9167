//! Controls that stand before the gateway and are not its own.
//!
//! Both are the best case of their kind: they cost nothing and refuse at once.
//! - `uniform`: one token bucket for everything, refilled at a fixed rate, two seconds deep.
//! - `static`: Dynamo's busy threshold. A request is refused while every engine has more than a fixed number of tokens
//!   to prefill (its `--active-prefill-tokens-threshold`, 20,000 in the runs it is known from), as last seen; loads are read every
//!   50 ms, as its own are.

use super::SCALE;
use plimsoll_core::Nanos;

const BURST_S: f64 = 2.0;
/// Uncached prompt tokens in front of the least busy engine beyond which `static` refuses.
pub const BUSY_TOKENS: u64 = 20_000 / SCALE;
/// How often `static` looks.
pub const LOOK_EVERY: Nanos = Nanos::from_millis(50);

/// The bucket of `uniform`.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    per_s: f64,
    tokens: f64,
    at_s: f64,
}

impl Bucket {
    /// Full, at the scenario's beginning.
    #[must_use]
    pub fn new(per_s: f64) -> Self {
        Bucket { per_s, tokens: per_s * BURST_S, at_s: 0.0 }
    }

    /// Takes a request at this second of the scenario, if it fits.
    pub fn take(&mut self, cost_tokens: u64, now_s: f64) -> bool {
        let passed = (now_s - self.at_s).max(0.0);
        self.at_s = self.at_s.max(now_s);
        let deepest = self.per_s * BURST_S;
        self.tokens = (self.tokens + passed * self.per_s).min(deepest);
        // What is larger than the bucket goes when the bucket is full.
        let cost = (cost_tokens as f64).min(deepest);
        let fits = self.tokens >= cost;
        if fits {
            self.tokens -= cost;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_lets_its_rate_through() {
        let mut bucket = Bucket::new(100.0);
        let mut passed = 0;
        for tick in 0..5_000u64 {
            passed += u64::from(bucket.take(7, tick as f64 * 0.02)) * 7;
        }
        assert!((9_990..=10_210).contains(&passed), "{passed}");
        assert!(bucket.take(1_000_000, 120.0), "a full bucket holds anything");
    }
}
