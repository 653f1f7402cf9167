//! Counts of values to an eighth of a power of two, for percentiles of which there are many: in every bin of a series, in every
//! cell of a map.

use std::collections::BTreeMap;

/// Counts by value; a percentile is right within 6 %.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Eighths(BTreeMap<u16, u64>);

impl Eighths {
    /// Values below 8 count as 8.
    pub(crate) fn add(&mut self, value: u64, times: u64) {
        if times > 0 {
            *self.0.entry(bucket(value)).or_insert(0) += times;
        }
    }

    /// The first value that counts as another than `value`, which is less.
    pub(crate) fn beyond(value: u64) -> u64 {
        let bucket = bucket(value) + 1;
        u64::try_from(u128::from(8 + bucket % 8) << (bucket / 8)).unwrap_or(u64::MAX)
    }

    pub(crate) fn merge(&mut self, more: &Eighths) {
        for (bucket, count) in &more.0 {
            *self.0.entry(*bucket).or_insert(0) += count;
        }
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The value below which a share of them lies, the middle of its eighth; `None` where there are none.
    pub(crate) fn at(&self, share: f64) -> Option<f64> {
        let count: u64 = self.0.values().sum();
        let wanted = ((count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        self.0.iter().find_map(|(bucket, count)| {
            seen += count;
            (seen >= wanted).then(|| middle(*bucket))
        })
    }
}

fn bucket(value: u64) -> u16 {
    let value = value.max(8);
    let shift = 60 - value.leading_zeros() as u16;
    shift * 8 + (value >> shift) as u16 - 8
}

fn middle(bucket: u16) -> f64 {
    let twice = u128::from(2 * (8 + bucket % 8) + 1) << (bucket / 8);
    twice as f64 / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_near() {
        let mut all = Eighths::default();
        assert_eq!(all.at(0.5), None);
        (1..=1_000).for_each(|value| all.add(value * 50, 1));
        for share in [0.01, 0.3, 0.5, 0.9, 1.0] {
            let (found, wanted) = (all.at(share).unwrap(), share * 50_000.0);
            assert!((found / wanted - 1.0).abs() < 0.07, "{share}: {found} for {wanted}");
        }
        for value in [0, 7, 8, 9, 15, 16, 17, 18, 1_000, 123_456_789] {
            let next = Eighths::beyond(value);
            assert!(bucket(next - 1) == bucket(value) && bucket(next) == bucket(value) + 1, "{value}: {next}");
        }
        assert_eq!(Eighths::beyond(u64::MAX), u64::MAX);
        let mut twice = Eighths::default();
        twice.add(u64::MAX, 0);
        twice.merge(&all);
        twice.merge(&all);
        assert_eq!((twice.at(0.5), twice.at(0.9)), (all.at(0.5), all.at(0.9)));
        twice.add(u64::MAX, 1);
        assert!(twice.at(1.0).unwrap() > 1.7e19);
    }
}
