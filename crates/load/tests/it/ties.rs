//! Ties are drawn: reproducible with the seed, even over time (`gateways.md` §3.3: peers give all to one index).

use crate::fleet::{Fleet, skew};
use plimsoll_core::{Nanos, Target};
use plimsoll_load::{AttemptEnd, PolicyKind, Reason, SchedulerConfig};
use std::collections::BTreeMap;

fn sequence(policy: PolicyKind, seed: u64, count: usize) -> Vec<Target> {
    let mut fleet = Fleet::with(SchedulerConfig { policy, seed, ..SchedulerConfig::default() }, 4);
    (0..count)
        .map(|_| {
            fleet.pass(Nanos::from_millis(10));
            fleet.serve(AttemptEnd::Ok).target
        })
        .collect()
}

#[test]
fn the_same_seed_makes_the_same_choices() {
    for policy in [PolicyKind::LeastDelay, PolicyKind::LeastWait, PolicyKind::PowerOfTwo, PolicyKind::RoundRobin] {
        assert_eq!(sequence(policy, 7, 200), sequence(policy, 7, 200));
    }
    for policy in [PolicyKind::LeastDelay, PolicyKind::LeastWait, PolicyKind::PowerOfTwo] {
        assert_ne!(sequence(policy, 7, 200), sequence(policy, 8, 200), "{policy:?}");
    }
}

#[test]
fn an_idle_fleet_shares_evenly() {
    for policy in [PolicyKind::LeastDelay, PolicyKind::LeastWait, PolicyKind::PowerOfTwo] {
        for seed in 0..10 {
            let mut counts = BTreeMap::new();
            for target in sequence(policy, seed, 4_000) {
                *counts.entry(target.instance.0).or_insert(0) += 1;
            }
            // Binomial: 1,000 expected, standard deviation 27.
            assert!(skew(&counts, 4) < 1.14, "{policy:?}, seed {seed}: {counts:?}");
            assert!(counts.values().all(|&n| n > 860), "{policy:?}, seed {seed}: {counts:?}");
        }
    }
}

#[test]
fn the_reason_says_whether_there_was_a_tie() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    assert_eq!(fleet.place().reason, Reason::TieDraw);
    assert_eq!(fleet.place().reason, Reason::LeastWait);
    let mut single = Fleet::new(PolicyKind::LeastWait, 1);
    assert_eq!(single.place().reason, Reason::Only);
}

#[test]
fn another_seed_or_policy_takes_effect_on_reload_and_keeps_the_ledger() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    let (_, tickets) = fleet.burst(6);
    let before = fleet.scheduler.totals(fleet.now);
    fleet.scheduler.reconfigure(SchedulerConfig { policy: PolicyKind::RoundRobin, ..SchedulerConfig::default() });
    assert_eq!(fleet.scheduler.totals(fleet.now), before);
    assert_eq!(fleet.place().reason, Reason::RoundRobin);
    assert_eq!(
        tickets.into_iter().filter(|&t| fleet.settle(t, AttemptEnd::Ok) != plimsoll_load::Settled::Already).count(),
        6
    );
}
