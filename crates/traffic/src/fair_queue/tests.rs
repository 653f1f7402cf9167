use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

type Queue = FairQueue<u64, u8>;

const WIDE: Bounds = Bounds { requests: u64::MAX, bytes: u64::MAX, tokens: u64::MAX };

fn waiting(key: u64, class: Class, tenant: u8, cost: u64) -> Waiting<u64, u8> {
    Waiting { key, class, tenant, cost_tokens: cost, bytes: 10, latest_start: Nanos(key) }
}

fn all(_: Class) -> bool {
    true
}

#[test]
fn classes_share_eight_to_four_to_one() {
    let mut queue = Queue::new(WIDE, Weights::default());
    for key in 0..3000 {
        queue.push(waiting(key, Class::ALL[key as usize % 3], 0, 100), 1).unwrap();
    }
    let mut served = [0; 3];
    for _ in 0..1300 {
        served[queue.pop(all).unwrap().class as usize] += 1;
    }
    assert_eq!(served, [800, 400, 100]);
}

#[test]
fn a_tenant_with_ten_times_the_requests_gets_its_share_and_no_more() {
    let mut queue = Queue::new(WIDE, Weights::default());
    for key in 0..1100 {
        queue.push(waiting(key, Class::Medium, u8::from(key % 11 == 0), 100), 1).unwrap();
    }
    let first: Vec<u8> = (0..100).map(|_| queue.pop(all).unwrap().tenant).collect();
    assert_eq!(first.iter().filter(|tenant| **tenant == 1).count(), 50);
}

#[test]
fn a_queue_that_one_tenant_has_filled_is_not_full_for_the_others() {
    let mut queue = Queue::new(Bounds { requests: 10, ..WIDE }, Weights::default());
    for key in 0..10 {
        queue.push(waiting(key, Class::Medium, 0, 100), 1).unwrap();
    }
    let mut left = Vec::new();
    for key in 10..20 {
        match queue.push(waiting(key, Class::Medium, 1, 100), 1) {
            Ok(displaced) => left.extend(displaced.into_iter().map(|one| one.key)),
            Err(rejected) => left.push(rejected.request.key),
        }
    }
    assert_eq!(left, [9, 8, 7, 6, 5, 15, 16, 17, 18, 19], "until both hold the same; who can wait longest gives way");
    assert!(queue.push(waiting(20, Class::Medium, 0, 100), 1).is_err(), "nobody displaces himself");
    assert!(queue.push(waiting(21, Class::Low, 2, 1), 1).is_err(), "nor a higher class");
}

#[test]
fn idling_saves_nothing_up_and_coming_back_pays_for_what_was_had() {
    let mut queue = Queue::new(WIDE, Weights::default());
    // Tenant 0 is served alone for a while.
    for key in 0..100 {
        queue.push(waiting(key, Class::Medium, 0, 100), 1).unwrap();
    }
    (0..50).for_each(|_| assert!(queue.pop(all).is_some()));
    for key in 100..150 {
        queue.push(waiting(key, Class::Medium, 1, 100), 1).unwrap();
    }
    let next: Vec<u8> = (0..20).map(|_| queue.pop(all).unwrap().tenant).collect();
    assert_eq!(next.iter().filter(|tenant| **tenant == 1).count(), 10, "no arrears: {next:?}");
    // Who sends one at a time is no newcomer each time.
    let mut queue = Queue::new(WIDE, Weights::default());
    for key in 0..100 {
        queue.push(waiting(key, Class::Medium, 0, 100), 1).unwrap();
    }
    let mut ones = 0;
    for key in 1000..1040 {
        queue.push(waiting(key, Class::Medium, 1, 100), 1).unwrap();
        let served = queue.pop(all).unwrap();
        ones += u64::from(served.tenant == 1);
        queue.remove(&key);
    }
    assert!(ones <= 21, "{ones} of 40 were its own");
}

#[test]
fn of_one_tenant_who_must_begin_soonest_goes_first() {
    let mut queue = Queue::new(WIDE, Weights::default());
    for (key, latest) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
        queue.push(Waiting { latest_start: Nanos(latest), ..waiting(key, Class::High, 0, 1) }, 1).unwrap();
    }
    assert_eq!(queue.peek(all).map(|one| one.key), Some(2));
    let order: Vec<u64> = std::iter::from_fn(|| queue.pop(all)).map(|one| one.key).collect();
    assert_eq!(order, [2, 4, 3, 1]);
}

