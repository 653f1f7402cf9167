//! Whose requests of a class are settled first, when not all of them can be in time.
//!
//! Moore's rule refuses the longest, so a tenant that floods with short requests would push out one that sends few and long ones, however little that is.
//! What can be kept of a class is therefore divided among its tenants by weight, as water fills vessels (max-min): whoever asks for no more than
//! its part is settled before all others, then the others' parts, then what they ask for beyond. Nothing is held back for anybody: what a tenant leaves
//! others have.

use super::{Job, Standing, Verdict};
use plimsoll_core::Class;
use std::collections::{BTreeMap, BTreeSet};

/// What a request is of its tenant's part, in the order in which they are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All that the tenant asks for is within its part.
    Within,
    /// The tenant asks for more, but not yet with this one.
    UpTo,
    Beyond,
}

impl Part {
    pub(super) const ALL: [Part; 3] = [Part::Within, Part::UpTo, Part::Beyond];
}

/// What one tenant asks of a class.
struct Asks<K> {
    weight: u32,
    work: u128,
    jobs: Vec<(K, u128)>,
}

/// Of the classes of which something was refused, and that several tenants ask for: what each request is. Empty where there is no such class.
/// `jobs` in deadline order.
pub(super) fn parts<K: Ord + Copy, T: Ord>(
    jobs: &[(Class, Job<K>)],
    fewest: &Verdict<K>,
    tenant: &impl Fn(K) -> (T, u32),
) -> BTreeMap<K, Part> {
    let refused: BTreeSet<K> = fewest.refused.iter().map(|one| one.key).collect();
    let mut parts = BTreeMap::new();
    for class in Class::ALL {
        let promised = jobs.iter().filter(|(of, job)| *of == class && job.standing == Standing::Promised);
        if !promised.clone().any(|(_, job)| refused.contains(&job.key)) {
            continue;
        }
        let (mut asks, mut kept): (BTreeMap<T, Asks<K>>, u128) = (BTreeMap::new(), 0);
        for (_, job) in promised {
            let (name, weight) = tenant(job.key);
            let work = u128::from(job.service.0);
            kept += if refused.contains(&job.key) { 0 } else { work };
            let its = asks.entry(name).or_insert_with(|| Asks { weight: weight.max(1), work: 0, jobs: Vec::new() });
            its.work += work;
            its.jobs.push((job.key, work));
        }
        if asks.len() > 1 {
            divide(kept, asks.into_values().collect(), &mut parts);
        }
    }
    parts
}

fn divide<K: Ord>(kept: u128, mut asks: Vec<Asks<K>>, parts: &mut BTreeMap<K, Part>) {
    // Who asks for least for his weight first: a / w < b / v.
    asks.sort_by(|one, other| (one.work * u128::from(other.weight)).cmp(&(other.work * u128::from(one.weight))));
    let (mut left, mut weights) = (kept, asks.iter().map(|its| u128::from(its.weight)).sum::<u128>());
    for its in asks {
        let part = left * u128::from(its.weight) / weights.max(1);
        let modest = its.work <= part;
        let mut sum = 0;
        for (key, work) in its.jobs {
            sum += work;
            parts.insert(
                key,
                if modest {
                    Part::Within
                } else if sum <= part {
                    Part::UpTo
                } else {
                    Part::Beyond
                },
            );
        }
        left -= its.work.min(part);
        weights -= u128::from(its.weight);
    }
}
