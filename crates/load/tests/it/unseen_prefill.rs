//! Answers that come whole: nothing is seen of them before their end, so their prefill counts for as long as it should
//! take and no longer, and what they reserve ends at the engine's context.

use crate::fleet::{Fleet, T0, ms, spec};
use plimsoll_core::{InstanceId, LoadReport, Nanos};
use plimsoll_load::{AttemptEnd, Charge, InstanceSpec, PolicyKind, SchedulerConfig};

/// 1,000 tokens a second, so that a token is a millisecond.
fn slow(instances: u32) -> Fleet {
    let config = SchedulerConfig { assumed_prefill_tokens_per_s: 1_000.0, ..SchedulerConfig::default() };
    let mut fleet = Fleet::with(config, instances);
    fleet.streams = false;
    fleet
}

fn prefill(fleet: &mut Fleet) -> u64 {
    fleet.scheduler.check_invariants().unwrap();
    fleet.scheduler.totals(fleet.now).uncached_prefill_tokens
}

#[test]
fn prefill_counts_until_it_and_what_is_in_front_should_be_through() {
    let mut fleet = slow(1);
    let first = fleet.place();
    assert_eq!(first.prefill_until, Some(T0 + ms(1_000)));
    fleet.pass(ms(400));
    let second = fleet.place();
    assert_eq!(second.prefill_until, Some(T0 + ms(2_400)), "2,000 tokens are in front of its end");
    assert_eq!(prefill(&mut fleet), 2_000);
    fleet.pass(ms(600));
    assert_eq!(prefill(&mut fleet), 1_000);
    fleet.pass(ms(1_400));
    assert_eq!(prefill(&mut fleet), 0);
    let held = fleet.scheduler.totals(fleet.now);
    assert_eq!((held.requests, held.reserved_kv_tokens), (2, 3_000), "they still decode");
    for placed in [first, second] {
        fleet.settle(placed.ticket, AttemptEnd::Ok);
    }
    fleet.assert_empty();
}

#[test]
fn a_stream_counts_until_its_first_token() {
    let mut fleet = slow(1);
    fleet.streams = true;
    let placed = fleet.place();
    assert_eq!(placed.prefill_until, None);
    fleet.pass(Nanos::from_secs(3_600));
    assert_eq!(prefill(&mut fleet), 1_000);
    fleet.scheduler.first_token(placed.ticket, fleet.now);
    assert_eq!(prefill(&mut fleet), 0);
}

#[test]
fn an_engine_that_only_decodes_is_not_avoided() {
    let mut fleet = slow(2);
    // One huge prompt on one of them, answered whole after minutes.
    fleet.charge.uncached_prefill_tokens = 60_000;
    let huge = fleet.place().target.instance;
    fleet.charge.uncached_prefill_tokens = 100;
    let (early, _) = fleet.burst(10);
    assert!(!early.contains_key(&huge.0), "it prefills for a minute: {early:?}");
    fleet.pass(Nanos::from_secs(61));
    let (late, _) = fleet.burst(30);
    assert!(late[&huge.0] >= 15, "it has the fewer requests: {late:?}");
}

#[test]
fn a_removed_engine_takes_its_times_along() {
    let mut fleet = slow(1);
    let placed = fleet.place();
    assert_eq!(fleet.scheduler.remove_instance(InstanceId(0)), 1);
    fleet.scheduler.check_invariants().unwrap();
    fleet.add(0);
    let again = fleet.place();
    fleet.pass(ms(500));
    fleet.settle(placed.ticket, AttemptEnd::Ok);
    assert_eq!(prefill(&mut fleet), 1_000, "the old entry touches nothing of the new engine");
    fleet.pass(ms(500));
    assert_eq!(prefill(&mut fleet), 0);
    fleet.settle(again.ticket, AttemptEnd::Ok);
    fleet.assert_empty();
}

#[test]
fn a_whole_answer_still_heals_but_teaches_no_rate() {
    let mut fleet = slow(1);
    fleet.eject(0);
    fleet.probe_ok(0);
    for _ in 0..10 {
        let placed = fleet.place();
        fleet.pass(Nanos::from_secs(30));
        assert_eq!(prefill(&mut fleet), 0);
        let change = fleet.scheduler.first_token(placed.ticket, fleet.now);
        assert_eq!(change.is_some(), placed.half_open, "its answer is a sign of life also after its time");
        assert_eq!(fleet.scheduler.first_token(placed.ticket, fleet.now), None);
        fleet.scheduler.prefilled(placed.ticket, 1_000, 0);
        fleet.settle(placed.ticket, AttemptEnd::Ok);
    }
    assert_eq!(fleet.scheduler.instances(fleet.now)[0].prefill_tokens_per_s, None, "half a minute was decoding");
}

