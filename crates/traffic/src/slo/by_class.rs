//! The rule for several classes: nobody is refused for the good of a lower class.
//!
//! Moore's rule counts heads, and when it has to choose it refuses whoever takes longest: in a crowd of two classes that can be a request of the higher
//! one, though it would have been in time but for the lower. So each class in turn, from the highest, keeps the largest set that it could keep alone beside what
//! the classes above it keep.

use super::{Job, Serving, Standing, Verdict, deadline_order, feasible_set};
use plimsoll_core::{Class, Nanos};
use std::collections::BTreeSet;

/// What [`feasible_by_class`] decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByClass<K> {
    pub verdict: Verdict<K>,
    /// How long the pool may stand still, or serve lower classes, before a promise of this class or a higher one that can be kept is broken; by class. `None`:
    /// there is none to break.
    pub slack: [Option<Nanos>; 3],
}

/// What is refused of a class does not depend on the classes below it; of each class it is the fewest beside what is kept above. With one class
/// it is [`feasible_set`].
#[must_use]
pub fn feasible_by_class<K: Ord + Copy>(jobs: &[(Class, Job<K>)], pool: &impl Serving) -> ByClass<K> {
    let mut order: Vec<(Class, Job<K>)> = jobs.to_vec();
    // Nearly in order as a rule.
    order.sort_by(|a, b| deadline_order(&a.1, &b.1));
    let jobs = &order;
    if let Some(all) = all_in_time(jobs, pool) {
        return all;
    }
    class_by_class(jobs, pool)
}

fn class_by_class<K: Ord + Copy>(jobs: &[(Class, Job<K>)], pool: &impl Serving) -> ByClass<K> {
    let mut settled: Vec<Job<K>> = Vec::with_capacity(jobs.len());
    let mut refused = Vec::new();
    let mut last = Verdict { kept: Vec::new(), refused: Vec::new(), slack: None };
    let mut slack = [None; 3];
    for class in Class::ALL {
        let above = settled.len();
        settled.extend(jobs.iter().filter(|(of, _)| *of == class).map(|(_, job)| *job));
        if settled.len() > above {
            last = feasible_set(&settled, pool);
            if !last.refused.is_empty() {
                let gone: BTreeSet<K> = last.refused.iter().map(|one| one.key).collect();
                refused.append(&mut last.refused);
                settled.retain(|job| !gone.contains(&job.key));
            }
            // Kept, and to be in time whatever comes below.
            for job in settled.iter_mut().filter(|job| job.standing == Standing::Promised) {
                job.standing = Standing::Begun;
            }
        }
        slack[class as usize] = last.slack;
    }
    ByClass { verdict: Verdict { refused, ..last }, slack }
}

