//! The rule against brute force, and its invariants.

use super::*;
use proptest::prelude::*;
use std::cell::Cell;

fn pool(capacity: u32, free_at: u64, least: u64) -> Pool {
    Pool { free_at: Nanos(free_at), capacity: NonZeroU32::new(capacity).unwrap(), least: Nanos(least) }
}

fn job(key: u32, deadline: u64, service: u64) -> Job<u32> {
    Job { key, deadline: Nanos(deadline), service: Nanos(service), standing: Standing::Promised }
}

fn jobs(list: &[(u64, u64)]) -> Vec<Job<u32>> {
    list.iter().zip(0..).map(|((deadline, service), key)| job(key, *deadline, *service)).collect()
}

/// In deadline order every kept job with a duty is in time. The slow and obvious reading of the promise.
fn in_time(kept: &[Job<u32>], all: &[Job<u32>], pool: &Pool) -> bool {
    let mut order = kept.to_vec();
    order.sort_by(deadline_order);
    order.iter().enumerate().all(|(index, job)| {
        let finish = finish_at(&order, index, pool);
        match job.standing {
            Standing::Promised => finish <= job.deadline,
            Standing::Begun => finish <= job.deadline || !can_be_met(job, all, pool),
            Standing::Unbound => true,
        }
    })
}

fn finish_at(order: &[Job<u32>], index: usize, pool: &Pool) -> Nanos {
    let work: u64 = order[..=index].iter().map(|job| job.service.0).sum();
    let shared = work.div_ceil(u64::from(pool.capacity.get()));
    pool.free_at + Nanos(shared.max(order[index].service.0).max(pool.least.0))
}

/// A begun job, with every promised one gone.
fn can_be_met(job: &Job<u32>, all: &[Job<u32>], pool: &Pool) -> bool {
    let mut fixed: Vec<Job<u32>> = all.iter().filter(|job| job.standing != Standing::Promised).copied().collect();
    fixed.sort_by(deadline_order);
    let at = fixed.iter().position(|one| one.key == job.key).unwrap();
    finish_at(&fixed, at, pool) <= job.deadline
}

/// The most promised jobs that some subset keeps in time, and the least work of such a subset.
fn best(all: &[Job<u32>], pool: &Pool) -> (usize, u64) {
    let promised: Vec<&Job<u32>> = all.iter().filter(|job| job.standing == Standing::Promised).collect();
    let mut best = (0, u64::MAX);
    for subset in 0u32..1 << promised.len() {
        let chosen = promised.iter().enumerate().filter(|(at, _)| subset >> at & 1 == 1).map(|(_, job)| **job);
        let fixed = all.iter().filter(|job| job.standing != Standing::Promised).copied();
        let kept: Vec<Job<u32>> = chosen.chain(fixed).collect();
        let work = kept.iter().map(|job| job.service.0).sum();
        let count = subset.count_ones() as usize;
        if in_time(&kept, all, pool) && (count > best.0 || (count == best.0 && work < best.1)) {
            best = (count, work);
        }
    }
    best
}

/// The most jobs in time over all orders of serving them one after another: nothing is assumed but that.
fn best_order(all: &mut Vec<Job<u32>>, from: usize, now: u64) -> usize {
    let mut most = 0;
    for next in from..all.len() {
        all.swap(from, next);
        let finish = now + all[from].service.0;
        let here = usize::from(finish <= all[from].deadline.0);
        most = most.max(here + best_order(all, from + 1, finish));
        all.swap(from, next);
    }
    most
}

fn standing() -> impl Strategy<Value = Standing> {
    prop_oneof![4 => Just(Standing::Promised), 1 => Just(Standing::Begun), 1 => Just(Standing::Unbound)]
}

