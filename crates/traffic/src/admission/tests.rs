mod accounts;
mod basis;
mod leases;
mod line;
mod overload;
mod properties;
mod world;

use super::*;
use plimsoll_core::ErrorCode;
use std::collections::BTreeMap;
use world::{End, World, plain};

const KNOWN: Option<f64> = Some(8_000.0);

fn seconds(s: f64) -> Nanos {
    Nanos::from_secs_f64(s)
}

/// High and low in turn, so that neither class is alone.
fn crowd(world: &mut World, low: usize, tokens: u64) -> Vec<RequestId> {
    world.arrive(plain(Class::High, 100));
    (0..low).map(|_| world.arrive(plain(Class::Low, tokens))).collect()
}

#[test]
fn an_idle_pool_takes_anything_at_once() {
    let mut world = World::new(Rules::default(), &[KNOWN]);
    for class in Class::ALL {
        let key = world.arrive(plain(class, 200_000));
        assert_eq!(world.went.get(&key), Some(&world.now), "{class}");
        world.run_until_quiet();
    }
}

/// Unknown is not zero: neither full nor a reason to wait.
#[test]
fn engines_of_unknown_rate_make_nobody_wait() {
    let mut world = World::new(Rules::default(), &[None, None]);
    let keys: Vec<_> = (0..200).map(|i| world.arrive(plain(Class::ALL[i % 3], 50_000))).collect();
    assert!(keys.iter().all(|key| world.went.contains_key(key)));
    let snapshot = world.admission.snapshot(world.now);
    assert_eq!((snapshot.level, snapshot.capacity_tokens_per_s), (None, None));
}

#[test]
fn what_an_engine_has_in_front_of_it_stays_short() {
    let mut world = World::new(Rules::default(), &[KNOWN; 2]);
    for _ in 0..200 {
        world.arrive(plain(Class::High, 1_000));
        let most = world.loads().iter().map(|load| load.backlog_tokens).max().unwrap();
        assert!(most < 8_000 + 1_000, "{most}");
    }
    assert!(world.admission.snapshot(world.now).depth.requests > 150);
    world.run_until_quiet();
    assert_eq!(world.refusals().count(), 0, "nobody asked for a time, so nobody is refused for it");
}

#[test]
fn a_low_class_that_is_alone_keeps_to_no_quota() {
    let mut world = World::new(Rules::default(), &[KNOWN]);
    for _ in 0..20 {
        world.arrive(plain(Class::Low, 20_000));
        world.step();
    }
    world.run_until_quiet();
    assert_eq!(world.refusals().count(), 0);
}

#[test]
fn near_the_brim_low_gives_way_and_high_does_not() {
    let mut world = World::new(Rules::default(), &[KNOWN; 4]);
    let (mut high, mut low) = (Vec::new(), Vec::new());
    // Twice what the pool can do, nearly all of it long and cold.
    for step in 0..6_000u64 {
        if step % 20 == 0 {
            high.push(world.arrive(plain(Class::High, 500)));
        }
        if step % 100 == 0 {
            low.push(world.arrive(plain(Class::Low, 32_000)));
        }
        world.step();
    }
    let refused = |keys: &[RequestId]| keys.iter().filter(|key| world.refusal(**key).is_some()).count();
    assert_eq!(refused(&high), 0);
    assert!(refused(&low) > low.len() / 3, "{} of {}", refused(&low), low.len());
    let refusal = world.refusals().next().unwrap().1;
    assert_eq!(refusal.rule.code(), ErrorCode::QuotaClass);
    assert!(refusal.level.unwrap() > 0.7 && refusal.share < 1.0, "{refusal:?}");
    let late = high.iter().filter(|key| world.wait_of(**key).is_some_and(|wait| wait > seconds(1.0))).count();
    assert!(late * 100 <= high.len(), "{late} of {} high requests waited over a second", high.len());
}