#[test]
fn a_full_queue_drops_the_newest_of_the_lowest_class() {
    let bounds = Bounds { requests: 4, ..WIDE };
    let mut queue = Queue::new(bounds, Weights::default());
    for (key, class) in [(1, Class::Low), (2, Class::Medium), (3, Class::Low), (4, Class::Medium)] {
        assert_eq!(queue.push(waiting(key, class, 0, 1), 1), Ok(vec![]));
    }
    let keys =
        |displaced: Result<Vec<Waiting<u64, u8>>, _>| displaced.map(|all| all.iter().map(|one| one.key).collect());
    assert_eq!(keys(queue.push(waiting(5, Class::High, 0, 1), 1)), Ok(vec![3]));
    assert_eq!(keys(queue.push(waiting(6, Class::Medium, 0, 1), 1)), Ok(vec![1]));
    let refused = waiting(7, Class::Medium, 0, 1);
    assert_eq!(keys(queue.push(refused.clone(), 1)), Err(Rejected { full: Full::Requests, request: refused }));
    assert_eq!(keys(queue.push(waiting(8, Class::High, 0, 1), 1)), Ok(vec![6]));
    assert_eq!(queue.depth().requests, 4);
}

#[test]
fn nothing_is_dropped_for_one_that_does_not_fit_anyway() {
    let mut queue = Queue::new(Bounds { tokens: 100, ..WIDE }, Weights::default());
    queue.push(waiting(1, Class::High, 0, 60), 1).unwrap();
    queue.push(waiting(2, Class::Low, 0, 40), 1).unwrap();
    let big = waiting(3, Class::High, 0, 50);
    assert_eq!(queue.push(big.clone(), 1), Err(Rejected { full: Full::Tokens, request: big }));
    assert_eq!(queue.depth(), Depth { requests: 2, bytes: 20, tokens: 100 });
    let rejected =
        Queue::new(Bounds { bytes: 9, ..WIDE }, Weights::default()).push(waiting(1, Class::High, 0, 1), 1).unwrap_err();
    assert_eq!(rejected.full, Full::Bytes);
}

#[test]
fn a_class_that_may_not_go_leaves_its_turn_to_the_others() {
    let mut queue = Queue::new(WIDE, Weights::default());
    queue.push(waiting(1, Class::High, 0, 1), 1).unwrap();
    queue.push(waiting(2, Class::Low, 0, 1), 1).unwrap();
    assert_eq!(queue.pop(|class| class != Class::High).map(|one| one.key), Some(2));
    assert_eq!(queue.pop(|class| class != Class::High), None);
    assert_eq!(queue.pop(all).map(|one| one.key), Some(1));
}

#[derive(Clone, Debug)]
enum Act {
    Push { class: usize, tenant: u8, cost: u64, latest: u64, weight: u32 },
    Pop,
    Remove(prop::sample::Index),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0usize..3, 0u8..5, 0u64..5_000, 0u64..1_000, 1u32..5)
            .prop_map(|(class, tenant, cost, latest, weight)| Act::Push { class, tenant, cost, latest, weight }),
        2 => Just(Act::Pop),
        1 => any::<prop::sample::Index>().prop_map(Act::Remove),
    ]
}