fn mixed() -> impl Strategy<Value = Vec<Job<u32>>> {
    prop::collection::vec((0u64..60, 0u64..20, standing()), 0..=9).prop_map(|list| {
        list.into_iter()
            .zip(0..)
            .map(|((deadline, service, standing), key)| Job { standing, ..job(key, deadline, service) })
            .collect()
    })
}

/// Found by random seeds: several long ones have to leave at once for short ones behind the fixed work.
#[test]
fn several_leave_for_those_behind_fixed_work() {
    let jobs = |promised: &[(u64, u64)], fixed: &[(u64, u64, Standing)]| -> Vec<Job<u32>> {
        let promised = promised.iter().map(|&(deadline, service)| (deadline, service, Standing::Promised));
        let all = promised.chain(fixed.iter().copied()).zip(0..);
        all.map(|((deadline, service, standing), key)| Job { standing, ..job(key, deadline, service) }).collect()
    };
    let cases = [
        (
            jobs(
                &[(8, 1), (25, 15), (58, 0), (5, 4), (50, 15), (35, 11), (54, 3), (9, 3)],
                &[(50, 17, Standing::Unbound)],
            ),
            1,
            (6, 39),
        ),
        (
            jobs(
                &[(50, 0), (42, 1), (18, 9), (25, 8), (35, 0)],
                &[(32, 12, Standing::Unbound), (32, 14, Standing::Begun)],
            ),
            8,
            (3, 27),
        ),
    ];
    for (all, free_at, expected) in cases {
        let pool = pool(1, free_at, 0);
        let kept = feasible_set(&all, &pool).kept;
        let kept: Vec<&Job<u32>> = kept.iter().map(|key| &all[*key as usize]).collect();
        let promised = kept.iter().filter(|job| job.standing == Standing::Promised).count();
        assert_eq!((promised, kept.iter().map(|job| job.service.0).sum()), expected);
        assert_eq!(best(&all, &pool), expected);
    }
}

