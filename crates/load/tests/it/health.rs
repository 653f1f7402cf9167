//! Out within seconds, back within seconds, never all out (`gateways.md` §5, cases 9, 29, 30, 33).

use crate::fleet::{Fleet, MODEL, ms, spec};
use plimsoll_core::InstanceId;
use plimsoll_load::{AttemptEnd, HealthConfig, HealthState, PlaceError, PolicyKind, SchedulerConfig, Settled};

#[test]
fn a_frozen_engine_is_out_after_two_probes_and_gets_nothing() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 3);
    fleet.burst(9);
    fleet.eject(1);
    for _ in 0..20 {
        let placed = fleet.place();
        assert_ne!(placed.target.instance, InstanceId(1));
        assert!(!placed.panic);
    }
    let status = fleet.scheduler.model_status(MODEL);
    assert!(status.serving);
    assert_eq!(status.reasons, [(InstanceId(1), "ejected")]);
}

#[test]
fn a_long_prefill_is_not_a_freeze() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    for _ in 0..10 {
        fleet.probe_failed(0);
        fleet.scheduler.progress(InstanceId(0), fleet.now);
    }
    assert_eq!(fleet.state(0), HealthState::Healthy, "its streams move though its event loop answers no probe");
    for _ in 0..10 {
        fleet.probe_failed(0);
        fleet.probe_ok(0);
    }
    assert_eq!(fleet.state(0), HealthState::Healthy);
}

#[test]
fn a_recovered_engine_is_back_with_one_probe_and_one_request() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    fleet.eject(0);
    fleet.probe_ok(0);
    assert_eq!(fleet.state(0), HealthState::HalfOpen);
    // One trial at once, the rest to the other.
    let (per_instance, _) = fleet.burst(10);
    assert_eq!(per_instance[&0], 1);
    let reasons = fleet.scheduler.model_status(MODEL).reasons;
    assert!(reasons.is_empty(), "half open serves: {reasons:?}");
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    fleet.eject(0);
    fleet.probe_ok(0);
    let placed = fleet.place();
    assert!(placed.half_open && !placed.panic);
    let change = fleet.scheduler.first_token(placed.ticket, fleet.now).unwrap();
    assert_eq!((change.from, change.to), (HealthState::HalfOpen, HealthState::Healthy));
    assert!(!fleet.place().half_open);
}

#[test]
fn a_failed_trial_puts_it_out_again_and_a_neutral_one_frees_the_trial() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    fleet.eject(0);
    fleet.probe_ok(0);
    for neutral in [AttemptEnd::Cancelled, AttemptEnd::Refused { retry_after: None }] {
        assert!(fleet.serve(neutral).half_open);
        assert_eq!(fleet.state(0), HealthState::HalfOpen);
    }
    assert!(fleet.serve(AttemptEnd::Stalled).half_open);
    assert_eq!(fleet.state(0), HealthState::Ejected);
    fleet.assert_empty();
}

#[test]
fn without_traffic_two_further_probes_bring_it_back() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    fleet.eject(0);
    for expected in [HealthState::HalfOpen, HealthState::HalfOpen, HealthState::Healthy] {
        fleet.probe_ok(0);
        assert_eq!(fleet.state(0), expected);
    }
    // With a trial in flight probes alone do not decide.
    fleet.eject(1);
    fleet.eject(0);
    fleet.probe_ok(0);
    let trial = fleet.place();
    assert!(trial.half_open);
    for _ in 0..5 {
        fleet.probe_ok(0);
        assert_eq!(fleet.state(0), HealthState::HalfOpen);
    }
    fleet.settle(trial.ticket, AttemptEnd::ClientFault);
    assert_eq!(fleet.state(0), HealthState::Healthy);
}

#[test]
fn fifty_client_faults_change_nothing() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    for _ in 0..50 {
        assert!(!fleet.serve(AttemptEnd::ClientFault).panic);
    }
    assert_eq!(fleet.state(0), HealthState::Healthy);
}

