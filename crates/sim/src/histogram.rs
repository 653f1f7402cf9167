//! Percentiles of as many values as there are, in the same memory.
//!
//! Buckets are 1/128 of a power of two wide, so a percentile is right within 0.8 %; mean, least and most are exact. Integers
//! only: adding in another order gives the same report.

use crate::step_time::{FS_PER_NS, Ramp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const BITS: u32 = 7;
const WIDTH: u64 = 1 << BITS;

/// Values in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    /// In femtoseconds, so that runs of steps add up without rounding.
    sum_fs: u128,
    least: u64,
    most: u64,
}

/// A distribution of times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

fn bucket(value: u64) -> usize {
    let shift = (63 - (value | WIDTH).leading_zeros()) - BITS;
    (u64::from(shift) * WIDTH + (value >> shift)) as usize
}

/// The first value behind a bucket.
fn bound(bucket: usize) -> u64 {
    let (shift, within) = ((bucket as u64 / WIDTH).saturating_sub(1), bucket as u64);
    let lower = within - shift * WIDTH;
    u64::try_from((u128::from(lower) + 1) << shift).unwrap_or(u64::MAX)
}

impl Histogram {
    pub fn record(&mut self, value_ns: u64) {
        self.add(value_ns, 1);
        self.sum_fs += u128::from(value_ns) * FS_PER_NS;
    }

    fn add(&mut self, value: u64, times: u64) {
        if times == 0 {
            return;
        }
        let at = bucket(value);
        if self.buckets.len() <= at {
            self.buckets.resize(at + 1, 0);
        }
        self.least = if self.count == 0 { value } else { self.least.min(value) };
        self.most = self.most.max(value);
        self.buckets[at] += times;
        self.count += times;
    }

    /// Each of the first `steps` of a ramp, `times` times.
    pub fn record_ramp(&mut self, ramp: Ramp, steps: u64, times: u64) {
        if steps == 0 || times == 0 {
            return;
        }
        self.sum_fs += ramp.total_fs(steps) * u128::from(times);
        let ns = |step: u64| ramp.step_fs(step) / FS_PER_NS as u64;
        let mut step = 0;
        while step < steps {
            let value = ns(step);
            // Steps that fall into the same bucket.
            let until_fs = bound(bucket(value)).saturating_mul(FS_PER_NS as u64);
            let room = until_fs.saturating_sub(ramp.step_fs(step));
            let same = if ramp.growth_fs == 0 { u64::MAX } else { room.div_ceil(ramp.growth_fs).max(1) };
            let same = same.min(steps - step);
            self.add(value, times * same);
            step += same;
            self.most = self.most.max(ns(step - 1));
        }
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The value below which a share of them lies, in nanoseconds; 0 where there are none.
    #[must_use]
    pub fn at(&self, share: f64) -> u64 {
        let wanted = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                let middle = bound(at) - 1 - (bound(at) - 1 - if at == 0 { 0 } else { bound(at - 1) }) / 2;
                return middle.clamp(self.least, self.most);
            }
        }
        self.most
    }

    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_fs as f64 / FS_PER_NS as f64 / self.count as f64 }
    }

    #[must_use]
    pub fn summary(&self) -> Summary {
        let ms = |ns: u64| ns as f64 / 1e6;
        Summary {
            count: self.count,
            mean: self.mean_ns() / 1e6,
            p50: ms(self.at(0.5)),
            p90: ms(self.at(0.9)),
            p99: ms(self.at(0.99)),
            max: ms(self.most),
        }
    }

    pub fn merge(&mut self, other: &Histogram) {
        if other.count == 0 {
            return;
        }
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(own, more)| *own += more);
        self.least = if self.count == 0 { other.least } else { self.least.min(other.least) };
        self.most = self.most.max(other.most);
        self.count += other.count;
        self.sum_fs += other.sum_fs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Found by hand with huge constants: the last bucket ends beyond 64 bits.
    #[test]
    fn the_longest_times_have_percentiles_too() {
        let mut histogram = Histogram::default();
        [1, u64::MAX].into_iter().for_each(|value| histogram.record(value));
        histogram.record_ramp(Ramp { first_fs: u64::MAX - 1, growth_fs: u64::MAX }, 3, 1);
        assert!(histogram.at(0.99) > u64::MAX / 100 * 99);
    }

    proptest! {
        #[test]
        fn percentiles_are_those_of_a_sorted_list(values in prop::collection::vec(0u64..1 << 50, 1..300), share in 0.0f64..1.0) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|value| histogram.record(*value));
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let rank = ((values.len() as f64 * share).ceil() as usize).max(1);
            let (found, wanted) = (histogram.at(share) as f64, sorted[rank - 1] as f64);
            prop_assert!((found - wanted).abs() <= wanted / 128.0 + 1.0, "{found} {wanted}");
            prop_assert_eq!(histogram.summary().count, values.len() as u64);
        }

        #[test]
        fn a_ramp_is_its_steps(first in 1u64..1 << 45, growth in 0u64..1 << 36, steps in 0u64..300, times in 0u64..3) {
            let ramp = Ramp { first_fs: first, growth_fs: growth };
            let (mut whole, mut single) = (Histogram::default(), Histogram::default());
            whole.record_ramp(ramp, steps, times);
            for step in 0..steps {
                single.record_ramp(Ramp { first_fs: ramp.step_fs(step), growth_fs: 0 }, 1, times);
            }
            prop_assert_eq!(whole.summary(), single.summary());
            prop_assert_eq!(whole.buckets, single.buckets);
        }
    }
}
