//! Who waits for whom.

use super::world::{World, plain};
use super::*;
use plimsoll_core::InstanceLoad;

fn engine() -> InstanceLoad {
    InstanceLoad { prefill_tokens_per_s: KNOWN, ..InstanceLoad::default() }
}

fn look(now: Nanos, instances: &[InstanceLoad]) -> PoolView<'_> {
    PoolView { taken_at: now, instances }
}

fn gone(decisions: &[Decision]) -> Vec<u128> {
    let go = |one: &Decision| matches!(one, Decision::Go { .. }).then(|| one.key().0);
    decisions.iter().filter_map(go).collect()
}

/// An empty view was room for everybody: the whole queue went to engines that were out.
#[test]
fn engines_that_are_all_out_do_not_drain_the_queue() {
    let mut admission = Admission::new(Rules { max_wait: seconds(30.0), ..Rules::default() });
    let busy = [InstanceLoad { backlog_tokens: 50_000, running: 1, ..engine() }; 2];
    let now = seconds(1.0);
    for key in 0..20 {
        let arrival = Arrival { key: RequestId(key), ..plain(Class::ALL[key as usize % 3], 500) };
        assert_eq!(admission.arrive(now, arrival, &look(now, &busy)), Verdict::Wait);
    }
    let out = [InstanceLoad { out: true, ..engine() }; 2];
    for tenths in 11..300 {
        let now = seconds(f64::from(tenths) / 10.0);
        assert_eq!(admission.dispatch(now, &look(now, &out)), []);
    }
    // One of them is back.
    let now = seconds(30.5);
    let half = [InstanceLoad { out: false, ..out[0] }];
    let went = gone(&admission.dispatch(now, &look(now, &half)));
    assert!((1..20).contains(&went.len()), "{went:?}");
    // The others' time is bounded all the same.
    let now = seconds(31.0);
    let refused = admission.dispatch(now, &look(now, &out));
    assert_eq!(refused.len() + went.len(), 20);
    assert!(
        refused.iter().all(|one| matches!(one, Decision::Refuse { refusal, .. } if refusal.rule == Rule::WaitBudget))
    );
    // With nobody waiting placement says at once what is wrong.
    let arrival = Arrival { key: RequestId(99), ..plain(Class::High, 500) };
    assert!(matches!(admission.arrive(now, arrival, &look(now, &out)), Verdict::Go(_)));
}

/// It took memory that others did not need, and nobody of any class went though engines stood idle; and it must not starve for it.
#[test]
fn one_that_waits_for_memory_is_gone_round_for_a_time() {
    let mut admission = Admission::new(Rules::default());
    let busy = [InstanceLoad {
        backlog_tokens: 50_000,
        kv_capacity_tokens: Some(100_000),
        reserved_kv_tokens: 80_000,
        running: 4,
        ..engine()
    }];
    let mut now = seconds(1.0);
    for (key, class, tokens) in [(0, Class::High, 40_000), (1, Class::Low, 500)] {
        let arrival = Arrival { key: RequestId(key), ..plain(class, tokens) };
        assert_eq!(admission.arrive(now, arrival, &look(now, &busy)), Verdict::Wait);
    }
    assert_eq!(admission.line.peek(|_| true), Some(RequestId(0)));
    let idle = [InstanceLoad { backlog_tokens: 0, ..busy[0] }];
    now = seconds(1.1);
    assert_eq!(gone(&admission.dispatch(now, &look(now, &idle))), [1]);
    // Past its time nobody goes round it any more.
    now = seconds(17.0);
    let arrival = Arrival { key: RequestId(3), ..plain(Class::Low, 500) };
    assert_eq!(admission.arrive(now, arrival, &look(now, &idle)), Verdict::Wait);
    assert_eq!(gone(&admission.dispatch(now, &look(now, &idle))), []);
    now = seconds(17.1);
    let free = [InstanceLoad { reserved_kv_tokens: 10_000, ..idle[0] }];
    assert_eq!(gone(&admission.dispatch(now, &look(now, &free)))[0], 0);
}

/// A short one of class medium waited for a long one of its class that was held back for the high class.
#[test]
fn what_is_short_waits_for_no_long_one_that_is_held_back() {
    let mut world = World::new(Rules::default(), &[KNOWN; 2]);
    for _ in 0..20 {
        world.arrive(plain(Class::High, 1_000));
        (0..20).for_each(|_| world.step());
    }
    world.run_until_quiet();
    let long: Vec<_> = (0..3).map(|_| world.arrive(plain(Class::Medium, 30_000))).collect();
    assert_eq!(long.iter().filter(|key| world.went.contains_key(key)).count(), 1);
    let short = world.arrive(plain(Class::Medium, 1_000));
    assert!(world.went.contains_key(&short), "an engine is idle");
    world.run_until_quiet();
    assert!(long.iter().all(|key| world.went.contains_key(key)));
}

/// Each engine with one long prompt was a full pool.
#[test]
fn one_long_prompt_on_each_engine_is_no_alarm() {
    let mut world = World::new(Rules::default(), &[KNOWN; 4]);
    world.arrive(plain(Class::High, 100));
    let low: Vec<_> = (0..5).map(|_| world.arrive(plain(Class::Low, 20_000))).collect();
    assert_eq!(low.iter().filter(|key| world.went.contains_key(key)).count(), 4, "a hundred tokens keep no engine");
    (0..200).for_each(|_| world.step());
    let level = world.admission.snapshot(world.now).level.unwrap();
    assert!(level < 0.7, "{level}");
    let next = world.arrive(plain(Class::Low, 20_000));
    assert_eq!(world.refusal(next), None);
}

/// Seen in the simulator: a promise that could not bear waiting was due at once, and looked at only five milliseconds later; until then the caller was told
/// to look again now.
#[test]
fn nobody_is_told_to_look_again_and_again_at_one_moment() {
    let mut world = World::new(Rules::default(), &[KNOWN; 2]);
    for _ in 0..400 {
        world.arrive(Arrival { first_token_by: Some(world.now + seconds(1.0)), ..plain(Class::High, 1_000) });
        let mut looks = 0;
        let until = world.now + Nanos::from_millis(20);
        while let Some(at) = world.admission.next_look(world.now).filter(|at| *at < until) {
            world.sleep(at.max(world.now + Nanos(1)).since(world.now));
            world.dispatch();
            looks += 1;
            assert!(looks < 20, "{looks} looks in 20 ms");
        }
        world.sleep(until.since(world.now));
        world.dispatch();
    }
}
