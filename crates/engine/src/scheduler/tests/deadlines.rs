//! Deadlines under `slo`: who is refused, when, and that the rest is in time.

use super::*;
use crate::refusal::Late;
use proptest::prelude::*;

fn world() -> World {
    let mut world = World::new(4_000, Limits { max_running: 64, token_budget: 128, ..limits() }, Order::default());
    world.warm_up();
    world
}

fn late(refusal: &Refusal) -> Late {
    let Refusal::SloUnattainable(late) = refusal else { panic!("{refusal:?}") };
    *late
}

#[test]
fn who_cannot_be_in_time_is_told_before_anything_is_computed_for_it() {
    let mut world = world();
    // Full steps take 10 ms and 12.8 ms for 128 tokens: 1,000 tokens are 8 steps, 182 ms.
    let hopeless = world.submit(ttft(100), 1_000, 2);
    let fine = world.submit(ttft(300), 1_000, 2);
    world.step();
    assert_eq!(world.refused.keys().collect::<Vec<_>>(), [&hopeless]);
    let late = late(&world.refused[&hopeless]);
    assert!(late.alone && late.goal == "ttft");
    assert_eq!(late.no_place_of, None);
    assert_eq!(late.wanted, Nanos::from_millis(100));
    // Behind the other one it would be done after 2,000 tokens: 16 steps, 356 ms.
    assert!((330.0..380.0).contains(&late.predicted.as_millis_f64()), "{late}");
    assert_eq!(world.refused[&hopeless].retry_after_s(), Some(1));
    world.run();
    assert!(world.first_token[&fine] <= world.scheduler.at(world.scheduler.origin) + world.now);
    assert!(world.done.contains_key(&fine) && !world.done.contains_key(&hopeless));
}

#[test]
fn the_longest_goes_when_not_all_can_be_in_time() {
    let mut world = world();
    let long = world.submit(ttft(260), 1_000, 1);
    let short: Vec<u64> = (0..4).map(|_| world.submit(ttft(300), 300, 1)).collect();
    world.run();
    assert_eq!(world.refused.keys().collect::<Vec<_>>(), [&long]);
    let late = late(&world.refused[&long]);
    assert!(!late.alone && late.predicted > late.wanted);
    for serial in short {
        assert!(world.done.contains_key(&serial));
    }
}

#[test]
fn while_the_pace_is_not_known_nobody_is_refused_before_the_deadline_has_passed() {
    let mut world = World::new(4_000, Limits { max_running: 1, ..limits() }, Order::default());
    let first = world.submit(ttft(1), 2_000, 50);
    world.scheduler.plan(world.now);
    assert_eq!((world.scheduler.running.len(), world.scheduler.turned_away.len()), (1, 0));
    compute(&mut world.scheduler, |_| 50);
    // The only place is taken. It waits until it is late, not longer.
    let second = world.submit(ttft(30), 10, 1);
    world.scheduler.plan(Nanos::from_millis(30));
    assert!(world.scheduler.turned_away.is_empty());
    compute(&mut world.scheduler, |_| 50);
    world.scheduler.plan(Nanos(Nanos::from_millis(30).0 + 1));
    compute(&mut world.scheduler, |_| 50);
    world.note_turned_away();
    assert_eq!(world.refused.keys().collect::<Vec<_>>(), [&second]);
    let told = late(&world.refused[&second]);
    assert_eq!((told.no_place_of, told.wanted), (Some(1), Nanos::from_millis(30)));
    assert!(told.to_string().contains("all 1 places among the running (--max-running) are taken"), "{told}");
    // The first one is late since long, but it has begun.
    world.run();
    assert!(world.done.contains_key(&first));
}

