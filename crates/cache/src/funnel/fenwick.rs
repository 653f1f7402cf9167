//! Prefix sums that change: a Fenwick tree over places in time (Fenwick 1994), O(log n) both ways.

#[derive(Clone, Debug, Default)]
pub(super) struct Fenwick {
    sums: Vec<u64>,
    total: u64,
}

impl Fenwick {
    /// Of the given values, in O(n).
    pub(super) fn from_values(mut values: Vec<u64>) -> Self {
        let total = values.iter().sum();
        for at in 0..values.len() {
            let above = at | (at + 1);
            if above < values.len() {
                values[above] += values[at];
            }
        }
        Fenwick { sums: values, total }
    }

    pub(super) fn len(&self) -> usize {
        self.sums.len()
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn add(&mut self, mut at: usize, amount: u64) {
        self.total += amount;
        while at < self.sums.len() {
            self.sums[at] += amount;
            at |= at + 1;
        }
    }

    pub(super) fn subtract(&mut self, mut at: usize, amount: u64) {
        self.total -= amount;
        while at < self.sums.len() {
            self.sums[at] -= amount;
            at |= at + 1;
        }
    }

    /// Sum of everything after `at`.
    pub(super) fn after(&self, at: usize) -> u64 {
        let mut end = at + 1;
        let mut up_to = 0;
        while end > 0 {
            up_to += self.sums[end - 1];
            end &= end - 1;
        }
        self.total - up_to
    }

    pub(super) fn bytes(&self) -> usize {
        self.sums.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::Fenwick;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_are_those_of_a_list(
            mut list in proptest::collection::vec(0u64..100, 1..70),
            changes in proptest::collection::vec((0usize..70, 1u64..50, any::<bool>()), 0..100),
        ) {
            let mut tree = Fenwick::from_values(list.clone());
            for (at, amount, up) in changes {
                let at = at % list.len();
                if up {
                    list[at] += amount;
                    tree.add(at, amount);
                } else {
                    let amount = amount.min(list[at]);
                    list[at] -= amount;
                    tree.subtract(at, amount);
                }
            }
            prop_assert_eq!(tree.total(), list.iter().sum::<u64>());
            for at in 0..list.len() {
                prop_assert_eq!(tree.after(at), list[at + 1..].iter().sum::<u64>());
            }
        }
    }
}