#[test]
fn failures_in_a_row_eject_and_say_why() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    let mut last = Settled::Already;
    for _ in 0..5 {
        let ticket = fleet.place().ticket;
        last = fleet.settle(ticket, AttemptEnd::Failed);
    }
    let Settled::Released { health: Some(change) } = last else { panic!("{last:?}") };
    assert_eq!((change.instance, change.to), (InstanceId(0), HealthState::Ejected));
    assert!(change.why.contains("in a row"));
}

#[test]
fn one_per_cent_of_failures_never_ejects() {
    let mut fleet = Fleet::new(PolicyKind::RoundRobin, 4);
    let mut draw: u64 = 1;
    for _ in 0..100_000 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let end = if (draw >> 33).is_multiple_of(100) { AttemptEnd::Failed } else { AttemptEnd::Ok };
        let ticket = fleet.place().ticket;
        let settled = fleet.settle(ticket, end);
        assert_eq!(settled, Settled::Released { health: None });
    }
    fleet.assert_empty();
}

#[test]
fn a_dead_port_is_out_after_two_connects_unless_it_lives_meanwhile() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    for _ in 0..20 {
        fleet.serve(AttemptEnd::ConnectFailed);
        fleet.scheduler.progress(InstanceId(0), fleet.now);
    }
    assert_eq!(fleet.state(0), HealthState::Ejected, "connects that only ever fail count as failures too");
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    fleet.serve(AttemptEnd::ConnectFailed);
    fleet.serve(AttemptEnd::Ok);
    fleet.serve(AttemptEnd::ConnectFailed);
    assert_eq!(fleet.state(0), HealthState::Healthy);
    fleet.serve(AttemptEnd::ConnectFailed);
    assert_eq!(fleet.state(0), HealthState::Ejected);
}

#[test]
fn late_failures_of_old_streams_do_not_throw_out_what_recovered() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    let (_, old) = fleet.burst(20);
    fleet.eject(0);
    fleet.probe_ok(0);
    for ticket in &old[..10] {
        fleet.settle(*ticket, AttemptEnd::Stalled);
        assert_eq!(fleet.state(0), HealthState::HalfOpen);
    }
    fleet.serve(AttemptEnd::Ok);
    for ticket in &old[10..] {
        fleet.settle(*ticket, AttemptEnd::Failed);
    }
    assert_eq!(fleet.state(0), HealthState::Healthy);
    fleet.assert_empty();
}

#[test]
fn the_last_engine_always_stays() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    for _ in 0..50 {
        fleet.serve(AttemptEnd::Failed);
    }
    assert_eq!(fleet.state(0), HealthState::Ejected);
    assert!(fleet.place().panic);
    assert!(!fleet.scheduler.model_status(MODEL).serving, "readiness still says so");
}

/// A frozen engine accepts connections and never answers: whoever is sent there waits for his whole time.
#[test]
fn one_that_shows_no_life_takes_no_more_than_its_trials_in_panic() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    fleet.eject(0);
    fleet.eject(1);
    let (one, two) = (fleet.place(), fleet.place());
    assert!(one.panic && two.panic && one.target.instance != two.target.instance);
    assert!(matches!(fleet.try_place(), Err(PlaceError::NoCandidate { reasons }) if reasons.len() == 2));
    fleet.scheduler.check_invariants().unwrap();
    // Whoever gives up makes room for the next to try.
    fleet.settle(one.ticket, AttemptEnd::Cancelled);
    assert_eq!(fleet.place().target.instance, one.target.instance);
    assert!(fleet.try_place().is_err());
    // A first token lets all in.
    fleet.scheduler.first_token(two.ticket, fleet.now);
    for _ in 0..5 {
        let placed = fleet.place();
        assert_eq!((placed.target.instance, placed.panic), (two.target.instance, false));
    }
    fleet.scheduler.check_invariants().unwrap();
}