#[test]
fn whose_prompt_is_too_long_is_not_told_of_places() {
    let mut world = World::new(4_000, Limits { max_running: 1, token_budget: 128, ..limits() }, Order::default());
    world.warm_up();
    world.submit(Urgency::default(), 10, 50);
    world.step();
    assert!(!world.scheduler.has_place());
    let hopeless = world.submit(ttft(100), 1_000, 2);
    world.step();
    let late = late(&world.refused[&hopeless]);
    assert_eq!((late.no_place_of, late.alone), (None, true));
    assert!(late.to_string().contains("even with the engine to itself"), "{late}");
}

#[test]
fn a_pace_that_was_slow_once_is_forgotten() {
    let mut world = world();
    world.fixed = Nanos::from_millis(500);
    world.submit(Urgency::default(), 2_000, 1);
    world.run();
    world.fixed = Nanos::from_millis(10);
    let refused = world.submit(ttft(300), 500, 1);
    world.step();
    assert!(world.refused.contains_key(&refused));
    // Nothing is computed, so nothing is learnt; still it is not refused for ever.
    world.now = world.now + Nanos::from_secs(11);
    let taken = world.submit(ttft(300), 500, 1);
    world.run();
    assert!(world.done.contains_key(&taken));
}

#[test]
fn a_prefix_that_many_share_is_counted_once() {
    let mut world = world();
    let arrived = world.scheduler.origin + Duration::from_nanos(world.now.0);
    for name in 0..30 {
        let (sequence, ticket) = arriving(arrived, ttft(600), 999, 1_600, 1);
        let serial = world.scheduler.arrivals + 1;
        world.wanted.insert(serial, 1);
        world.tickets.insert(serial, ticket);
        world.scheduler.submit(sequence, world.now).unwrap_or_else(|_| panic!("{name}"));
    }
    // Each alone: 1,600 tokens, 290 ms. All apart: 8.5 s. Together hardly more than one.
    world.step();
    assert_eq!(world.refused.len(), 0);
    world.run();
    assert_eq!(world.scheduler.claims.claim(&[[7; 32]], |_| false).0, 0);
}

#[test]
fn chunks_leave_the_decoding_ones_their_time() {
    let mut world = world();
    let tpot = Urgency { tpot: Some(Duration::from_millis(16)), ..Urgency::default() };
    let decoding = world.submit(tpot, 10, 60);
    while !world.first_token.contains_key(&decoding) {
        world.step();
    }
    world.submit(Urgency::default(), 1_000, 1);
    let mut chunks = Vec::new();
    while world.scheduler.running.len() + world.scheduler.waiting.len() > 1 {
        world.step();
        chunks.push(world.scheduler.planned - world.scheduler.decoding);
    }
    // 10 ms and 100 us a token: 16 ms are 60 tokens, where the budget would allow 127.
    assert!(chunks.iter().all(|chunk| *chunk <= 61), "{chunks:?}");
    assert!(chunks.iter().filter(|chunk| **chunk >= 50).count() > 10, "{chunks:?}");
}

#[test]
fn a_goal_between_tokens_that_cannot_be_met_is_refused_at_once() {
    let mut world = world();
    for _ in 0..20 {
        world.submit(Urgency::default(), 10, 200);
    }
    for _ in 0..20 {
        world.step();
    }
    let goal = |ms: u64| Urgency { tpot: Some(Duration::from_millis(ms)), ..Urgency::default() };
    // A step of 20 takes 12 ms.
    world.submit(goal(11), 10, 5);
    assert_eq!(world.refused.len(), 1);
    let late = late(world.refused.values().next().unwrap());
    assert_eq!((late.goal, late.wanted), ("tpot", Nanos::from_millis(11)));
    assert!((11.5..13.0).contains(&late.predicted.as_millis_f64()), "{late}");
    world.submit(goal(15), 10, 5);
    assert_eq!(world.refused.len(), 1);
}

#[test]
fn under_other_policies_deadlines_refuse_nobody() {
    for policy in [SchedulePolicy::Fcfs, SchedulePolicy::Priority] {
        let mut world = World::new(4_000, limits(), Order { policy, ..Order::default() });
        world.warm_up();
        let serial = world.submit(ttft(1), 1_000, 2);
        world.run();
        assert!(world.done.contains_key(&serial));
    }
}

