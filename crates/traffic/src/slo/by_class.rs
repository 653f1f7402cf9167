//! The rule for several classes: nobody is refused for the good of a lower class.
//!
//! Moore's rule counts heads, and when it has to choose it refuses whoever takes longest: in a crowd of two classes that can be a request of the higher
//! one, though it would have been in time but for the lower. So each class in turn, from the highest, keeps the largest set that it could keep alone beside what
//! the classes above it keep.

use super::parts::{Part, parts};
use super::{Job, Serving, Standing, Verdict, deadline_order, feasible_set};
use plimsoll_core::{Class, Nanos};
use std::collections::BTreeSet;

/// What [`feasible_by_class`] decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByClass<K> {
    pub verdict: Verdict<K>,
    /// How long the pool may stand still, or serve lower classes, before a promise of this class that can be kept is broken; by class. `None`: there is none
    /// to break. That of a higher class is not this one's: or a class would go before others for a promise that is not its own.
    pub slack: [Option<Nanos>; 3],
}

/// What is refused of a class does not depend on the classes below it; of each class it is the fewest beside what is kept above, as far as its
/// tenants' parts allow ([`parts`]). With one class and one tenant it is [`feasible_set`].
///
/// `tenant` says whose a request is, and with which weight.
#[must_use]
pub fn feasible_by_class<K: Ord + Copy, T: Ord>(
    jobs: &[(Class, Job<K>)],
    pool: &impl Serving,
    tenant: &impl Fn(K) -> (T, u32),
) -> ByClass<K> {
    let mut order: Vec<(Class, Job<K>)> = jobs.to_vec();
    // Nearly in order as a rule.
    order.sort_by(|a, b| deadline_order(&a.1, &b.1));
    let jobs = &order;
    if let Some(all) = all_in_time(jobs, pool) {
        return all;
    }
    let fewest = class_by_class(jobs, pool, &|_| Part::Within);
    let parts = parts(jobs, &fewest.verdict, tenant);
    if parts.is_empty() {
        return fewest;
    }
    class_by_class(jobs, pool, &|key| parts.get(&key).copied().unwrap_or(Part::Within))
}

/// `part` says what of a class is settled before what else.
fn class_by_class<K: Ord + Copy>(
    jobs: &[(Class, Job<K>)],
    pool: &impl Serving,
    part: &impl Fn(K) -> Part,
) -> ByClass<K> {
    let mut settled: Vec<Job<K>> = Vec::with_capacity(jobs.len());
    let mut refused = Vec::new();
    let mut last = Verdict { kept: Vec::new(), refused: Vec::new(), slack: None };
    let mut slack = [None; 3];
    let steps = Class::ALL.into_iter().flat_map(|class| Part::ALL.map(|part| (class, part)));
    for (class, now) in steps {
        let above = settled.len();
        settled.extend(jobs.iter().filter(|(of, job)| *of == class && part(job.key) == now).map(|(_, job)| *job));
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
        slack[class as usize] = own_slack(jobs, &settled, class, pool);
    }
    ByClass { verdict: Verdict { refused, ..last }, slack }
}

/// Until when the kept promises of a class can wait, beside what is kept of it and of those above it.
fn own_slack<K: Ord + Copy>(
    jobs: &[(Class, Job<K>)],
    settled: &[Job<K>],
    class: Class,
    pool: &impl Serving,
) -> Option<Nanos> {
    let kept: BTreeSet<K> = settled.iter().map(|job| job.key).collect();
    let (mut work, mut least) = (0u128, None);
    for (of, job) in jobs.iter().filter(|(of, job)| *of <= class && kept.contains(&job.key)) {
        work += u128::from(job.service.0);
        if *of == class && job.standing == Standing::Promised {
            let left = job.deadline.since(pool.finish(work, job.service));
            least = Some(least.map_or(left, |least: Nanos| least.min(left)));
        }
    }
    least
}