/// The verdict where every promise can be kept, as is usual, in one go. `None` where one cannot, or something has begun.
fn all_in_time<K: Ord + Copy>(order: &[(Class, Job<K>)], pool: &impl Serving) -> Option<ByClass<K>> {
    // Work of each class and those above it.
    let mut work = [0u128; 3];
    let mut slack: [Option<Nanos>; 3] = [None; 3];
    for (class, job) in order {
        let class = *class as usize;
        work[class..].iter_mut().for_each(|work| *work += u128::from(job.service.0));
        match job.standing {
            Standing::Begun => return None,
            Standing::Unbound => continue,
            Standing::Promised => {}
        }
        for beside in (class..3).rev() {
            // Beside fewer it is done no later, so it is in time then too.
            let finish = pool.finish(work[beside], job.service);
            if finish > job.deadline {
                return None;
            }
            let left = job.deadline.since(finish);
            slack[beside] = Some(slack[beside].map_or(left, |least| least.min(left)));
        }
    }
    let kept = order.iter().map(|(_, job)| job.key).collect();
    Some(ByClass { verdict: Verdict { kept, refused: Vec::new(), slack: slack[2] }, slack })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slo::Pool;
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    fn pool(capacity: u32) -> Pool {
        Pool { free_at: Nanos(3), capacity: NonZeroU32::new(capacity).unwrap(), least: Nanos::ZERO }
    }

    fn list() -> impl Strategy<Value = Vec<(Class, Job<u32>)>> {
        let one = (0usize..3, 0u64..60, 0u64..15);
        prop::collection::vec(one, 0..14).prop_map(|list| {
            let job = |(class, deadline, service): (usize, u64, u64), key| {
                let (deadline, service) = (Nanos(deadline), Nanos(service));
                (Class::ALL[class], Job { key, deadline, service, standing: Standing::Promised })
            };
            list.into_iter().zip(0..).map(|(one, key)| job(one, key)).collect()
        })
    }

    proptest! {
        /// The short way says what the long one says.
        #[test]
        fn the_short_way_is_the_long_one(mut jobs in list(), capacity in 1u32..3, unbound in any::<u16>()) {
            for (at, (_, job)) in jobs.iter_mut().enumerate() {
                job.deadline = job.deadline + Nanos(40);
                job.standing = if unbound >> at & 1 == 1 { Standing::Unbound } else { Standing::Promised };
            }
            jobs.sort_by(|a, b| deadline_order(&a.1, &b.1));
            let pool = pool(capacity);
            if let Some(short) = all_in_time(&jobs, &pool) {
                prop_assert_eq!(short, class_by_class(&jobs, &pool));
            } else {
                let all: Vec<_> = jobs.iter().map(|(_, job)| *job).collect();
                prop_assert!(!feasible_set(&all, &pool).refused.is_empty());
            }
        }

        /// Who is refused of a class is the same whatever the classes below ask for, and all who stay are in time.
        #[test]
        fn no_class_pays_for_a_lower_one(jobs in list(), capacity in 1u32..3) {
            let pool = pool(capacity);
            let ByClass { verdict, slack } = feasible_by_class(&jobs, &pool);
            prop_assert!(slack[0].is_none_or(|high| slack[1].is_some_and(|both| both <= high)), "{:?}", slack);
            for lowest in Class::ALL {
                let above: Vec<_> = jobs.iter().filter(|(class, _)| *class <= lowest).copied().collect();
                let of = |refused: &[super::super::Refused<u32>]| -> BTreeSet<u32> {
                    let class = |key: u32| jobs[key as usize].0;
                    refused.iter().map(|one| one.key).filter(|key| class(*key) <= lowest).collect()
                };
                prop_assert_eq!(of(&feasible_by_class(&above, &pool).verdict.refused), of(&verdict.refused), "{:?}", lowest);
            }
            let high: Vec<_> = jobs.iter().filter(|(class, _)| *class == Class::High).map(|(_, job)| *job).collect();
            let alone = feasible_set(&high, &pool).kept.len();
            let kept: BTreeSet<u32> = verdict.kept.iter().copied().collect();
            prop_assert_eq!(kept.iter().filter(|key| jobs[**key as usize].0 == Class::High).count(), alone);
            prop_assert_eq!(kept.len() + verdict.refused.len(), jobs.len());
            let mut order: Vec<_> = jobs.iter().map(|(_, job)| *job).filter(|job| kept.contains(&job.key)).collect();
            order.sort_by(deadline_order);
            let mut work = 0;
            for job in order {
                work += u128::from(job.service.0);
                prop_assert!(pool.finish(work, job.service) <= job.deadline, "{:?}", job);
            }
        }
    }

    /// Seen with four engines: twenty-nine requests of the high class refused in two seconds, for seventy of the medium one.
    #[test]
    fn the_longest_is_not_refused_if_it_is_of_a_higher_class() {
        let job = |key, deadline, service| Job {
            key,
            deadline: Nanos(deadline),
            service: Nanos(service),
            standing: Standing::Promised,
        };
        let jobs = [(Class::High, job(0, 13, 10)), (Class::Medium, job(1, 17, 4)), (Class::Medium, job(2, 18, 4))];
        let verdict = feasible_by_class(&jobs, &pool(1)).verdict;
        let refused: Vec<u32> = verdict.refused.iter().map(|one| one.key).collect();
        assert_eq!(refused, [2]);
        let together = feasible_set(&jobs.map(|(_, job)| job), &pool(1));
        assert_eq!(together.refused[0].key, 0, "which counts heads");
    }
}
