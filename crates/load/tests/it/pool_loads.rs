//! What traffic scheduling is told of a pool: own load and others', and nothing that nobody knows.

use crate::fleet::{Fleet, MODEL, ms};
use plimsoll_core::{InstanceId, LoadReport, Nanos};
use plimsoll_load::{AttemptEnd, PolicyKind, PoolLoad};

fn loads(fleet: &mut Fleet) -> Vec<PoolLoad> {
    let mut loads = Vec::new();
    fleet.scheduler.pool_loads(MODEL, fleet.now, &mut loads);
    loads
}

fn used(tokens: u64) -> LoadReport {
    LoadReport { used_kv_tokens: Some(tokens), capacity_kv_tokens: Some(100_000), ..LoadReport::default() }
}

#[test]
fn what_is_placed_is_in_front_until_its_first_token() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    assert!(loads(&mut fleet).iter().all(|load| (load.load.backlog_tokens, load.load.running) == (0, 0)));
    let placed = fleet.place();
    let load = |fleet: &mut Fleet| *loads(fleet).iter().find(|load| load.target == placed.target).unwrap();
    assert_eq!((load(&mut fleet).load.backlog_tokens, load(&mut fleet).load.running), (1_000, 1));
    fleet.scheduler.first_token(placed.ticket, fleet.now);
    assert_eq!((load(&mut fleet).load.backlog_tokens, load(&mut fleet).load.running), (0, 1));
    fleet.settle(placed.ticket, AttemptEnd::Ok);
    assert_eq!(load(&mut fleet).load.running, 0);
}

#[test]
fn memory_is_known_only_from_a_report_that_is_believed() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    assert_eq!(loads(&mut fleet)[0].load.kv_capacity_tokens, None);
    fleet.report(0, used(60_000));
    fleet.place();
    let load = loads(&mut fleet)[0];
    assert_eq!(
        (load.load.reserved_kv_tokens, load.load.kv_capacity_tokens),
        (61_000, Some(100_000)),
        "and what is about to be used"
    );
    fleet.pass(ms(3_000));
    assert_eq!(loads(&mut fleet)[0].load.kv_capacity_tokens, None, "a stale report does not say what is in use");
}

#[test]
fn a_rate_is_known_once_somebody_has_shown_one() {
    let mut fleet = Fleet::new(PolicyKind::RoundRobin, 2);
    assert!(
        loads(&mut fleet).iter().all(|load| load.load.prefill_tokens_per_s.is_none() && load.uncached_share.is_none())
    );
    // Only instance 0 teaches; 2,000 tokens a second, half of what it is charged for.
    for _ in 0..6 {
        let placed = fleet.place();
        fleet.pass(ms(250));
        fleet.scheduler.first_token(placed.ticket, fleet.now);
        if placed.target.instance == InstanceId(0) {
            fleet.scheduler.prefilled(placed.ticket, 500, 500);
        }
        fleet.settle(placed.ticket, AttemptEnd::Ok);
    }
    for load in loads(&mut fleet) {
        let rate = load.load.prefill_tokens_per_s.unwrap();
        assert!((rate - 2_000.0).abs() < 1.0, "{rate}: of its own or of its peer");
    }
    let placed = [fleet.place(), fleet.place()];
    let backlog = loads(&mut fleet).iter().map(|load| load.load.backlog_tokens).collect::<Vec<_>>();
    assert_eq!(backlog, [500, 1_000], "charged 1,000 each: {placed:?}");
}

/// Engines say what was cached only where they are asked to (vLLM `--enable-prompt-tokens-details`, SGLang `--enable-cache-report`).
#[test]
fn where_nobody_reports_cached_tokens_the_model_has_a_rate_and_no_engine_one_of_its_own() {
    let mut fleet = Fleet::new(PolicyKind::RoundRobin, 2);
    // Instance 1 takes four times as long: all the same, both are as fast as the middle of what was seen.
    for _ in 0..12 {
        let placed = fleet.place();
        fleet.pass(ms(if placed.target.instance == InstanceId(0) { 250 } else { 1_000 }));
        fleet.scheduler.first_token(placed.ticket, fleet.now);
        fleet.scheduler.unreported(placed.ticket);
        fleet.settle(placed.ticket, AttemptEnd::Ok);
    }
    let rates: Vec<f64> = loads(&mut fleet).iter().map(|load| load.load.prefill_tokens_per_s.unwrap()).collect();
    assert!((rates[0] - rates[1]).abs() < 1e-9, "{rates:?}");
    assert!((999.0..4_001.0).contains(&rates[0]), "{rates:?}");
    assert!(loads(&mut fleet).iter().all(|load| load.uncached_share.is_none()));
    let seen = fleet.scheduler.instances(fleet.now);
    assert!(seen.iter().all(|one| one.prefill_tokens_per_s.is_none()), "shown as observed is only what was");
    // One that reports says more than all that do not.
    for _ in 0..8 {
        let placed = fleet.place();
        fleet.pass(ms(125));
        fleet.scheduler.first_token(placed.ticket, fleet.now);
        if placed.target.instance == InstanceId(0) {
            fleet.scheduler.prefilled(placed.ticket, 1_000, 0);
        } else {
            fleet.scheduler.unreported(placed.ticket);
        }
        fleet.settle(placed.ticket, AttemptEnd::Ok);
    }
    for load in loads(&mut fleet) {
        let rate = load.load.prefill_tokens_per_s.unwrap();
        assert!((rate - 8_000.0).abs() < 1.0, "{rate}");
    }
}