proptest! {
    /// Whoever came in comes out exactly once: served, removed or displaced; depths are the sums of what waits; whoever
    /// waits is served; and nobody is remembered when nobody waits.
    #[test]
    fn nothing_is_lost_and_nothing_is_counted_twice(
        acts in prop::collection::vec(act(), 1..120), requests in 1u64..30, tokens in 1_000u64..60_000,
    ) {
        let bounds = Bounds { requests, tokens, bytes: u64::MAX };
        let mut queue = Queue::new(bounds, Weights::default());
        let mut held: HashMap<u64, Waiting<u64, u8>> = HashMap::new();
        for (key, act) in acts.into_iter().enumerate() {
            match act {
                Act::Push { class, tenant, cost, latest, weight } => {
                    let class = Class::ALL[class];
                    let one = Waiting { latest_start: Nanos(latest), ..waiting(key as u64, class, tenant, cost) };
                    match queue.push(one.clone(), weight) {
                        Ok(displaced) => {
                            for lost in displaced {
                                let least = held.values().map(|one| one.class).max();
                                if lost.class == class {
                                    prop_assert!(lost.tenant != tenant, "nobody displaces himself");
                                } else {
                                    prop_assert_eq!(least, Some(lost.class), "the lowest first");
                                    prop_assert!(lost.class > class, "only lower classes give way");
                                }
                                prop_assert_eq!(held.remove(&lost.key), Some(lost));
                            }
                            held.insert(one.key, one);
                        }
                        Err(back) => prop_assert_eq!(back.request, one),
                    }
                }
                Act::Pop => {
                    let next = queue.peek(all).cloned();
                    let got = queue.pop(all);
                    prop_assert_eq!(&got, &next);
                    prop_assert_eq!(got.is_some(), !held.is_empty());
                    if let Some(one) = got {
                        let soonest = held.values().filter(|other| (other.class, other.tenant) == (one.class, one.tenant));
                        prop_assert_eq!(soonest.map(|other| other.latest_start).min(), Some(one.latest_start));
                        prop_assert_eq!(held.remove(&one.key), Some(one));
                    }
                }
                Act::Remove(which) if !held.is_empty() => {
                    let mut keys: Vec<u64> = held.keys().copied().collect();
                    keys.sort_unstable();
                    let key = keys[which.index(keys.len())];
                    prop_assert_eq!(queue.remove(&key), held.remove(&key));
                    prop_assert_eq!(queue.remove(&key), None);
                }
                Act::Remove(_) => {}
            }
            let depth = queue.depth();
            prop_assert_eq!(depth.requests, held.len() as u64);
            prop_assert_eq!(depth.tokens, held.values().map(|one| one.cost_tokens).sum::<u64>());
            prop_assert!(depth.requests <= requests && depth.tokens <= tokens);
            prop_assert_eq!(queue.iter().count(), held.len());
        }
        while let Some(one) = queue.pop(all) {
            prop_assert!(held.remove(&one.key).is_some());
        }
        prop_assert!(held.is_empty() && queue.is_empty());
        prop_assert_eq!(queue.known_tenants(), 0);
    }

    /// Over any stretch in which two tenants both wait, what they got differs by no more than one largest request of each;
    /// the same between classes, weighed.
    #[test]
    fn shares_differ_by_one_largest_request_at_most(
        costs in prop::collection::vec((0usize..3, 0u8..3, 1u64..100_000), 30..200),
        weights in prop::array::uniform3(1u32..6),
        from in 0usize..40,
    ) {
        let mut queue = Queue::new(WIDE, Weights::default());
        let largest = costs.iter().map(|(_, _, cost)| *cost).max().unwrap() as f64;
        let mut left: HashMap<(Class, u8), usize> = HashMap::new();
        for (key, (class, tenant, cost)) in costs.iter().enumerate() {
            let class = Class::ALL[*class];
            queue.push(waiting(key as u64, class, *tenant, *cost), weights[usize::from(*tenant)]).unwrap();
            *left.entry((class, *tenant)).or_default() += 1;
        }
        let mut served: HashMap<(Class, u8), u64> = HashMap::new();
        let mut by_class: HashMap<Class, u64> = HashMap::new();
        for step in 0.. {
            let Some(one) = queue.pop(all) else { break };
            if step >= from {
                *served.entry((one.class, one.tenant)).or_default() += one.cost_tokens;
                *by_class.entry(one.class).or_default() += one.cost_tokens;
            }
            let flow = left.get_mut(&(one.class, one.tenant)).unwrap();
            *flow -= 1;
            // As long as everybody that was there still waits.
            if *flow == 0 {
                break;
            }
            for class in Class::ALL {
                let share = |tenant: u8| {
                    let weight = f64::from(weights[usize::from(tenant)]);
                    (served.get(&(class, tenant)).copied().unwrap_or(0) as f64 / weight, weight)
                };
                for (one, other) in [(0, 1), (1, 2), (0, 2)] {
                    if left.contains_key(&(class, one)) && left.contains_key(&(class, other)) {
                        let ((one, a), (other, b)) = (share(one), share(other));
                        prop_assert!((one - other).abs() <= largest / a + largest / b + 1.0, "{one} {other}");
                    }
                }
            }
            let of = |class: Class| by_class.get(&class).copied().unwrap_or(0) as f64;
            let waits = |class: Class| left.keys().any(|(other, _)| *other == class);
            for (one, other, a, b) in [(Class::High, Class::Medium, 8.0, 4.0), (Class::Medium, Class::Low, 4.0, 1.0)] {
                if waits(one) && waits(other) {
                    let apart = (of(one) / a - of(other) / b).abs();
                    prop_assert!(apart <= largest / a + largest / b + 1.0, "{apart}");
                }
            }
        }
    }

    /// However much the others send, a request is served before they have had more than their share and one largest each.
    #[test]
    fn nobody_starves(others in prop::collection::vec((0usize..3, 1u8..5, 1u64..1_000), 1..50), class in 0usize..3) {
        let mut queue = Queue::new(WIDE, Weights::default());
        let class = Class::ALL[class];
        let mut key = 1;
        let mut flood = |queue: &mut Queue| {
            for (class, tenant, cost) in &others {
                key += 1;
                let urgent = Waiting { latest_start: Nanos::ZERO, ..waiting(key, Class::ALL[*class], *tenant, *cost) };
                queue.push(urgent, 1).unwrap();
            }
        };
        flood(&mut queue);
        queue.push(Waiting { latest_start: Nanos::MAX, ..waiting(0, class, 0, 1_000) }, 1).unwrap();
        let mut before = 0;
        loop {
            flood(&mut queue);
            let one = queue.pop(all).unwrap();
            if one.key == 0 {
                break;
            }
            before += one.cost_tokens;
            // All classes together have 13 shares of which it has at least one, and four other tenants a fifth of that each.
            prop_assert!(before <= 13 * 6 * 2_000, "{before} tokens were served before it");
        }
    }
}