proptest! {
    /// Exactly when the engines together have done the work, each from the time it comes free.
    #[test]
    fn engines_finish_when_their_work_is_done(
        free_at in prop::collection::vec(0u64..50, 1..7), work in 0u64..200, own in 0u64..50,
    ) {
        let engines = Engines::new(free_at.iter().copied().map(Nanos).collect()).unwrap();
        let done = |at: u64| free_at.iter().map(|free| at.saturating_sub(*free)).sum::<u64>() >= work;
        let shared = (0..).find(|at| *at >= *free_at.iter().min().unwrap() && done(*at)).unwrap();
        let expected = shared.max(free_at.iter().min().unwrap() + own);
        prop_assert_eq!(engines.finish(work.into(), Nanos(own)), Nanos(expected));
        let equal = Engines::new(vec![Nanos(7); free_at.len()]).unwrap();
        let pool = pool(free_at.len() as u32, 7, 0);
        prop_assert_eq!(equal.finish(work.into(), Nanos(own)), pool.finish(work.into(), Nanos(own)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn as_many_are_kept_as_any_subset_could_keep(
        all in mixed(), capacity in 1u32..4, free_at in 0u64..10, least in 0u64..6,
    ) {
        let pool = pool(capacity, free_at, least);
        let verdict = feasible_set(&all, &pool);
        let kept: Vec<Job<u32>> = verdict.kept.iter().map(|key| all[*key as usize]).collect();
        prop_assert!(in_time(&kept, &all, &pool));
        prop_assert_eq!(kept.len() + verdict.refused.len(), all.len());
        let promised = kept.iter().filter(|job| job.standing == Standing::Promised).count();
        let work: u64 = kept.iter().map(|job| job.service.0).sum();
        prop_assert_eq!((promised, work), best(&all, &pool));
        for refused in &verdict.refused {
            let job = all[refused.key as usize];
            prop_assert_eq!(job.standing, Standing::Promised);
            prop_assert!(refused.finish > job.deadline, "{:?} of {:?}", refused, job);
            prop_assert_eq!(refused.alone, pool.finish_alone(job.service) > job.deadline);
        }
        // The slack is exact: so long the pool may stand still, and no longer.
        if let Some(slack) = verdict.slack {
            let later = |by: u64| Pool { free_at: pool.free_at + slack + Nanos(by), ..pool };
            let duties: Vec<Job<u32>> = kept
                .iter()
                .map(|job| match job.standing {
                    Standing::Begun if !can_be_met(job, &all, &pool) => Job { standing: Standing::Unbound, ..*job },
                    Standing::Begun => Job { standing: Standing::Promised, ..*job },
                    _ => *job,
                })
                .collect();
            prop_assert!(in_time(&duties, &duties, &later(0)));
            prop_assert!(!in_time(&duties, &duties, &later(1)));
        }
    }

    /// Moore's own theorem, with nothing of ours: one machine, all orders.
    #[test]
    fn no_order_has_fewer_late_jobs(list in prop::collection::vec((0u64..40, 0u64..15), 0..=7)) {
        let mut all = jobs(&list);
        let kept = feasible_set(&all, &pool(1, 0, 0)).kept.len();
        prop_assert_eq!(kept, best_order(&mut all, 0, 0));
    }

    #[test]
    fn the_order_of_the_list_does_not_matter(all in mixed(), capacity in 1u32..3, turn in 0usize..9) {
        let pool = pool(capacity, 3, 1);
        let mut turned = all.clone();
        turned.reverse();
        let by = turn.min(turned.len());
        turned.rotate_left(by);
        prop_assert_eq!(feasible_set(&all, &pool), feasible_set(&turned, &pool));
    }
}

#[test]
fn the_example_of_the_design() {
    // Deadline order: 6, 7, 8, 9, 11 with services 4, 3, 2, 5, 6 (a textbook instance): 3 of 5 in time.
    let all = jobs(&[(9, 5), (6, 4), (11, 6), (7, 3), (8, 2)]);
    let verdict = feasible_set(&all, &pool(1, 0, 0));
    assert_eq!(verdict.kept, [3, 4, 2]);
    assert_eq!(verdict.slack, Some(Nanos(0)));
    let late: Vec<(u32, u64)> = verdict.refused.iter().map(|refused| (refused.key, refused.finish.0)).collect();
    assert_eq!(late, [(1, 15), (0, 16)]);
}

#[test]
fn ties_go_against_the_newest() {
    let verdict = feasible_set(&jobs(&[(10, 5), (10, 5), (10, 5)]), &pool(1, 0, 0));
    assert_eq!(verdict.kept, [0, 1]);
    assert_eq!(verdict.refused[0].key, 2);
}

#[test]
fn one_request_is_not_served_by_two_engines() {
    let all = jobs(&[(10, 12), (10, 8), (10, 8)]);
    let verdict = feasible_set(&all, &pool(2, 0, 0));
    assert_eq!(verdict.kept, [1, 2]);
    assert!(verdict.refused[0].alone);
}

#[test]
fn what_has_begun_is_never_refused_and_only_counts_when_it_can_be_met() {
    let begun = Job { standing: Standing::Begun, ..job(0, 10, 8) };
    let rival = job(1, 9, 5);
    let verdict = feasible_set(&[begun, rival], &pool(1, 0, 0));
    assert_eq!((verdict.kept, verdict.refused[0].key), (vec![0], 1));
    // Late whatever happens: no reason to refuse anybody for it.
    let hopeless = Job { deadline: Nanos(7), ..begun };
    let verdict = feasible_set(&[hopeless, job(1, 13, 5)], &pool(1, 0, 0));
    assert_eq!(verdict.kept, [0, 1]);
    let verdict = feasible_set(&[hopeless, job(1, 12, 5)], &pool(1, 0, 0));
    assert_eq!(verdict.kept, [0]);
}

#[test]
fn a_small_job_behind_unbound_work_does_not_cost_those_before_it() {
    let unbound = Job { standing: Standing::Unbound, ..job(2, 7, 100) };
    let all = [job(0, 5, 2), job(1, 6, 2), unbound, job(3, 101, 1)];
    let verdict = feasible_set(&all, &pool(1, 0, 0));
    assert_eq!(verdict.kept, [0, 1, 2]);
}

#[test]
fn near_expiry_is_who_must_begin_soonest() {
    let mut all = jobs(&[(100, 90), (20, 5), (25, 15), (25, 15)]);
    all.sort_by(near_expiry);
    assert_eq!(all.iter().map(|job| job.key).collect::<Vec<_>>(), [0, 2, 3, 1]);
    assert_eq!(
        (all[0].latest_start(), all[0].slack(Nanos(4)), all[0].slack(Nanos(50))),
        (Nanos(10), Nanos(6), Nanos(0))
    );
    assert_eq!(job(0, 5, 9).latest_start(), Nanos::ZERO);
}

#[test]
fn extremes_do_not_overflow() {
    let all = jobs(&[(u64::MAX, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 1), (0, 0), (0, 1)]);
    let verdict = feasible_set(&all, &pool(1, 0, 0));
    assert_eq!(verdict.kept.len() + verdict.refused.len(), 5);
    assert!(verdict.kept.contains(&2) && verdict.kept.contains(&3));
    assert_eq!(feasible_set::<u32>(&[], &pool(1, 0, 0)).slack, None);
}

/// A key that counts how often it is compared.
#[derive(Clone, Copy)]
struct Counted<'a>(u32, &'a Cell<u64>);

impl PartialEq for Counted<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Counted<'_> {}
impl PartialOrd for Counted<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Counted<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.1.set(self.1.get() + 1);
        self.0.cmp(&other.0)
    }
}

