//! Engines come and go under running requests.

use crate::fleet::{Fleet, MODEL, spec};
use plimsoll_core::InstanceId;
use plimsoll_load::{AttemptEnd, HealthState, InstanceSpec, PlaceError, PolicyKind, Settled};

#[test]
fn entries_of_a_removed_engine_are_orphans_and_settle_once() {
    let mut fleet = Fleet::new(PolicyKind::RoundRobin, 2);
    let (_, tickets) = fleet.burst(6);
    assert_eq!(fleet.scheduler.remove_instance(InstanceId(0)), 3);
    assert_eq!(fleet.scheduler.remove_instance(InstanceId(0)), 0);
    let totals = fleet.scheduler.totals(fleet.now);
    assert_eq!((totals.requests, totals.entries, totals.orphans), (3, 6, 3));
    fleet.scheduler.check_invariants().unwrap();

    let mut gone = 0;
    for ticket in tickets {
        fleet.scheduler.first_token(ticket, fleet.now);
        gone += usize::from(fleet.settle(ticket, AttemptEnd::Ok) == Settled::InstanceGone);
        assert_eq!(fleet.settle(ticket, AttemptEnd::Ok), Settled::Already);
    }
    assert_eq!(gone, 3);
    fleet.assert_empty();
}

#[test]
fn a_slot_is_reused_without_inheriting_anything() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    let old = fleet.place().ticket;
    fleet.eject(0);
    fleet.scheduler.remove_instance(InstanceId(0));
    fleet.add(1);
    assert_eq!(fleet.state(1), HealthState::Healthy);
    let new = fleet.place().ticket;
    assert_eq!(fleet.settle(old, AttemptEnd::Failed), Settled::InstanceGone);
    assert_eq!(fleet.scheduler.totals(fleet.now).requests, 1);
    assert_eq!(fleet.settle(new, AttemptEnd::Ok), Settled::Released { health: None });
    fleet.assert_empty();
}

#[test]
fn a_draining_engine_finishes_what_it_has() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    let (_, tickets) = fleet.burst(4);
    assert!(fleet.scheduler.set_draining(InstanceId(0), true));
    assert!(!fleet.scheduler.set_draining(InstanceId(9), true));
    for _ in 0..10 {
        assert_eq!(fleet.place().target.instance, InstanceId(1));
    }
    for ticket in tickets {
        assert_eq!(fleet.settle(ticket, AttemptEnd::Ok), Settled::Released { health: None });
    }
    fleet.scheduler.set_draining(InstanceId(1), true);
    let reasons = vec![(InstanceId(0), "draining"), (InstanceId(1), "draining")];
    assert_eq!(fleet.try_place(), Err(PlaceError::NoCandidate { reasons }));
    fleet.scheduler.set_draining(InstanceId(0), false);
    assert_eq!(fleet.place().target.instance, InstanceId(0));
}

#[test]
fn probing_may_change_models_kind_and_ranks_under_running_requests() {
    let mut fleet = Fleet::new(PolicyKind::RoundRobin, 0);
    fleet.scheduler.add_instance(InstanceId(0), InstanceSpec { ranks: 4, ..spec() });
    fleet.probe_ok(0);
    let (_, tickets) = fleet.burst(8);
    let fewer = InstanceSpec { ranks: 2, models: vec![MODEL.into(), "adapter".into()], ..spec() };
    fleet.scheduler.update_instance(InstanceId(0), fewer);
    fleet.scheduler.check_invariants().unwrap();
    assert_eq!(fleet.scheduler.models(), ["adapter", MODEL]);
    for _ in 0..8 {
        assert!(fleet.place().target.rank.0 < 2, "vanished ranks get nothing new");
    }
    for ticket in tickets {
        assert_eq!(fleet.settle(ticket, AttemptEnd::Ok), Settled::Released { health: None });
    }
    fleet.scheduler.update_instance(InstanceId(0), InstanceSpec { models: vec!["adapter".into()], ..spec() });
    assert_eq!(fleet.try_place(), Err(PlaceError::UnknownModel));
    fleet.scheduler.update_instance(InstanceId(9), spec());
    assert_eq!(fleet.scheduler.instances(fleet.now).len(), 1, "a removed engine does not come back by its probe");
    fleet.scheduler.check_invariants().unwrap();
}

#[test]
fn an_engine_that_is_not_ready_gets_nothing_even_in_panic() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 0);
    fleet.scheduler.add_instance(InstanceId(0), InstanceSpec { ready: false, ..spec() });
    fleet.probe_ok(0);
    let reasons = vec![(InstanceId(0), "not ready")];
    assert_eq!(fleet.try_place(), Err(PlaceError::NoCandidate { reasons: reasons.clone() }));
    assert_eq!(fleet.scheduler.model_status(MODEL).reasons, reasons);
    fleet.scheduler.update_instance(InstanceId(0), spec());
    fleet.place();
    assert!(fleet.scheduler.model_status(MODEL).serving);
}

#[test]
fn an_attempt_is_charged_once() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 2);
    let placed = fleet.place();
    let mut again = Fleet::new(PolicyKind::LeastWait, 2);
    std::mem::swap(&mut again.scheduler, &mut fleet.scheduler);
    assert_eq!(again.try_place(), Err(PlaceError::AlreadyCharged), "the same number from another counter");
    assert_eq!(again.scheduler.totals(again.now).requests, 1);
    again.settle(placed.ticket, AttemptEnd::Ok);
    again.assert_empty();
}
