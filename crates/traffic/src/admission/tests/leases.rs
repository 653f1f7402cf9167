//! Two gateways before the same engines: what each may admit, and what it knows of the other.

use super::world::{World, plain};
use super::*;
use crate::lease::Lease;
use plimsoll_core::{InstanceLoad, ModelDemand};

fn half(others: ModelDemand) -> Lease {
    Lease { share: [0.5; 3], long_between: [0.5, 1.0], others }
}

fn asking(asked_tokens_per_s: [f64; 3]) -> ModelDemand {
    ModelDemand { asked_tokens_per_s, ..ModelDemand::default() }
}

/// Tokens of class low that were let in of 200 times 1,000 in 20 seconds, while something keeps the level at its highest.
fn admitted(lease: Option<Lease>, high_asks_here: bool) -> u64 {
    let mut admission = Admission::new(Rules::default());
    let full =
        [InstanceLoad { prefill_tokens_per_s: KNOWN, backlog_tokens: 1 << 20, running: 1, ..InstanceLoad::default() }];
    let mut sum = 0;
    admission.set_lease(lease);
    for key in 0..200u64 {
        let now = seconds(1.0 + 0.1 * key as f64);
        let view = PoolView { taken_at: now, instances: &full };
        if high_asks_here {
            admission.arrive(now, Arrival { key: RequestId(u128::from(key) + 1_000), ..plain(Class::High, 1) }, &view);
        }
        let arrival = Arrival { key: RequestId(u128::from(key)), ..plain(Class::Low, 1_000) };
        if !matches!(admission.arrive(now, arrival, &view), Verdict::Refuse(_)) {
            sum += 1_000;
        }
    }
    sum
}

#[test]
fn half_the_quota_is_half_of_what_is_let_in() {
    let (whole, part) = (admitted(None, true), admitted(Some(half(ModelDemand::default())), true));
    assert!(whole > 20_000 && whole < 200_000, "{whole}");
    assert!(part.abs_diff(whole / 2) <= 2_000, "{part} of {whole}");
}

/// Only class low asks here and only class high at the other gateway: each was alone to itself and kept to no quota.
#[test]
fn a_class_is_not_alone_while_another_asks_elsewhere() {
    assert_eq!(admitted(None, false), 200_000, "alone it keeps to no quota");
    assert_eq!(admitted(Some(half(ModelDemand::default())), false), 200_000);
    assert!(admitted(Some(half(asking([4_000.0, 0.0, 0.0]))), false) < 120_000);
}

#[test]
fn what_the_classes_above_ask_for_elsewhere_is_not_left() {
    let mut world = World::new(Rules::default(), &[KNOWN]);
    world.arrive(plain(Class::Low, 1));
    let left = |world: &mut World, others| {
        world.admission.set_lease(Some(half(others)));
        world.admission.left(Class::Low, world.now)
    };
    assert!(left(&mut world, ModelDemand::default()) > 0.99);
    let rate = KNOWN.unwrap();
    let some = left(&mut world, asking([0.25 * rate, 0.25 * rate, 9.0 * rate]));
    assert!((some - 0.5).abs() < 0.01, "{some}");
    assert_eq!(left(&mut world, asking([2.0 * rate, 0.0, 0.0])), 0.0);
}

/// The level of each knew of its own queue alone, though both are in front of the same engines.
#[test]
fn what_waits_elsewhere_raises_the_level_and_the_time_to_come_back() {
    let mut admission = Admission::new(Rules::default());
    let idle = [InstanceLoad { prefill_tokens_per_s: KNOWN, ..InstanceLoad::default() }];
    let mut look = |at: f64, waiting: f64| {
        let others = ModelDemand { waiting_prefill_tokens: waiting, ..ModelDemand::default() };
        admission.set_lease(Some(half(others)));
        admission.look(seconds(at), &PoolView { taken_at: seconds(at), instances: &idle });
        (admission.gauge.measured().prefill.unwrap(), admission.drain_time().unwrap().as_secs_f64())
    };
    assert_eq!(look(1.0, 0.0), (0.0, 0.0));
    // Half of two seconds' work.
    let (level, drain_s) = look(2.0, KNOWN.unwrap());
    assert!((level - 0.5).abs() < 1e-9 && (drain_s - 1.0).abs() < 1e-6, "{level} {drain_s}");
    assert_eq!(look(3.0, 1e12).0, 1.0);
    // While long prefills of the other gateway take two seconds each, four may be waited for, as if they were this one's.
    let long_prefill_tokens = 2.0 * KNOWN.unwrap();
    admission.set_lease(Some(half(ModelDemand { long_prefill_tokens, ..ModelDemand::default() })));
    assert_eq!(admission.wait_wanted(), seconds(4.0));
}

#[test]
fn long_prefills_of_all_gateways_leave_the_high_class_its_engines() {
    let mut world = World::new(Rules::default(), &[KNOWN; 8]);
    let most = |world: &mut World, lease| {
        world.admission.set_lease(lease);
        world.admission.most_long_prefills(world.now)
    };
    let _ = world.arrive(plain(Class::Low, 1));
    assert_eq!(most(&mut world, None), None);
    assert_eq!(most(&mut world, Some(half(ModelDemand::default()))), None, "nobody asks for the high class");
    let two_engines = 2.0 * KNOWN.unwrap();
    let others = ModelDemand { high_prefill_tokens_per_s: two_engines, ..ModelDemand::default() };
    // The second half of the five that two engines' demand and its unevenness leave of eight; the first half is two.
    assert_eq!(most(&mut world, Some(half(others))), Some(3));
    let first = Lease { long_between: [0.0, 0.5], ..half(others) };
    assert_eq!(most(&mut world, Some(first)), Some(2));
    let none = Lease { long_between: [0.1; 2], ..half(others) };
    assert_eq!(most(&mut world, Some(none)), Some(1), "never none");
}

#[test]
fn demand_is_what_is_asked_and_ends_with_its_memory() {
    let mut world = World::new(Rules { demand_memory: seconds(10.0), ..Rules::default() }, &[KNOWN]);
    world.arrive(Arrival { decode_tokens: 100, ..plain(Class::High, 900) });
    world.arrive(plain(Class::Low, 2_000));
    let told = world.admission.demand(world.now);
    assert_eq!(told.asked_tokens_per_s, [100.0, 0.0, 200.0]);
    assert_eq!(told.high_prefill_tokens_per_s, 90.0);
    assert_eq!(world.admission.demand(world.now + seconds(11.0)).asked_tokens_per_s, [0.0; 3]);
}
