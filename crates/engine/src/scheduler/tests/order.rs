//! First come, first served, and nobody starves.

use super::*;
use proptest::prelude::*;

/// Arrivals: steps since the one before, prompt, output, what they say about their hurry.
fn load() -> impl Strategy<Value = Vec<(usize, usize, usize, Urgency)>> {
    let urgency = (prop::option::of(1u64..20_000), prop::option::of(-20i64..20)).prop_map(|(ms, priority)| Urgency {
        ttft: ms.map(Duration::from_millis),
        tpot: None,
        priority,
    });
    prop::collection::vec((0usize..4, 1usize..200, 1usize..30, urgency), 1..40)
}

/// Runs a load to its end, looking at the scheduler after every step.
fn lived(
    order: Order,
    pages: usize,
    running: usize,
    budget: usize,
    load: &[(usize, usize, usize, Urgency)],
    mut look: impl FnMut(&World),
) -> World {
    let limits = Limits { max_running: running, token_budget: budget.max(running), ..limits() };
    let mut world = World::new(pages, limits, order);
    for (pause, prompt, new, urgency) in load {
        for _ in 0..*pause {
            world.step();
            look(&world);
        }
        world.submit(*urgency, *prompt, *new);
    }
    while !world.scheduler.is_idle() {
        world.step();
        look(&world);
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// The order that the engine had before it had policies: those who run came before those who wait, and run in the order
    /// of their arrival. Under `fcfs` whatever requests say, under `slo` as long as they name no deadline.
    #[test]
    fn first_come_first_served(
        load in load(), pages in 15usize..60, running in 1usize..8, budget in 8usize..200, slo in any::<bool>(),
    ) {
        let policy = if slo { SchedulePolicy::Slo } else { SchedulePolicy::Fcfs };
        let order = Order { policy, ..Order::default() };
        let load: Vec<_> = load
            .into_iter()
            .map(|(pause, prompt, new, urgency)| {
                (pause, prompt, new, Urgency { ttft: urgency.ttft.filter(|_| !slo), ..urgency })
            })
            .collect();
        let world = lived(order, pages, running, budget, &load, |world| {
            let scheduler = &world.scheduler;
            let running = scheduler.running.iter().map(|sequence| sequence.serial);
            let all: Vec<u64> = running.chain(scheduler.waiting.iter().map(|sequence| sequence.serial)).collect();
            assert!(all.is_sorted(), "{all:?}");
        });
        prop_assert_eq!(world.done.len(), load.len());
        prop_assert!(world.refused.is_empty());
        let mut first: Vec<u64> = Vec::new();
        for serial in &world.admitted {
            if !first.contains(serial) {
                first.push(*serial);
            }
        }
        prop_assert!(first.is_sorted(), "admitted {:?}", first);
    }

    /// The bound on waiting under `slo`: once a request without a deadline has waited for the patience, nobody who arrives
    /// later is admitted before it.
    #[test]
    fn after_the_patience_nobody_overtakes(
        load in load(), pages in 15usize..60, running in 1usize..8, budget in 8usize..200, patience_ms in 0u64..2_000,
    ) {
        let order = Order { patience: Duration::from_millis(patience_ms), ..Order::default() };
        let mut seen = 0;
        let world = lived(order, pages, running, budget, &load, |world| {
            let arrived = |serial: &u64| world.scheduler.running.iter().find(|one| one.serial == *serial);
            for late in world.admitted[seen..].iter().filter_map(arrived).filter(|one| one.retractions == 0) {
                for waits in world.scheduler.waiting.iter().filter(|one| one.urgency.ttft.is_none()) {
                    let patient_until = waits.arrived_at + Nanos::from_millis(patience_ms);
                    assert!(late.arrived_at <= patient_until, "{} overtook {}", late.serial, waits.serial);
                }
            }
            seen = world.admitted.len();
        });
        // Everybody is served or told why not, and without a deadline everybody is served.
        for (index, (.., urgency)) in load.iter().enumerate() {
            let serial = index as u64 + 1;
            let refused = world.refused.contains_key(&serial);
            prop_assert!(world.done.contains_key(&serial) != refused);
            prop_assert!(!refused || urgency.ttft.is_some());
        }
    }

    /// Whatever the policy, nobody is lost and everybody who has begun is served to the end.
    #[test]
    fn whoever_has_begun_is_served_to_the_end(
        load in load(), pages in 15usize..60, running in 1usize..8, budget in 8usize..200, which in 0usize..3,
        threshold in 0u32..15, low_priority_first in any::<bool>(),
    ) {
        let order = Order {
            policy: SchedulePolicy::ALL[which], preemption_threshold: threshold, low_priority_first, ..Order::default()
        };
        let world = lived(order, pages, running, budget, &load, |_| {});
        for serial in &world.admitted {
            prop_assert!(world.done.contains_key(serial), "{} was admitted and not served", serial);
        }
        prop_assert_eq!(world.done.len() + world.refused.len(), load.len());
        prop_assert_eq!(world.scheduler.blocks.held(), 0);
    }
}

#[test]
fn a_stream_of_urgent_requests_does_not_starve_a_patient_one() {
    let order = Order { patience: Duration::from_secs(2), ..Order::default() };
    let mut world = World::new(60, Limits { max_running: 1, ..limits() }, order);
    let patient = world.submit(Urgency::default(), 100, 5);
    let mut urgent = 0;
    while !world.first_token.contains_key(&patient) {
        // Two always wait, each with a deadline nearer than the patience.
        while world.scheduler.waiting.len() < 3 {
            world.submit(ttft(1_500), 100, 5);
            urgent += 1;
        }
        world.step();
        assert!(world.now < Nanos::from_secs(2), "it waits for ever");
    }
    // Those who came in the first half second went before it, and no others.
    assert!(urgent > 8, "the others were served meanwhile: {urgent}");
    assert!(world.first_token[&patient] > Nanos::from_millis(500));
}