/// The verdict where every promise can be kept, as is usual, in one go. `None` where one cannot, or something has begun.
fn all_in_time<K: Ord + Copy>(order: &[(Class, Job<K>)], pool: &impl Serving) -> Option<ByClass<K>> {
    // Work of each class and those above it.
    let mut work = [0u128; 3];
    let (mut slack, mut least): ([Option<Nanos>; 3], Option<Nanos>) = ([None; 3], None);
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
            let sooner = |known: Option<Nanos>| Some(known.map_or(left, |known| known.min(left)));
            if beside == class {
                slack[class] = sooner(slack[class]);
            }
            if beside == 2 {
                least = sooner(least);
            }
        }
    }
    let kept = order.iter().map(|(_, job)| job.key).collect();
    Some(ByClass { verdict: Verdict { kept, refused: Vec::new(), slack: least }, slack })
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

    /// Everybody is the same tenant.
    fn one(_: u32) -> (u8, u32) {
        (0, 1)
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
                prop_assert_eq!(short, class_by_class(&jobs, &pool, &|_| Part::Within));
            } else {
                let all: Vec<_> = jobs.iter().map(|(_, job)| *job).collect();
                prop_assert!(!feasible_set(&all, &pool).refused.is_empty());
            }
        }

        /// Who is refused of a class is the same whatever the classes below ask for, and all who stay are in time.
        #[test]
        fn no_class_pays_for_a_lower_one(jobs in list(), capacity in 1u32..3) {
            let pool = pool(capacity);
            let ByClass { verdict, slack } = feasible_by_class(&jobs, &pool, &one);
            let none = |class: Class| !jobs.iter().any(|(of, _)| *of == class);
            prop_assert!(Class::ALL.into_iter().all(|class| !none(class) || slack[class as usize].is_none()), "{:?}", slack);
            for lowest in Class::ALL {
                let above: Vec<_> = jobs.iter().filter(|(class, _)| *class <= lowest).copied().collect();
                let of = |refused: &[super::super::Refused<u32>]| -> BTreeSet<u32> {
                    let class = |key: u32| jobs[key as usize].0;
                    refused.iter().map(|one| one.key).filter(|key| class(*key) <= lowest).collect()
                };
                prop_assert_eq!(of(&feasible_by_class(&above, &pool, &one).verdict.refused), of(&verdict.refused), "{:?}", lowest);
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
        let verdict = feasible_by_class(&jobs, &pool(1), &one).verdict;
        let refused: Vec<u32> = verdict.refused.iter().map(|one| one.key).collect();
        assert_eq!(refused, [2]);
        let together = feasible_set(&jobs.map(|(_, job)| job), &pool(1));
        assert_eq!(together.refused[0].key, 0, "which counts heads");
    }

    /// Seen with a tenant that sent twenty-five short requests a second beside one that sent one, three times as long: of the quiet one's, one in ten went.
    #[test]
    fn a_tenant_within_its_part_is_not_refused_for_one_that_floods() {
        let job = |key, service| {
            let (deadline, service) = (Nanos(60), Nanos(service));
            (Class::High, Job { key, deadline, service, standing: Standing::Promised })
        };
        let jobs: Vec<_> = (0..40).map(|key| job(key, 2)).chain((40..45).map(|key| job(key, 3))).collect();
        let refused = |tenant: &dyn Fn(u32) -> (u8, u32)| -> Vec<u32> {
            let verdict = feasible_by_class(&jobs, &pool(1), &|key| tenant(key)).verdict;
            verdict.refused.iter().map(|one| one.key).collect()
        };
        let quiet = |keys: &[u32]| keys.iter().filter(|key| **key >= 40).count();
        let by_tenant = refused(&|key| (u8::from(key >= 40), 1));
        assert_eq!((quiet(&refused(&one)), quiet(&by_tenant)), (5, 0), "{by_tenant:?}");
        assert_eq!(by_tenant.len(), 40 - 21, "the engine is not left idle for it");
        // Weights count: with a twentieth of the weight four of the five are beyond its part.
        assert!(quiet(&refused(&|key| if key >= 40 { (1, 1) } else { (0, 20) })) >= 4);
    }

    proptest! {
        /// Whoever asks for no more than an equal part of what is kept is refused nothing that it would have had alone beside its equals.
        #[test]
        fn the_modest_pay_for_nobody(
            services in prop::collection::vec((0u8..4, 1u64..9), 2..24),
            deadline in 10u64..60,
        ) {
            let jobs: Vec<_> = services.iter().zip(0u32..).map(|((_, service), key)| {
                let (deadline, service) = (Nanos(deadline), Nanos(*service));
                (Class::High, Job { key, deadline, service, standing: Standing::Promised })
            }).collect();
            let tenant = |key: u32| (services[key as usize].0, 1);
            let verdict = feasible_by_class(&jobs, &pool(1), &tenant).verdict;
            let fewest = feasible_set(&jobs.iter().map(|(_, job)| *job).collect::<Vec<_>>(), &pool(1));
            let work = |keys: &[u32]| keys.iter().map(|key| services[*key as usize].1).sum::<u64>();
            let tenants: BTreeSet<u8> = services.iter().map(|(tenant, _)| *tenant).collect();
            let equal = work(&fewest.kept) / tenants.len() as u64;
            for who in tenants {
                let of = |(key, one): (u32, &(u8, u64))| (one.0 == who).then_some(key);
                let its: Vec<u32> = (0u32..).zip(&services).filter_map(of).collect();
                if work(&its) <= equal {
                    prop_assert!(its.iter().all(|key| verdict.kept.contains(key)), "{} of {:?}", who, verdict);
                }
            }
        }
    }
}