#[test]
fn who_cannot_be_in_time_is_told_so_at_once() {
    let mut world = World::new(Rules::default(), &[KNOWN]);
    world.arrive(plain(Class::High, 16_000));
    let hasty = Arrival { first_token_by: Some(world.now + seconds(1.0)), ..plain(Class::High, 1_000) };
    let key = world.arrive(hasty);
    let refusal = world.refusal(key).expect("two seconds of work are in front of it").clone();
    assert_eq!((refusal.rule, refusal.allowed), (Rule::SloUnattainable, Some(seconds(1.0))));
    assert!(refusal.predicted.unwrap() > seconds(2.0), "{refusal}");
    assert!(refusal.retry_after >= seconds(1.0));
    assert!(refusal.to_string().contains("slo_unattainable"), "{refusal}");
}

/// Seen with four engines in timing mode: three of them at long prefills, and nine in ten short requests with a second's time were refused.
#[test]
fn engines_at_long_prefills_make_nothing_impossible_that_another_can_do() {
    let mut world = World::new(Rules::default(), &[KNOWN; 2]);
    world.arrive(plain(Class::High, 16_000));
    world.arrive(plain(Class::High, 4_100));
    let hasty = Arrival { first_token_by: Some(world.now + seconds(1.0)), ..plain(Class::High, 1_000) };
    let key = world.arrive(hasty);
    world.run_until_quiet();
    assert!(matches!(world.ends[&key], End::FirstToken { .. }), "{:?}", world.ends[&key]);
    assert!(world.wait_of(key).unwrap() <= seconds(1.0));
}

#[test]
fn best_effort_goes_on_waiting_as_the_last_of_low() {
    let best_effort = TenantRules { on_slo_miss: OnSloMiss::BestEffort, ..TenantRules::default() };
    let rules = Rules { tenant_default: best_effort, ..Rules::default() };
    let mut world = World::new(rules, &[KNOWN]);
    world.arrive(plain(Class::High, 16_000));
    let key = world.arrive(Arrival { first_token_by: Some(world.now + seconds(1.0)), ..plain(Class::High, 1_000) });
    assert_eq!(world.admission.snapshot(world.now).classes[2].depth.requests, 1);
    let after = world.arrive(plain(Class::High, 4_000));
    world.run_until_quiet();
    assert!(world.went[&key] > world.went[&after]);
    assert_eq!(world.admission.snapshot(world.now).totals.in_flight_tokens, 0);
}

#[test]
fn nobody_waits_past_his_time() {
    let rules = Rules { max_wait: seconds(3.0), ..Rules::default() };
    let mut world = World::new(rules, &[Some(1_000.0)]);
    world.arrive(plain(Class::High, 60_000));
    let patient = world.arrive(plain(Class::High, 1_000));
    let deadline = world.arrive(Arrival { answer_by: world.now + seconds(1.0), ..plain(Class::High, 1_000) });
    for _ in 0..1_000 {
        world.step();
    }
    for (key, rule, wait) in [(patient, Rule::WaitBudget, 3.0), (deadline, Rule::Deadline, 1.0)] {
        assert_eq!(world.refusal(key).unwrap().rule, rule);
        let waited = world.wait_of(key).unwrap();
        assert!(waited >= seconds(wait) && waited <= seconds(wait) + world::STEP, "{waited}");
    }
    let late = world.arrive(Arrival { answer_by: world.now, ..plain(Class::High, 1) });
    assert_eq!(world.refusal(late).unwrap().rule.code(), ErrorCode::DeadlineExceeded);
}

/// Everything that arrives within half a second comes at once.
#[test]
fn a_stall_of_this_process_refuses_nobody() {
    let mut world = World::new(Rules::default(), &[KNOWN; 4]);
    let run = |world: &mut World, steps: u64, stalled: bool| {
        for step in 0..steps {
            // Three quarters of what the pool can do, in all classes, with deadlines as clients set them.
            for (every, class, tokens) in
                [(10, Class::High, 500), (40, Class::Medium, 1_000), (400, Class::Low, 17_000)]
            {
                if step % every == 0 {
                    let first_token_by = Some(world.now + seconds(20.0));
                    world.arrive(Arrival { first_token_by, ..plain(class, tokens) });
                }
            }
            if !stalled {
                world.step();
            }
        }
    };
    run(&mut world, 4_000, false);
    for _ in 0..5 {
        world.sleep(seconds(0.5));
        run(&mut world, 100, true);
        run(&mut world, 2_000, false);
    }
    world.run_until_quiet();
    assert_eq!(world.refusals().next(), None);
}

