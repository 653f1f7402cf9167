//! What holds for any order of events.

use super::world::{End, STEP, World, plain};
use crate::admission::{Arrival, OnSloMiss, Rules, TenantRules};
use plimsoll_core::{Class, Nanos, RequestId};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    Arrive { class: usize, tokens: u64, tenant: u8, within_ms: Option<u64>, retry: bool },
    Cancel(prop::sample::Index),
    Steps(u8),
    Stall(u8),
    Reconfigure { requests: u64 },
}

fn event() -> impl Strategy<Value = Event> {
    let arrive = (0usize..3, 1u64..40_000, 0u8..4, prop::option::of(1u64..20_000), any::<bool>()).prop_map(
        |(class, tokens, tenant, within_ms, retry)| Event::Arrive { class, tokens, tenant, within_ms, retry },
    );
    prop_oneof![
        6 => arrive,
        1 => any::<prop::sample::Index>().prop_map(Event::Cancel),
        3 => (1u8..100).prop_map(Event::Steps),
        1 => (1u8..100).prop_map(Event::Stall),
        1 => (1u64..50).prop_map(|requests| Event::Reconfigure { requests }),
    ]
}

fn rules(requests: u64, best_effort: bool) -> Rules {
    let mut rules = Rules::default();
    rules.bounds.requests = requests;
    if best_effort {
        let tenant = TenantRules { on_slo_miss: OnSloMiss::BestEffort, ..TenantRules::default() };
        rules.tenants.insert("t1".to_owned(), tenant);
    }
    rules
}

