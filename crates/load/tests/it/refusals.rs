//! 429 and 503 steer away for a while and are never retried into (`gateways.md` §5, case 34).

use crate::fleet::{Fleet, MODEL, ms};
use plimsoll_core::{InstanceId, Nanos};
use plimsoll_load::{AttemptEnd, HealthState, PlaceError, PolicyKind};

const REFUSED: AttemptEnd = AttemptEnd::Refused { retry_after: None };

#[test]
fn others_are_preferred_for_as_long_as_the_engine_asked() {
    for policy in [PolicyKind::LeastDelay, PolicyKind::LeastWait, PolicyKind::PowerOfTwo, PolicyKind::RoundRobin] {
        let mut fleet = Fleet::new(policy, 2);
        let refused = fleet.serve(AttemptEnd::Refused { retry_after: Some(Nanos::from_secs(2)) }).target.instance;
        for _ in 0..20 {
            assert_ne!(fleet.place().target.instance, refused, "{policy:?}: loaded, but it accepts");
        }
        assert!(!fleet.scheduler.all_refusing(Some(MODEL), fleet.now, &[refused]));
        fleet.pass(Nanos::from_secs(2));
        let (per_instance, _) = fleet.burst(20);
        assert!(per_instance.get(&refused.0).is_some_and(|&n| n >= 10), "{policy:?}: {per_instance:?}");
    }
}

#[test]
fn when_all_refuse_one_attempt_is_left_and_no_retry() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 3);
    for _ in 0..3 {
        fleet.serve(REFUSED);
    }
    assert!(fleet.scheduler.all_refusing(Some(MODEL), fleet.now, &[]));
    assert!(fleet.scheduler.all_refusing(None, fleet.now, &[]));
    let placed = fleet.serve(REFUSED);
    assert!(!placed.panic, "refusing is not unhealthy");
    assert_eq!(placed.considered, 3);
    fleet.pass(ms(1_001));
    assert!(!fleet.scheduler.all_refusing(Some(MODEL), fleet.now, &[]));
}

#[test]
fn with_nobody_else_to_try_a_retry_is_refused() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    let only = fleet.serve(REFUSED).target.instance;
    assert!(fleet.scheduler.all_refusing(Some(MODEL), fleet.now, &[only]));
    assert!(fleet.scheduler.all_refusing(Some("no such model"), fleet.now, &[]));
    fleet.exclude = vec![only];
    let reasons = vec![(InstanceId(0), "already tried by this request")];
    assert_eq!(fleet.try_place(), Err(PlaceError::NoCandidate { reasons }));
}

#[test]
fn a_later_success_ends_the_refusal_an_earlier_one_does_not() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    let earlier = fleet.place().ticket;
    fleet.pass(ms(1));
    fleet.serve(AttemptEnd::Refused { retry_after: Some(Nanos::from_secs(30)) });
    fleet.pass(ms(1));
    fleet.settle(earlier, AttemptEnd::Ok);
    assert!(fleet.scheduler.all_refusing(Some(MODEL), fleet.now, &[]));
    fleet.serve(AttemptEnd::Ok);
    assert!(!fleet.scheduler.all_refusing(Some(MODEL), fleet.now, &[]));
}

#[test]
fn an_absurd_retry_after_is_bounded() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    fleet.serve(AttemptEnd::Refused { retry_after: Some(Nanos::MAX) });
    fleet.pass(Nanos::from_secs(61));
    assert!(!fleet.scheduler.all_refusing(Some(MODEL), fleet.now, &[]));
}

#[test]
fn refusals_never_eject() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    for _ in 0..100 {
        fleet.serve(REFUSED);
    }
    assert_eq!(fleet.state(0), HealthState::Healthy);
}