/// A stream behind whole answers learns the engine's rate. Were releases by time taken for prefill served, a rate that
/// is too high would release early and so confirm itself.
#[test]
fn the_rate_learnt_behind_whole_answers_is_the_engine_s_own() {
    // Believed ten times as fast as it is.
    let config = SchedulerConfig { assumed_prefill_tokens_per_s: 10_000.0, ..SchedulerConfig::default() };
    let mut fleet = Fleet::with(config, 1);
    for _ in 0..40 {
        fleet.streams = false;
        let (_, before) = fleet.burst(4);
        fleet.streams = true;
        let stream = fleet.place();
        fleet.streams = false;
        let mut after = Vec::new();
        // The engine takes a second for each of the five; others keep coming.
        for _ in 0..5 {
            fleet.pass(ms(1_000));
            after.extend(fleet.burst(1).1);
        }
        fleet.scheduler.first_token(stream.ticket, fleet.now);
        fleet.scheduler.prefilled(stream.ticket, 1_000, 0);
        for ticket in before.into_iter().chain(after).chain([stream.ticket]) {
            fleet.settle(ticket, AttemptEnd::Ok);
        }
    }
    let rate = fleet.scheduler.instances(fleet.now)[0].prefill_tokens_per_s.unwrap();
    assert!((800.0..1_250.0).contains(&rate), "{rate} tokens/s learnt, 1,000 served");
    fleet.assert_empty();
}

#[test]
fn one_request_for_four_billion_tokens_does_not_fill_an_engine() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 0);
    for id in 0..2 {
        let (capacity_kv_tokens, context_tokens) = (Some(400_000), Some(100_000));
        fleet.scheduler.add_instance(InstanceId(id), InstanceSpec { capacity_kv_tokens, context_tokens, ..spec() });
        fleet.probe_ok(id);
    }
    let greedy = Charge { uncached_prefill_tokens: 10, reserved_kv_tokens: 4_294_967_305, sequences: 1 };
    fleet.charge = greedy;
    let placed = fleet.place();
    assert_eq!(fleet.scheduler.totals(fleet.now).reserved_kv_tokens, 100_000);
    fleet.charge.sequences = 3;
    fleet.exclude = vec![placed.target.instance];
    fleet.place();
    assert_eq!(fleet.scheduler.totals(fleet.now).reserved_kv_tokens, 400_000, "each sequence ends at the context");
    fleet.exclude.clear();
    // Room for 300,000 on one and 100,000 on the other.
    fleet.charge = Charge { uncached_prefill_tokens: 100_000, reserved_kv_tokens: 300_000, sequences: 3 };
    assert_eq!(fleet.place().target, placed.target, "the only one with room, for all its prefill");
}

#[test]
fn without_a_known_context_a_sequence_reserves_at_most_a_mebi_token() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    for (sequences, reserved) in [(0, 1_u64 << 20), (1, 1 << 20), (5, 5 << 20), (u64::MAX, Charge::MAX_TOKENS)] {
        fleet.charge = Charge { reserved_kv_tokens: u64::MAX, sequences, ..Charge::default() };
        let placed = fleet.place();
        assert_eq!(fleet.scheduler.totals(fleet.now).reserved_kv_tokens, reserved);
        fleet.settle(placed.ticket, AttemptEnd::Ok);
        fleet.assert_empty();
    }
}

/// The choice looks at room with the same limit as the charge.
#[test]
fn a_request_for_four_billion_tokens_finds_room_where_a_context_fits() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 0);
    let small = InstanceSpec { capacity_kv_tokens: Some(200_000), context_tokens: Some(100_000), ..spec() };
    fleet.scheduler.add_instance(InstanceId(0), small);
    fleet.probe_ok(0);
    // Of unknown size, so that anything fits.
    fleet.add(1);
    fleet.exclude = vec![InstanceId(0)];
    fleet.burst(5);
    fleet.exclude.clear();
    fleet.charge = Charge { uncached_prefill_tokens: 10, reserved_kv_tokens: 4_294_967_305, sequences: 1 };
    assert_eq!(fleet.place().target.instance, InstanceId(0), "idle, and a whole context fits");
}

/// What the engine reports is held against what is counted at that moment.
#[test]
fn a_report_after_its_time_is_not_hidden_by_it() {
    let mut fleet = slow(1);
    fleet.place();
    fleet.pass(ms(1_500));
    fleet.report(0, LoadReport { waiting_uncached_tokens: Some(700), ..LoadReport::default() });
    let load = &fleet.scheduler.instances(fleet.now)[0].ranks[0];
    assert_eq!((load.uncached_prefill_tokens, load.foreign_prefill_tokens), (0, Some(700.0)));
}
