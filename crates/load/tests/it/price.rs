//! What decides between engines, in seconds: own wait, and what is put on others.

use crate::fleet::{Fleet, ms, skew, target};
use plimsoll_core::LoadReport;
use plimsoll_load::place::price::{DECODE_SHARE_S, MOST_SHARED_STEPS, STEP_SHARE_S};
use plimsoll_load::{Charge, HeldTokens, PolicyKind, Reason, SchedulerConfig, Scored};
use proptest::prelude::*;

/// 8,000 tokens per second, as assumed of engines that were never observed.
const S_PER_TOKEN: f64 = 1.0 / 8_000.0;

fn two(policy: PolicyKind) -> Fleet {
    let mut fleet = Fleet::new(policy, 2);
    fleet.charge = Charge { uncached_prefill_tokens: 8_000, reserved_kv_tokens: 8_100, sequences: 1 };
    fleet
}

/// Engine 0 with `requests` of somebody, `waiting` tokens of theirs not prefilled yet.
fn busy(fleet: &mut Fleet, id: u32, requests: u64, waiting: u64) {
    let (running_requests, waiting_uncached_tokens) = (Some(requests), Some(waiting));
    fleet.report(id, LoadReport { running_requests, waiting_uncached_tokens, ..LoadReport::default() });
}