#[test]
fn a_tenant_that_sends_ten_times_as_much_takes_what_others_leave() {
    let mut world = World::new(Rules::default(), &[KNOWN; 2]);
    let mut of = BTreeMap::<&str, Vec<RequestId>>::new();
    for step in 0..8_000u64 {
        for (tenant, every) in [("loud", 5), ("a", 50), ("b", 50)] {
            if step % every == 0 {
                let key = world.arrive(Arrival { tenant: tenant.into(), ..plain(Class::Medium, 1_000) });
                of.entry(tenant).or_default().push(key);
            }
        }
        if step % 100 == 0 {
            world.arrive(plain(Class::High, 100));
        }
        world.step();
    }
    let refused = |tenant: &str| of[tenant].iter().filter(|key| world.refusal(**key).is_some()).count();
    assert_eq!((refused("a"), refused("b")), (0, 0));
    assert!(refused("loud") > of["loud"].len() / 4, "{} of {}", refused("loud"), of["loud"].len());
    for (_, refusal) in world.refusals() {
        assert_eq!(refusal.rule, Rule::QuotaTenant);
    }
    let slowest = of["a"].iter().chain(&of["b"]).filter_map(|key| world.wait_of(*key)).max().unwrap();
    assert!(slowest < seconds(2.0), "{slowest}");
}

#[test]
fn a_tenants_own_rate_holds_at_any_level() {
    let limited = TenantRules { tokens_per_s: Some(1_000.0), ..TenantRules::default() };
    let rules = Rules { tenants: [("t".to_owned(), limited)].into(), ..Rules::default() };
    let mut world = World::new(rules, &[KNOWN]);
    let keys: Vec<_> = (0..3).map(|_| world.arrive(plain(Class::High, 1_000))).collect();
    assert_eq!(world.refusal(keys[2]).unwrap().rule, Rule::TenantRate, "two seconds' worth at once, and no more");
    let other = world.arrive(Arrival { tenant: "other".into(), ..plain(Class::High, 1_000) });
    assert!(world.refusal(other).is_none());
}

#[test]
fn repetitions_do_not_displace_fresh_work() {
    let mut world = World::new(Rules { retry_burst: 2, ..Rules::default() }, &[KNOWN]);
    let again = Arrival { retry: true, ..plain(Class::High, 1_000) };
    let free: Vec<_> = (0..4).map(|_| world.arrive(again.clone())).collect();
    assert!(free.iter().all(|key| world.refusal(*key).is_none()), "with room they cost nobody anything");
    world.arrive(plain(Class::High, 8_000));
    let busy: Vec<_> = (0..5).map(|_| world.arrive(again.clone())).collect();
    let refused: Vec<_> = busy.iter().filter_map(|key| world.refusal(*key)).collect();
    assert_eq!(refused.len(), 3);
    assert!(refused.iter().all(|refusal| refusal.rule == Rule::RetryBudget));
    let fresh = world.arrive(plain(Class::High, 1_000));
    assert!(world.refusal(fresh).is_none());
}

#[test]
fn a_full_queue_turns_away_the_newest_of_the_lowest() {
    let mut bounds = Rules::default().bounds;
    bounds.requests = 2;
    let mut world = World::new(Rules { bounds, ..Rules::default() }, &[KNOWN]);
    let lows = crowd(&mut world, 3, 8_000);
    let mut waiting: Vec<_> = lows.iter().filter(|key| !world.went.contains_key(key)).copied().collect();
    assert_eq!(waiting.len(), 2);
    let newest = waiting.pop().unwrap();
    let high = world.arrive(plain(Class::High, 1_000));
    assert!(world.refusal(high).is_none());
    assert_eq!(world.refusal(newest).unwrap().rule, Rule::Displaced);
    assert_eq!(world.refusal(newest).unwrap().rule.code(), ErrorCode::QueueFull);
    let one_more = world.arrive(plain(Class::Low, 1_000));
    assert_eq!(world.refusal(one_more).unwrap().rule, Rule::QueueFull);
}

