//! Who is charged, for what, and when he is told to come back.

use super::world::{World, plain};
use super::*;
use plimsoll_core::InstanceLoad;

fn idle(now: Nanos, instances: &[InstanceLoad; 1]) -> PoolView<'_> {
    PoolView { taken_at: now, instances }
}

fn engine() -> [InstanceLoad; 1] {
    [InstanceLoad { prefill_tokens_per_s: KNOWN, ..InstanceLoad::default() }]
}

/// It was the later of the two times, though either lets the request in.
#[test]
fn a_tenant_over_its_part_is_told_the_first_time_at_which_it_would_be_let_in() {
    let now = seconds(1.0);
    let mut admission = Admission::new(Rules::default());
    admission.look(now, &idle(now, &engine()));
    for tenant in ["t", "u"] {
        admission.tenants.asks(&tenant.into(), Class::Medium, now, &Rules::default());
    }
    admission.admitted[Class::Medium as usize] = Some(now);
    let mut flight = admission.flight(&plain(Class::Medium, 1_000), now);
    assert_eq!(admission.check_quota(&flight, 0.5, now), Ok(()));
    // The class has had 2,000 tokens too many at 4,000 a second, its tenant more at 3,600.
    for _ in 0..9 {
        admission.charge(&mut flight, now);
    }
    admission.tenants.charge("t", Class::Medium, 8_000, now);
    let Err((rule, Some(at))) = admission.check_quota(&flight, 0.5, now) else { panic!("it is over both") };
    assert_eq!(rule, Rule::QuotaTenant);
    assert!(at >= seconds(0.5) && at < seconds(0.51), "{at}");
    assert!(admission.check_quota(&flight, 0.5, now + seconds(0.4)).is_err());
    assert_eq!(admission.check_quota(&flight, 0.5, now + at), Ok(()));
}

/// Arrivals that were refused made the other classes keep to quotas and engines stand aside.
#[test]
fn what_a_tenants_own_rate_refuses_is_no_demand() {
    let limited = TenantRules { tokens_per_s: Some(100.0), ..TenantRules::default() };
    let tenants = [("t".to_owned(), limited)].into();
    let rules = Rules { tenants, demand_memory: seconds(1.0), ..Rules::default() };
    let mut world = World::new(rules, &[KNOWN; 2]);
    world.arrive(plain(Class::High, 1_000));
    assert!(world.admission.snapshot(world.now).long_prefills_most.is_some());
    (0..400).for_each(|_| world.step());
    for _ in 0..50 {
        let key = world.arrive(plain(Class::High, 1_000));
        assert_eq!(world.refusal(key).unwrap().rule, Rule::TenantRate);
    }
    assert_eq!(world.admission.snapshot(world.now).long_prefills_most, None);
    assert!(world.admission.demand.is_alone(Class::Low, world.now, seconds(1.0), &ModelDemand::default()));
}

/// They were charged at the limit of the last overload, and the next one refused for minutes.
#[test]
fn what_is_admitted_in_calm_fills_no_meter() {
    let mut admission = Admission::new(Rules::default());
    let mut now = seconds(1.0);
    admission.look(now, &idle(now, &engine()));
    admission.tenants.asks(&"t".into(), Class::Low, now, &Rules::default());
    let flight = admission.flight(&plain(Class::Low, 1_000), now);
    assert_eq!(admission.check_quota(&flight, 0.02, now), Ok(()));
    for key in 0..100 {
        now = now + seconds(0.1);
        let arrival = Arrival { key: RequestId(key), ..plain(Class::Low, 10_000) };
        assert!(matches!(admission.arrive(now, arrival, &idle(now, &engine())), Verdict::Go(_)));
        admission.settle(RequestId(key), now, None, None);
    }
    admission.admitted[Class::Low as usize] = Some(now);
    assert_eq!(admission.check_quota(&flight, 0.02, now), Ok(()));
    assert_eq!(admission.meters[Class::Low as usize].filled_tokens(now), 0.0);
    assert_eq!(admission.tenants.check_part("t", Class::Low, 1, now), Ok(()));
}

/// What was admitted without a charge was given back from what others had been charged.
#[test]
fn what_was_not_charged_is_not_given_back() {
    let mut admission = Admission::new(Rules::default());
    let now = seconds(1.0);
    let calm = Arrival { key: RequestId(1), ..plain(Class::Low, 10_000) };
    assert!(matches!(admission.arrive(now, calm, &idle(now, &engine())), Verdict::Go(_)));
    let mut flight = admission.flight(&plain(Class::Low, 1_000), now);
    assert_eq!(admission.check_quota(&flight, 0.5, now), Ok(()));
    admission.charge(&mut flight, now);
    assert!(flight.quota_charged);
    admission.cancel(RequestId(1), now);
    assert_eq!(admission.meters[Class::Low as usize].filled_tokens(now), 1_000.0);
    // And what was, is.
    admission.books.admit(RequestId(2), flight);
    admission.cancel(RequestId(2), now);
    assert_eq!(admission.meters[Class::Low as usize].filled_tokens(now), 0.0);
}

/// A failed request is no sign of what the pool can do.
#[test]
fn what_was_cancelled_is_no_capacity() {
    let mut admission = Admission::new(Rules::default());
    let busy = [InstanceLoad { backlog_tokens: 100_000, ..engine()[0] }];
    for key in 0..2 {
        let now = seconds(1.0 + key as f64);
        let at_first = engine();
        let view = idle(now, if key == 0 { &at_first } else { &busy });
        admission.arrive(now, Arrival { key: RequestId(key), ..plain(Class::High, 100_000) }, &view);
        admission.dispatch(now, &idle(now, &busy));
    }
    admission.begun(RequestId(0), None);
    admission.cancel(RequestId(0), seconds(3.0));
    admission.dispatch(seconds(5.0), &idle(seconds(5.0), &busy));
    assert_eq!(admission.capacity.tokens_per_s(8_000.0), None);
}

/// It was a number of tokens, and a fleet of half the size was refused for at twice what it could do.
#[test]
fn capacity_follows_the_size_of_the_fleet() {
    let mut capacity = Capacity::default();
    for at in 0..10u32 {
        capacity.update(seconds(2.0 * f64::from(at)), true, Some(8_000.0));
        capacity.served(24_000);
    }
    assert_eq!(capacity.tokens_per_s(8_000.0), Some(12_000.0));
    assert_eq!(capacity.tokens_per_s(4_000.0), Some(6_000.0));
}