#[test]
fn comparisons_grow_as_n_log_n() {
    let comparisons = |n: u32| {
        let count = Cell::new(0);
        // Equal deadlines and services: every comparison falls through to the key. Half have to go.
        let all: Vec<Job<Counted<'_>>> = (0..n)
            .map(|at| Job {
                key: Counted(at.wrapping_mul(2_654_435_761) % n, &count),
                deadline: Nanos(u64::from(n / 2)),
                service: Nanos(1),
                standing: Standing::Promised,
            })
            .collect();
        let verdict = feasible_set(&all, &pool(1, 0, 0));
        assert_eq!(verdict.kept.len() as u32, n / 2);
        count.get()
    };
    let (small, large) = (comparisons(1_001), comparisons(16_001));
    // 16 times the jobs: 16 x log(16,000)/log(1,000) = 22 times the comparisons; 256 would be quadratic.
    assert!(large < 32 * small, "{small} comparisons for 1,001 jobs, {large} for 16,001");
}

/// A pool that counts how often it is asked.
struct Asked(Pool, Cell<u64>);

impl Serving for Asked {
    fn finish(&self, work: u128, own: Nanos) -> Nanos {
        self.1.set(self.1.get() + 1);
        self.0.finish(work, own)
    }
}

/// It was quadratic up to a thousand requests, every few milliseconds, under the lock of admission.
#[test]
fn the_exact_search_is_for_few() {
    let asked = |n: u32| {
        let job = |at: u32| Job {
            key: at,
            deadline: Nanos(if at == 0 { 1 } else { 1_000_000 + u64::from(at) }),
            service: Nanos(2),
            standing: if at.is_multiple_of(2) { Standing::Promised } else { Standing::Unbound },
        };
        let all: Vec<Job<u32>> = (0..n).map(job).collect();
        let pool = Asked(pool(1, 0, 0), Cell::new(0));
        assert_eq!(feasible_set(&all, &pool).refused.len(), 1);
        pool.1.get()
    };
    assert!(asked(512) < 8 * 512, "{}", asked(512));
    assert!(asked(128) < 32 * 128, "{}", asked(128));
}
