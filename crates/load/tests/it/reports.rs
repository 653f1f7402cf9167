//! Reports add to the ledger, fade, and never stand for it.

use crate::fleet::{Fleet, T0, ms};
use plimsoll_core::{InstanceId, LoadReport, Nanos};
use plimsoll_load::{AttemptEnd, PolicyKind, SchedulerConfig};

fn busy(tokens: u64) -> LoadReport {
    LoadReport { running_requests: Some(4), waiting_uncached_tokens: Some(tokens), ..LoadReport::default() }
}

/// How many of `count` requests, each settled at once, go to instance 1.
fn share_of_second(fleet: &mut Fleet, count: usize) -> usize {
    (0..count).filter(|_| fleet.serve(AttemptEnd::Ok).target.instance.0 == 1).count()
}

#[test]
fn foreign_load_moves_choices_and_fades() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    fleet.report(0, busy(8_000));
    fleet.report(1, LoadReport { waiting_uncached_tokens: Some(0), ..LoadReport::default() });
    assert_eq!(share_of_second(&mut fleet, 50), 50);

    // Half the way to stale it weighs half: 4,000 tokens and 2 requests are 0.508 s.
    fleet.pass(ms(1_500));
    let wait = |fleet: &mut Fleet| {
        let placed = fleet.serve(AttemptEnd::Ok);
        placed.candidates.iter().find(|c| c.target.instance.0 == 0).unwrap().expected_wait_s
    };
    let half = wait(&mut fleet);
    assert!((half - (5_000.0 / 8_000.0 + 2.0 * 0.004)).abs() < 1e-6, "{half}");

    // Stale: the ledger alone speaks, so both are equal again.
    fleet.pass(ms(1_500));
    let share = share_of_second(&mut fleet, 400);
    assert!((140..=260).contains(&share), "{share} of 400");
    let view = &fleet.scheduler.instances(fleet.now)[0];
    assert_eq!(view.ranks[0].foreign_prefill_tokens, None, "stale is unknown, not zero");
    assert_eq!(view.ranks[0].report_age, Some(ms(3_000)));
}

#[test]
fn a_report_of_our_own_load_adds_nothing_and_takes_nothing_away() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    fleet.burst(4);
    let own = fleet.scheduler.totals(fleet.now);
    for reported in [0, 2_000, 4_000] {
        fleet.report(0, busy(reported));
        let load = &fleet.scheduler.instances(fleet.now)[0].ranks[0];
        assert_eq!(load.foreign_prefill_tokens, Some(0.0));
        assert_eq!(load.foreign_requests, Some(0.0));
        assert_eq!(load.uncached_prefill_tokens, own.uncached_prefill_tokens);
    }
    fleet.report(0, busy(5_000));
    assert_eq!(fleet.scheduler.instances(fleet.now)[0].ranks[0].foreign_prefill_tokens, Some(1_000.0));
}

#[test]
fn unknown_is_neither_preferred_nor_starved() {
    // Instance 1 reports idle, instance 0 never reports anything.
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    let mut to_second = 0;
    for _ in 0..400 {
        fleet.pass(ms(10));
        fleet.report(1, LoadReport { running_requests: Some(0), waiting_requests: Some(0), ..LoadReport::default() });
        to_second += share_of_second(&mut fleet, 1);
    }
    assert!((140..=260).contains(&to_second), "{to_second} of 400");
    // A report without any figure is no figure.
    fleet.report(0, LoadReport::default());
    let load = &fleet.scheduler.instances(fleet.now)[0].ranks[0];
    assert_eq!((load.foreign_requests, load.foreign_prefill_tokens, load.capacity_kv_tokens), (None, None, None));
    // Under load the ledger keeps the silent one from being flooded.
    let (per_instance, _) = fleet.burst(40);
    assert!((19..=21).contains(&per_instance[&0]), "{per_instance:?}");
}

#[test]
fn a_reported_capacity_is_kept_and_wins_over_the_configured_one() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    fleet.report(0, LoadReport { capacity_kv_tokens: Some(1_000), ..LoadReport::default() });
    fleet.pass(Nanos::from_secs(60));
    for _ in 0..10 {
        assert_eq!(fleet.place().target.instance, InstanceId(1), "1,500 tokens do not fit on 0");
    }
    fleet.report(0, LoadReport::default());
    assert_eq!(fleet.scheduler.instances(fleet.now)[0].ranks[0].capacity_kv_tokens, Some(1_000));
}

#[test]
fn foreign_kv_takes_room() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    let report = |used| LoadReport {
        used_kv_tokens: Some(used),
        capacity_kv_tokens: Some(10_000),
        running_requests: Some(0),
        ..LoadReport::default()
    };
    fleet.report(0, report(9_000));
    fleet.report(1, report(0));
    for _ in 0..5 {
        assert_eq!(fleet.place().target.instance, InstanceId(1));
    }
}

#[test]
fn late_early_and_stray_reports_are_harmless() {
    let mut fleet = Fleet::with(SchedulerConfig { report_stale: Nanos::ZERO, ..SchedulerConfig::default() }, 1);
    fleet.report(0, busy(50_000));
    assert!(fleet.place().expected_wait < Some(Nanos::from_secs(1)), "nothing is believed with a stale age of zero");

    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    fleet.report(0, busy(8_000));
    // Sent earlier, arrived later.
    let old = LoadReport { received: T0 - ms(500), ..busy(0) };
    fleet.scheduler.report(InstanceId(0), old, fleet.now);
    assert_eq!(fleet.scheduler.instances(fleet.now)[0].ranks[0].foreign_prefill_tokens, Some(8_000.0));
    // A clock ahead of ours is read as now.
    let ahead = LoadReport { received: Nanos::MAX, ..busy(2_000) };
    fleet.scheduler.report(InstanceId(0), ahead, fleet.now);
    fleet.pass(ms(1_500));
    assert_eq!(fleet.scheduler.instances(fleet.now)[0].ranks[0].foreign_prefill_tokens, Some(1_000.0));
    // Unknown rank, unknown instance.
    fleet.scheduler.report(InstanceId(0), LoadReport { rank: plimsoll_core::Rank(9), ..busy(1) }, fleet.now);
    fleet.scheduler.report(InstanceId(77), busy(1), fleet.now);
    fleet.scheduler.check_invariants().unwrap();
}