#[test]
fn with_deadlines_in_the_queue_a_step_still_costs_what_runs() {
    let cost = |waiting: usize| {
        let mut world = World::new(60, limits(), Order::default());
        world.warm_up();
        // Deadlines far enough for all.
        for _ in 0..waiting {
            world.submit(ttft(80_000_000), 100, 20);
        }
        let (before, mut ran) = (world.scheduler.looked_at, 0);
        for _ in 0..200 {
            world.scheduler.plan(world.now);
            ran += world.scheduler.running.len() as u64;
            world.now = world.now + Nanos::from_millis(20);
            compute(&mut world.scheduler, |_| 20);
            world.scheduler.observe(world.now, Nanos::from_millis(20));
        }
        // The whole queue once, for the first verdict.
        world.scheduler.looked_at - before - waiting as u64 - ran
    };
    let (few, many) = (cost(300), cost(5_000));
    assert_eq!(few, many);
    assert!(few < 600, "{few} looks besides those at the running");
}

#[test]
fn in_an_overload_verdicts_are_few() {
    let mut world = World::new(4_000, limits(), Order::default());
    world.warm_up();
    // Twice what can be done until the deadline: half of it is refused, the rest has no slack at all.
    for _ in 0..200 {
        world.submit(ttft(2_000), 128, 1);
    }
    world.step();
    let (kept, before) = (world.scheduler.waiting.len() as u64, world.scheduler.looked_at);
    assert!((60..140).contains(&kept), "{kept}");
    let mut steps = 0;
    while !world.scheduler.is_idle() {
        world.step();
        steps += 1;
    }
    let looks = world.scheduler.looked_at - before;
    // One verdict a step would be half of steps x kept. As computed, as predicted: hardly any.
    assert!(looks < 10 * kept + 12 * steps, "{looks} looks in {steps} steps with {kept} waiting");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A burst with the pace known, full steps seen last: nobody who is kept is late by more than the step in which it is done, and no fewer are in
    /// time than first come, first served would have had.
    #[test]
    fn who_is_kept_is_in_time_and_more_are_than_in_order_of_arrival(
        burst in prop::collection::vec((1usize..600, 30u64..1_500), 1..40),
    ) {
        let run = |policy: SchedulePolicy| {
            let limits = Limits { max_running: 64, token_budget: 128, ..limits() };
            let mut world = World::new(4_000, limits, Order { policy, ..Order::default() });
            world.warm_up();
            // A full step last: what was seen longest ago counts a little less, and the promise is never more than what was seen.
            world.submit(Urgency::default(), 128, 1);
            world.run();
            let start = world.now;
            let due: Vec<(u64, Nanos)> = burst
                .iter()
                .map(|(prompt, ms)| (world.submit(ttft(*ms), *prompt, 1), start + Nanos::from_millis(*ms)))
                .collect();
            world.run();
            (world, due)
        };
        let (world, due) = run(SchedulePolicy::Slo);
        let step = Nanos::from_millis(10 + 13 + 1);
        for (serial, due) in &due {
            match world.first_token.get(serial) {
                Some(first) => prop_assert!(*first <= *due + step, "{} at {}, due {}", serial, first, due),
                None => prop_assert!(world.refused.contains_key(serial)),
            }
        }
        let in_time = |world: &World, due: &[(u64, Nanos)], grace: Nanos| {
            due.iter().filter(|(serial, due)| world.first_token.get(serial).is_some_and(|first| *first <= *due + grace)).count()
        };
        let (fcfs, fcfs_due) = run(SchedulePolicy::Fcfs);
        prop_assert!(in_time(&world, &due, step) >= in_time(&fcfs, &fcfs_due, Nanos::ZERO));
    }
}
