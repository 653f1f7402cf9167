//! The policy `priority`, as SGLang has it.

use super::*;

fn order() -> Order {
    Order { policy: SchedulePolicy::Priority, ..Order::default() }
}

fn priority(value: i64) -> Urgency {
    Urgency { priority: Some(value), ..Urgency::default() }
}

/// The order of first admission of requests with these priorities, one place and everybody there from the start.
fn served(order: Order, priorities: &[Option<i64>]) -> Vec<u64> {
    let mut world = World::new(60, Limits { max_running: 1, ..limits() }, order);
    for value in priorities {
        world.submit(Urgency { priority: *value, ..Urgency::default() }, 20, 3);
    }
    world.run();
    world.admitted
}

#[test]
fn larger_first_equals_in_order_of_arrival_and_none_last() {
    let values = [Some(1), None, Some(5), Some(1), Some(-4), Some(5), None];
    assert_eq!(served(order(), &values), [3, 6, 1, 4, 5, 2, 7]);
    let low_first = Order { low_priority_first: true, ..order() };
    assert_eq!(served(low_first, &values), [5, 1, 4, 3, 6, 2, 7]);
    let extremes = [Some(i64::MAX), Some(i64::MIN), None, Some(0)];
    assert_eq!(served(order(), &extremes), [1, 4, 2, 3]);
    assert_eq!(served(low_first, &extremes), [2, 4, 1, 3]);
}

#[test]
fn a_place_is_taken_only_from_one_that_is_less_important_by_more_than_the_threshold() {
    for (difference, taken) in [(10, false), (11, true)] {
        let mut world = World::new(60, Limits { max_running: 2, ..limits() }, order());
        let (low, lower) = (world.submit(priority(1), 20, 40), world.submit(priority(0), 20, 40));
        world.step();
        world.step();
        let high = world.submit(priority(difference), 20, 5);
        world.step();
        let running: Vec<u64> = world.scheduler.running.iter().map(|sequence| sequence.serial).collect();
        // The least important goes, and the important one stands before who stays.
        assert_eq!(running, if taken { vec![high, low] } else { vec![low, lower] }, "{difference}");
        assert_eq!(world.scheduler.retractions, u64::from(taken));
        world.run();
        assert_eq!(world.done.len(), 3);
        assert_eq!(world.done[&high] < world.done[&lower], taken);
    }
}

#[test]
fn pages_are_taken_from_as_few_as_needed_and_not_in_vain() {
    // 20 pages; four of 4 pages run.
    let mut world = World::new(20, limits(), order());
    let low: Vec<u64> = (0..4).map(|value| world.submit(priority(value), 60, 4)).collect();
    world.step();
    world.step();
    assert_eq!(world.scheduler.running.len(), 4);
    // It needs 8 pages, and one for each of those who run: two have to go.
    let high = world.submit(priority(50), 120, 2);
    world.step();
    let running: Vec<u64> = world.scheduler.running.iter().map(|sequence| sequence.serial).collect();
    assert_eq!(running, [high, low[3], low[2]]);
    world.run();
    assert_eq!(world.done.len(), 5);
    // Among those who may be pushed aside there is not enough: nobody is.
    let mut world = World::new(20, limits(), order());
    world.submit(priority(45), 200, 30);
    world.submit(priority(0), 20, 30);
    world.step();
    world.step();
    let big = world.submit(priority(50), 250, 2);
    for _ in 0..10 {
        world.step();
        assert_eq!((world.scheduler.retractions, world.scheduler.running.len()), (0, 2));
    }
    world.run();
    assert!(world.done.contains_key(&big));
}

#[test]
fn when_pages_run_out_the_least_important_gives_up_its_own() {
    let mut world = World::new(12, limits(), order());
    let low = world.submit(priority(1), 40, 60);
    let high = world.submit(priority(5), 40, 60);
    let mut retracted = Vec::new();
    while !world.scheduler.is_idle() {
        world.step();
        let waiting = world.scheduler.waiting.iter().filter(|sequence| sequence.retractions > 0);
        retracted.extend(waiting.map(|sequence| sequence.serial));
    }
    assert!(!retracted.is_empty() && retracted.iter().all(|serial| *serial == low), "{retracted:?}");
    assert!(world.done[&high] < world.done[&low]);
}

#[test]
fn a_full_queue_takes_a_more_important_one_for_its_last() {
    let mut world = World::new(60, Limits { max_running: 1, max_waiting: 2, ..limits() }, order());
    world.submit(priority(9), 20, 50);
    world.step();
    let (mid, low) = (world.submit(priority(5), 20, 1), world.submit(priority(2), 20, 1));
    // Not more important than the last: refused itself.
    world.submit(priority(2), 20, 1);
    assert_eq!(world.refused.values().collect::<Vec<_>>(), [&Refusal::QueueFull]);
    let high = world.submit(priority(3), 20, 1);
    assert_eq!(world.refused.get(&low), Some(&Refusal::Displaced));
    world.run();
    assert!(world.done.contains_key(&mid) && world.done.contains_key(&high));
    // One that was pushed aside has been served, and perhaps heard: it keeps its place, whoever comes. The one that waits
    // before it goes instead.
    let mut world = World::new(60, Limits { max_running: 1, max_waiting: 2, ..limits() }, order());
    let served = world.submit(priority(0), 20, 50);
    world.step();
    world.step();
    let urgent = world.submit(priority(50), 20, 50);
    world.step();
    assert_eq!((world.scheduler.running[0].serial, world.scheduler.retractions), (urgent, 1));
    let fresh = world.submit(priority(2), 20, 1);
    let high = world.submit(priority(9), 20, 1);
    assert_eq!(world.refused.get(&fresh), Some(&Refusal::Displaced));
    // Nobody else may go.
    world.submit(priority(9), 20, 1);
    assert_eq!(world.refused.values().filter(|why| **why == Refusal::QueueFull).count(), 1);
    world.run();
    assert!([served, urgent, high].iter().all(|serial| world.done.contains_key(serial)));
    // Under other policies nobody is displaced.
    let mut world = World::new(60, Limits { max_running: 1, max_waiting: 1, ..limits() }, Order::default());
    world.submit(priority(0), 20, 50);
    world.submit(priority(99), 20, 50);
    assert_eq!(world.refused.values().collect::<Vec<_>>(), [&Refusal::QueueFull]);
}