/// An engine that came back empty, believed to hold what it held: it looks slow, and is not.
#[test]
fn what_is_believed_to_be_cached_teaches_nothing_where_nobody_reports() {
    let mut fleet = Fleet::new(PolicyKind::RoundRobin, 1);
    fleet.hits = vec![(
        plimsoll_core::Target { instance: InstanceId(0), rank: plimsoll_core::Rank(0) },
        plimsoll_load::HeldTokens::on_device(900),
    )];
    for _ in 0..40 {
        let placed = fleet.place();
        fleet.pass(ms(500));
        fleet.scheduler.first_token(placed.ticket, fleet.now);
        fleet.scheduler.unreported(placed.ticket);
        fleet.settle(placed.ticket, AttemptEnd::Ok);
    }
    assert!(loads(&mut fleet)[0].load.prefill_tokens_per_s.is_none());
    assert!(fleet.scheduler.prefill_model(Some(MODEL)).is_none());
}

/// Whether a promise can be kept is asked of the latency model.
#[test]
fn prefill_times_are_learnt_without_reports_too() {
    let mut fleet = Fleet::new(PolicyKind::RoundRobin, 1);
    for _ in 0..40 {
        let placed = fleet.place();
        fleet.pass(ms(500));
        fleet.scheduler.first_token(placed.ticket, fleet.now);
        fleet.scheduler.unreported(placed.ticket);
        fleet.settle(placed.ticket, AttemptEnd::Ok);
    }
    let model = fleet.scheduler.prefill_model(Some(MODEL)).unwrap();
    let seconds = model.prefill_s(1_000, 0);
    assert!((seconds - 0.5).abs() < 0.05, "{seconds}");
}

#[test]
fn only_those_that_would_be_chosen_are_in_it() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 3);
    fleet.eject(0);
    fleet.scheduler.set_draining(InstanceId(1), true);
    assert_eq!(loads(&mut fleet).iter().map(|load| load.target.instance.0).collect::<Vec<_>>(), [2]);
    fleet.scheduler.pool_loads("other", fleet.now, &mut Vec::new());

    let mut fleet = Fleet::new(PolicyKind::RoundRobin, 2);
    let refused = AttemptEnd::Refused { retry_after: Some(Nanos::from_secs(1)) };
    let first = fleet.serve(refused).target;
    assert!(loads(&mut fleet).iter().all(|load| load.target != first), "it has no room, whatever its load");
    fleet.serve(refused);
    assert_eq!(loads(&mut fleet).len(), 2, "all refuse: then it is theirs to say");
}

/// They were left out, and a queue in front of an empty pool went all at once.
#[test]
fn where_all_are_out_all_are_in_it_and_marked() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 3);
    fleet.scheduler.set_draining(InstanceId(2), true);
    fleet.eject(0);
    let seen = |fleet: &mut Fleet| loads(fleet).iter().map(|l| (l.target.instance.0, l.load.out)).collect::<Vec<_>>();
    assert_eq!(seen(&mut fleet), [(1, false)]);
    fleet.eject(1);
    assert_eq!(seen(&mut fleet), [(0, true), (1, true)]);
    fleet.probe_ok(0);
    assert_eq!(seen(&mut fleet), [(0, false)], "half open with a trial free");
    let trial = fleet.place();
    assert!(trial.half_open);
    assert_eq!(seen(&mut fleet), [(0, true), (1, true)], "its trial is taken");
    fleet.settle(trial.ticket, AttemptEnd::Ok);
    assert_eq!(seen(&mut fleet), [(0, false)]);
}