#[test]
fn a_class_that_had_nothing_for_long_gets_one_request_in() {
    let quotas = crate::quota::Quotas::new(vec![(0.0, 1.0)], vec![(0.0, 1.0)], vec![(0.5, 1.0), (0.6, 0.0)]).unwrap();
    let mut world = World::new(Rules { quotas, ..Rules::default() }, &[KNOWN]);
    let mut low = Vec::new();
    for step in 0..20_000u64 {
        if step % 12 == 0 {
            world.arrive(plain(Class::High, 500));
        }
        if step % 200 == 0 {
            low.push(world.arrive(plain(Class::Low, 2_000)));
        }
        world.step();
    }
    let served = low.iter().filter(|key| matches!(world.ends.get(key), Some(End::FirstToken { .. }))).count();
    assert!((4..=40).contains(&served), "{served} of {}", low.len());
}

#[test]
fn long_prefills_leave_engines_to_the_high_class() {
    let mut world = World::new(Rules::default(), &[KNOWN; 4]);
    for _ in 0..20 {
        world.arrive(plain(Class::High, 1_000));
        (0..20).for_each(|_| world.step());
    }
    world.run_until_quiet();
    for _ in 0..6 {
        world.arrive(plain(Class::Low, 30_000));
    }
    let snapshot = world.admission.snapshot(world.now);
    assert_eq!((snapshot.long_prefills, snapshot.long_prefills_most), (3, Some(3)));
    let short = world.arrive(plain(Class::High, 1_000));
    assert!(world.went.contains_key(&short));
}

#[test]
fn new_rules_hold_at_once_and_lose_nobody() {
    let mut world = World::new(Rules::default(), &[Some(1_000.0)]);
    let keys: Vec<_> = (0..30).map(|_| world.arrive(plain(Class::Medium, 1_000))).collect();
    let mut bounds = Rules::default().bounds;
    bounds.requests = 1;
    world.admission.reconfigure(world.now, Rules { bounds, ..Rules::default() });
    let refused = world.arrive(plain(Class::Medium, 1_000));
    assert_eq!(world.refusal(refused).unwrap().rule, Rule::QueueFull);
    world.run_until_quiet();
    assert!(keys.iter().all(|key| matches!(world.ends[key], End::FirstToken { .. })));
}

#[test]
fn what_was_not_run_is_given_back() {
    let mut admission = Admission::new(Rules::default());
    let view = PoolView { taken_at: Nanos(1), instances: &[plimsoll_core::InstanceLoad::default()] };
    let arrival = |key| Arrival { key: RequestId(key), decode_tokens: 100, ..plain(Class::High, 1_000) };
    assert!(matches!(admission.arrive(Nanos(1), arrival(1), &view), Verdict::Go(_)));
    assert!(matches!(admission.arrive(Nanos(1), arrival(2), &view), Verdict::Go(_)));
    admission.settle(RequestId(1), Nanos(2), Some(400), Some(900));
    let totals = admission.snapshot(Nanos(2)).totals;
    assert_eq!((totals.settled_tokens, totals.refunded_tokens, totals.in_flight_tokens), (1_100, 0, 1_100));
    admission.settle(RequestId(2), Nanos(2), Some(400), None);
    admission.settle(RequestId(2), Nanos(2), Some(400), None);
    let totals = admission.snapshot(Nanos(2)).totals;
    assert_eq!((totals.settled_tokens, totals.refunded_tokens, totals.in_flight_requests), (1_600, 600, 0));
}

#[test]
fn tenants_clamp_classes() {
    let rules = TenantRules { highest: Class::Medium, ..TenantRules::default() };
    assert_eq!(Class::ALL.map(|class| rules.bounds(true).clamp(class)), [Class::Medium, Class::Medium, Class::Low]);
    let rules = TenantRules { lowest: Class::Medium, ..TenantRules::default() };
    assert_eq!(Class::ALL.map(|class| rules.bounds(true).clamp(class)), [Class::High, Class::Medium, Class::Medium]);
}