fn scored(candidates: &[Scored], id: u32) -> Scored {
    candidates.iter().find(|c| c.target == target(id)).copied().unwrap()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

#[test]
fn the_record_shows_every_term() {
    let mut fleet = two(PolicyKind::LeastDelay);
    busy(&mut fleet, 0, 10, 4_000);
    fleet.hits = vec![(target(0), HeldTokens { device_tokens: 2_000, host_tokens: 3_000, shared_tokens: 0 })];
    let placed = fleet.place();
    let (first, second) = (scored(&placed.candidates, 0), scored(&placed.candidates, 1));
    let prefill = 3_000.0 * S_PER_TOKEN;
    let wait = 4_000.0 * S_PER_TOKEN + 3_000.0 / 100_000.0 + prefill + 10.0 * DECODE_SHARE_S;
    assert!(near(first.expected_wait_s, wait), "{first:?}");
    // A hundred tokens of output, fewer than the most steps that are counted as shared.
    // 4,000 in front of it, 2,000 in the mean: a quarter of the prompt, twice.
    let pressure = 2.0 * 2_000.0 / 8_000.0 * prefill;
    assert!(near(first.score_s, wait + 0.05 * 10.0 * (prefill + 100.0 * STEP_SHARE_S) + pressure), "{first:?}");
    assert_eq!((first.hit_tokens, first.host_tokens), (5_000, 3_000));
    assert!(near(second.expected_wait_s, 1.0) && near(second.score_s, 1.0), "idle, nothing held: {second:?}");
}

#[test]
fn affinity_is_worth_the_seconds_it_saves_and_no_more() {
    // A hit of 7,200 of 8,000 tokens saves 0.9 s. It wins against a queue a little under that, and loses a little over.
    for (waiting, wins) in [(5_000, true), (7_900, false)] {
        for policy in [PolicyKind::LeastWait, PolicyKind::LeastDelay] {
            let mut fleet = two(policy);
            busy(&mut fleet, 0, 1, waiting);
            fleet.hits = vec![(target(0), HeldTokens::on_device(7_200))];
            let placed = fleet.place();
            assert_eq!(placed.target == target(0), wins, "{policy:?} with {waiting} tokens in front: {placed:?}");
            assert_eq!(placed.hit_tokens, if wins { 7_200 } else { 0 });
        }
    }
}

#[test]
fn a_hit_in_host_memory_is_worth_what_loading_leaves() {
    let mut fleet = two(PolicyKind::LeastDelay);
    let host = HeldTokens { host_tokens: 7_000, ..HeldTokens::default() };
    fleet.hits = vec![(target(0), host), (target(1), HeldTokens::on_device(7_000))];
    assert_eq!(fleet.place().target, target(1), "as long, and nothing to load");
    let mut fleet = two(PolicyKind::LeastDelay);
    fleet.hits = vec![(target(0), host)];
    assert_eq!(fleet.place().target, target(0), "loading is faster than computing");
    let slow = SchedulerConfig { assumed_kv_load_tokens_per_s: 1_000.0, ..SchedulerConfig::default() };
    let mut fleet = Fleet::with(slow, 2);
    fleet.charge = two(PolicyKind::LeastDelay).charge;
    fleet.hits = vec![(target(0), host)];
    assert_eq!(fleet.place().target, target(1), "loading is slower than computing");
}

/// Engine 0 computes nothing for 40 streams; engine 1 has a queue in front and nobody who would be delayed.
#[test]
fn a_long_prefill_stays_away_from_those_that_decode() {
    let place = |config: SchedulerConfig| {
        let mut fleet = Fleet::with(config, 2);
        fleet.charge = Charge { uncached_prefill_tokens: 8_000, reserved_kv_tokens: 8_100, sequences: 1 };
        busy(&mut fleet, 0, 40, 0);
        busy(&mut fleet, 1, 1, 4_000);
        let placed = fleet.place();
        (placed.target, placed.reason)
    };
    let config = SchedulerConfig::default();
    assert_eq!(place(config), (target(1), Reason::LeastDelay), "40 streams would stand still for a second");
    let selfish = SchedulerConfig { policy: PolicyKind::LeastWait, ..config };
    assert_eq!(place(selfish), (target(0), Reason::LeastWait), "its own wait is shorter there");
    assert_eq!(place(SchedulerConfig { others_weight: 0.0, ..config }).0, target(0), "a weight of zero is selfish");
}

/// The holder of a session has more in front than computing again would take; the other has a little, or nothing.
#[test]
fn where_work_waits_everywhere_a_session_stays_with_its_kv() {
    let goes = |front: u64, config: SchedulerConfig| {
        let mut fleet = Fleet::with(config, 3);
        fleet.charge = Charge { uncached_prefill_tokens: 8_000, reserved_kv_tokens: 8_100, sequences: 1 };
        busy(&mut fleet, 0, 1, 10_000);
        busy(&mut fleet, 1, 1, front);
        busy(&mut fleet, 2, 1, 10_000);
        fleet.hits = vec![(target(0), HeldTokens::on_device(7_900))];
        fleet.place().target
    };
    let config = SchedulerConfig::default();
    assert_eq!(goes(1_500, SchedulerConfig { pressure_weight: 0.0, ..config }), target(1), "its own time alone");
    assert_eq!(goes(1_500, config), target(0));
    assert_eq!(goes(0, config), target(1), "an idle engine is used");
}

#[test]
fn the_delay_of_others_grows_with_output_only_so_far() {
    let score = |output: u64| {
        let mut fleet = two(PolicyKind::LeastDelay);
        fleet.charge.reserved_kv_tokens = 8_000 + output;
        busy(&mut fleet, 0, 10, 0);
        scored(&fleet.place().candidates, 0).score_s
    };
    let most = MOST_SHARED_STEPS as u64;
    assert!(score(most / 2) < score(most));
    assert!(near(score(most), score(100 * most)), "a client that asks for everything weighs no more");
}

/// `sglang#10458`-like bursts, `llmd.md` §5 case 15: all hold the prefix equally, or one holds it alone.
#[test]
fn a_burst_spreads_whoever_holds_the_prefix() {
    let mut fleet = Fleet::new(PolicyKind::LeastDelay, 4);
    fleet.hits = (0..4).map(|id| (target(id), HeldTokens::on_device(900))).collect();
    let (per_instance, _) = fleet.burst(64);
    assert!(skew(&per_instance, 4) <= 1.1, "{per_instance:?}");
    // Worth 112 ms alone: the holder gets more, the others are not left idle.
    let mut fleet = Fleet::new(PolicyKind::LeastDelay, 4);
    fleet.hits = vec![(target(0), HeldTokens::on_device(900))];
    let (per_instance, _) = fleet.burst(64);
    assert!(per_instance[&0] > 16 && skew(&per_instance, 4) < 3.0, "{per_instance:?}");
    assert!((1..4).all(|id| per_instance[&id] > 4), "{per_instance:?}");
}

#[test]
fn hits_are_found_in_whatever_order_engines_joined() {
    let mut fleet = Fleet::new(PolicyKind::LeastDelay, 0);
    for id in [7, 3, 12, 1, 9, 5] {
        fleet.add(id);
    }
    // Some of them, one that is not there, and more than there is of the prompt.
    fleet.hits = [(1, 100), (4, 900), (5, 300), (9, 5_000), (12, 400)]
        .map(|(id, tokens)| (target(id), HeldTokens::on_device(tokens)))
        .to_vec();
    let placed = fleet.place();
    let hit = |id| scored(&placed.candidates, id).hit_tokens;
    assert_eq!([7, 3, 12, 1, 9, 5].map(hit), [0, 0, 400, 100, 1_000, 300]);
    assert_eq!((placed.target, placed.hit_tokens), (target(9), 1_000));
    assert_eq!(fleet.scheduler.totals(fleet.now).uncached_prefill_tokens, 0, "charged for what it has to compute");
}

proptest! {
    /// More load never makes an engine more attractive and more held never less; the delay of others cannot make a
    /// loaded holder win by more than what the hit saves.
    #[test]
    fn the_score_moves_the_right_way(
        requests in 0_u64..200, waiting in 0_u64..100_000, held in 0_u64..8_000,
        more_requests in 0_u64..50, more_waiting in 0_u64..50_000, more_held in 0_u64..8_000,
        weight in 0.0_f64..4.0,
    ) {
        let score = |requests, waiting, held| {
            let config = SchedulerConfig { others_weight: weight, ..SchedulerConfig::default() };
            let mut fleet = Fleet::with(config, 2);
            fleet.charge = Charge { uncached_prefill_tokens: 8_000, reserved_kv_tokens: 9_000, sequences: 1 };
            busy(&mut fleet, 0, requests, waiting);
            fleet.hits = vec![(target(0), HeldTokens::on_device(held))];
            fleet.pass(ms(0));
            let placed = fleet.place();
            (scored(&placed.candidates, 0).score_s, scored(&placed.candidates, 1).score_s)
        };
        let (base, idle) = score(requests, waiting, held);
        prop_assert!(score(requests + more_requests, waiting, held).0 >= base);
        prop_assert!(score(requests, waiting + more_waiting, held).0 >= base);
        prop_assert!(score(requests, waiting, held + more_held).0 <= base);
        let saved = held as f64 * S_PER_TOKEN;
        prop_assert!(idle - base <= saved + 1e-9, "a holder beats an idle engine by {} s, a hit of {saved} s", idle - base);
    }
}