/// A health route that is broken, or a network that is so from here only: what is sent there is answered.
#[test]
fn where_requests_are_answered_and_probes_are_not_the_probes_are_doubted() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    fleet.eject(0);
    let first = fleet.place();
    assert!(fleet.try_place().is_err(), "one at a time, while nothing is known");
    fleet.settle(first.ticket, AttemptEnd::Ok);
    fleet.eject(0);
    let (_, tickets) = fleet.burst(20);
    assert_eq!(tickets.len(), 20);
    fleet.scheduler.check_invariants().unwrap();
    // An answered probe is one to believe again.
    fleet.probe_ok(0);
    for ticket in tickets {
        fleet.settle(ticket, AttemptEnd::Cancelled);
    }
    fleet.eject(0);
    fleet.place();
    assert!(fleet.try_place().is_err());
}

#[test]
fn one_that_never_lived_does_not_get_what_those_that_did_have_no_room_for() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    fleet.scheduler.add_instance(InstanceId(1), spec());
    fleet.eject(0);
    assert_eq!(fleet.place().target.instance, InstanceId(0));
    assert!(fleet.try_place().is_err());
    // Who has tried that one may try the other.
    fleet.exclude = vec![InstanceId(0)];
    assert_eq!(fleet.place().target.instance, InstanceId(1));
}

#[test]
fn when_all_are_out_all_are_candidates() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 4);
    for id in 0..4 {
        fleet.eject(id);
    }
    let placed = fleet.place();
    assert_eq!((placed.panic, placed.considered), (true, 4));
    // An answer in panic is a sign of life that counts.
    fleet.scheduler.first_token(placed.ticket, fleet.now);
    assert_eq!(fleet.state(placed.target.instance.0), HealthState::Healthy);
    assert_eq!(fleet.place().considered, 1);
    // Panic does not lift what the request itself rules out.
    fleet.exclude = (0..4).map(InstanceId).collect();
    assert!(matches!(fleet.try_place(), Err(PlaceError::NoCandidate { reasons }) if reasons.len() == 4));
}

#[test]
fn a_half_open_last_engine_takes_more_than_its_trial() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    fleet.eject(0);
    fleet.probe_ok(0);
    let (_, tickets) = fleet.burst(3);
    fleet.scheduler.check_invariants().unwrap();
    assert!(fleet.place().panic);
    for ticket in tickets {
        fleet.settle(ticket, AttemptEnd::Ok);
    }
    assert_eq!(fleet.state(0), HealthState::Healthy);
    fleet.scheduler.check_invariants().unwrap();
}

#[test]
fn an_unproven_engine_waits_for_its_probe_unless_nothing_else_is_there() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    fleet.scheduler.add_instance(InstanceId(1), spec());
    for _ in 0..10 {
        assert_eq!(fleet.place().target.instance, InstanceId(0));
    }
    fleet.eject(0);
    assert_eq!(fleet.place().target.instance, InstanceId(0), "an ejected one has at least lived");
    fleet.scheduler.remove_instance(InstanceId(0));
    let placed = fleet.place();
    assert_eq!((placed.target.instance, placed.panic), (InstanceId(1), true));
    fleet.settle(placed.ticket, AttemptEnd::Ok);
    assert_eq!(fleet.state(1), HealthState::Healthy);
}

#[test]
fn trials_are_limited_to_what_is_set() {
    let health = HealthConfig { half_open_requests: 3, ..HealthConfig::default() };
    let mut fleet = Fleet::with(SchedulerConfig { health, ..SchedulerConfig::default() }, 2);
    fleet.eject(0);
    fleet.pass(ms(500));
    fleet.probe_ok(0);
    let (per_instance, _) = fleet.burst(30);
    assert_eq!(per_instance[&0], 3);
    fleet.scheduler.check_invariants().unwrap();
}

#[test]
fn a_down_engine_does_not_distort_the_choice_among_the_others() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 3);
    fleet.eject(2);
    let (per_instance, _) = fleet.burst(16);
    assert_eq!((per_instance[&0], per_instance[&1]), (8, 8));
}