/// Sums agree, and nobody waits whose time is up.
fn check(world: &mut World) {
    let snapshot = world.admission.snapshot(world.now);
    let totals = snapshot.totals;
    assert_eq!(
        totals.admitted_tokens,
        totals.settled_tokens + totals.refunded_tokens + totals.in_flight_tokens,
        "{totals:?}"
    );
    assert!(snapshot.classes.windows(2).all(|pair| pair[0].share >= pair[1].share || pair[1].share == 1.0));
    assert!(snapshot.level.is_none_or(|level| (0.0..=1.0).contains(&level)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every key is answered exactly once (the world asserts that none is answered twice), every token is settled or given
    /// back, and nobody is answered after his deadline.
    #[test]
    fn everybody_is_answered_once_and_every_token_accounted_for(
        rates in prop::collection::vec(prop::option::weighted(0.8, 500f64..20_000.0), 1..5),
        events in prop::collection::vec(event(), 1..80),
        requests in 1u64..40, best_effort in any::<bool>(),
    ) {
        let mut world = World::new(rules(requests, best_effort), &rates);
        for event in events {
            match event {
                Event::Arrive { class, tokens, tenant, within_ms, retry } => {
                    let first_token_by = within_ms.map(|ms| world.now + Nanos::from_millis(ms));
                    let answer_by = world.now + Nanos::from_secs(30);
                    let tenant = format!("t{tenant}").as_str().into();
                    world.arrive(Arrival { tenant, first_token_by, answer_by, retry, ..plain(Class::ALL[class], tokens) });
                }
                Event::Cancel(index) if !world.arrived.is_empty() => {
                    let key = RequestId(index.index(world.arrived.len()) as u128);
                    if !world.cancelled.contains(&key) {
                        world.cancel(key);
                    }
                }
                Event::Cancel(_) => {}
                Event::Steps(steps) => (0..steps).for_each(|_| world.step()),
                Event::Stall(steps) => world.sleep(Nanos(STEP.0 * u64::from(steps))),
                Event::Reconfigure { requests } => {
                    world.admission.reconfigure(world.now, rules(requests, best_effort));
                }
            }
            check(&mut world);
        }
        world.run_until_quiet();
        for (key, arrival) in &world.arrived {
            prop_assert_eq!(
                u32::from(world.ends.contains_key(key)) + u32::from(world.cancelled.contains(key)), 1, "{}", key
            );
            if world.refusal(*key).is_some() && !world.went.contains_key(key) {
                let waited = world.wait_of(*key).unwrap();
                prop_assert!(waited <= Nanos::from_secs(30) + Nanos(STEP.0 * 100), "{} {:?}", waited, arrival);
            }
        }
        let totals = world.admission.snapshot(world.now).totals;
        prop_assert_eq!((totals.in_flight_tokens, totals.in_flight_requests), (0, 0));
        prop_assert_eq!(totals.admitted_tokens, totals.settled_tokens + totals.refunded_tokens);
    }

    /// While something waits, every engine has what it may have in front of it: no engine stands still for lack of a decision.
    #[test]
    fn no_engine_idles_while_somebody_waits(
        rates in prop::collection::vec(1_000f64..20_000.0, 1..6),
        arrivals in prop::collection::vec((0usize..3, 1u64..30_000, 0u8..4, 0u8..20), 1..60),
    ) {
        let known: Vec<_> = rates.iter().map(|rate| Some(*rate)).collect();
        // Nothing is long here: what is held back for the high class has a test of its own.
        let rules = Rules { long_prefill: Nanos::MAX, ..Rules::default() };
        let mut world = World::new(rules, &known);
        for (class, tokens, tenant, steps) in arrivals {
            let tenant = format!("t{tenant}").as_str().into();
            world.arrive(Arrival { tenant, ..plain(Class::ALL[class], tokens) });
            for _ in 0..=steps {
                let waits = world.admission.snapshot(world.now).depth.requests > 0;
                prop_assert!(!waits || world.least_wait_s() > 0.0);
                let wait = |at: &usize| world.loads()[*at].backlog_tokens as f64 / rates[*at];
                let next = (0..rates.len()).min_by(|a, b| wait(a).total_cmp(&wait(b))).unwrap();
                prop_assert!(!waits || wait(&next) >= (4_096.0 / rates[next]).max(0.5));
                world.step();
            }
        }
    }

    /// However much of the high class arrives, whoever of the low class was admitted is answered after at most the work that the
    /// weights allow in front of it: thirteen thirteenths for each of its own.
    #[test]
    fn nobody_starves(
        high_tokens in 100u64..2_000, low_tokens in 1_000u64..16_000, overload in 1.2f64..3.0,
    ) {
        let rate = 8_000.0;
        // Alone among classes there is no quota; without one the queue alone has to be fair.
        let quotas = crate::quota::Quotas::new(vec![(1.0, 1.0)], vec![(1.0, 1.0)], vec![(1.0, 1.0)]).unwrap();
        let mut world = World::new(Rules { quotas, ..Rules::default() }, &[Some(rate)]);
        let mut owed = 0.0;
        let mut bounds = Vec::new();
        for step in 0..4_000u64 {
            owed += rate * overload * STEP.as_secs_f64();
            while owed >= high_tokens as f64 {
                owed -= high_tokens as f64;
                world.arrive(plain(Class::High, high_tokens));
            }
            if step % 400 == 0 {
                let ahead = world.admission.snapshot(world.now).classes[2].depth.tokens + low_tokens;
                // Nine parts in nine: high and low; one request of each at the ends, and what the engine has already.
                let tokens = 9.0 * ahead as f64 + 9.0 * low_tokens as f64 + 2.0 * high_tokens as f64 + 8_192.0;
                bounds.push((world.arrive(plain(Class::Low, low_tokens)), Nanos::from_secs_f64(tokens / rate)));
            }
            world.step();
        }
        for (key, bound) in bounds {
            let waited = world.wait_of(key).unwrap_or(world.now.since(world.at[&key]));
            prop_assert!(waited <= bound, "{} waited {} of at most {}", key, waited, bound);
            let answered = matches!(world.ends.get(&key), None | Some(End::FirstToken { .. }));
            prop_assert!(answered);
        }
    }

    /// A class whose promises are at stake goes before its share, on credit: whoever of the low class was admitted waits at most for that credit longer than by
    /// the weights alone.
    #[test]
    fn nobody_starves_for_promises_to_a_higher_class(
        high_tokens in 100u64..2_000, low_tokens in 1_000u64..16_000, overload in 1.0f64..3.0, within_ms in 500u64..5_000,
    ) {
        let rate = 8_000.0;
        let quotas = crate::quota::Quotas::new(vec![(1.0, 1.0)], vec![(1.0, 1.0)], vec![(1.0, 1.0)]).unwrap();
        let rules = Rules { quotas, aging: Nanos::from_secs(3), ..Rules::default() };
        let credit_tokens = rate * rules.aging.as_secs_f64();
        let mut world = World::new(rules, &[Some(rate)]);
        let mut owed = 0.0;
        let mut bounds = Vec::new();
        for step in 0..6_000u64 {
            owed += rate * overload * STEP.as_secs_f64();
            while owed >= high_tokens as f64 {
                owed -= high_tokens as f64;
                let first_token_by = Some(world.now + Nanos::from_millis(within_ms));
                world.arrive(Arrival { first_token_by, ..plain(Class::High, high_tokens) });
            }
            if step % 400 == 0 {
                let ahead = world.admission.snapshot(world.now).classes[2].depth.tokens + low_tokens;
                let by_weight = 9.0 * ahead as f64 + 9.0 * low_tokens as f64 + 2.0 * high_tokens as f64 + 8_192.0;
                let bound = Nanos::from_secs_f64((by_weight + credit_tokens + high_tokens as f64) / rate);
                bounds.push((world.arrive(plain(Class::Low, low_tokens)), bound));
            }
            world.step();
        }
        for (key, bound) in bounds {
            let waited = world.wait_of(key).unwrap_or(world.now.since(world.at[&key]));
            prop_assert!(waited <= bound, "{} waited {} of at most {}", key, waited, bound);
        }
    }
}
