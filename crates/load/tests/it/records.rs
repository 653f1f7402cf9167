//! What a choice says about itself.

use crate::fleet::Fleet;
use plimsoll_core::{InstanceId, LoadReport};
use plimsoll_load::{AttemptEnd, PolicyKind, SchedulerConfig};

#[test]
fn candidates_are_the_best_in_order_with_the_target_among_them() {
    for policy in [PolicyKind::LeastDelay, PolicyKind::LeastWait, PolicyKind::PowerOfTwo, PolicyKind::RoundRobin] {
        let config = SchedulerConfig { policy, record_candidates: 5, ..SchedulerConfig::default() };
        let mut fleet = Fleet::with(config, 40);
        for id in 0..40 {
            let waiting_uncached_tokens = Some(u64::from(id * 7_919 % 40) * 1_000);
            fleet.report(id, LoadReport { waiting_uncached_tokens, ..LoadReport::default() });
        }
        for _ in 0..40 {
            let placed = fleet.serve(AttemptEnd::Ok);
            assert_eq!((placed.candidates.len(), placed.considered), (5, 40));
            assert!(placed.candidates.iter().any(|c| c.target == placed.target), "{policy:?}");
            assert!(placed.candidates.is_sorted_by(|a, b| a.score_s <= b.score_s), "{policy:?}");
            assert_eq!(placed.candidates[0].uncached_prefill_tokens, 0.0);
            assert_eq!(placed.candidates[3].uncached_prefill_tokens, 3_000.0);
        }
    }
}

#[test]
fn a_record_names_worse_tiers_when_there_is_room() {
    let config = SchedulerConfig { record_candidates: 3, ..SchedulerConfig::default() };
    let mut fleet = Fleet::with(config, 3);
    let full = LoadReport { used_kv_tokens: Some(10_000), capacity_kv_tokens: Some(10_000), ..LoadReport::default() };
    fleet.report(0, full);
    fleet.report(1, LoadReport { waiting_uncached_tokens: Some(9_000), ..LoadReport::default() });
    fleet.report(2, LoadReport { waiting_uncached_tokens: Some(5_000), ..LoadReport::default() });
    let placed = fleet.place();
    let order: Vec<u32> = placed.candidates.iter().map(|c| c.target.instance.0).collect();
    assert_eq!((placed.target.instance.0, order), (2, vec![2, 1, 0]));
}

#[test]
fn recording_can_be_off_and_is_bounded() {
    for (asked, kept) in [(0, 0), (1, 1), (1_000_000, 64)] {
        let mut fleet = Fleet::with(SchedulerConfig { record_candidates: asked, ..SchedulerConfig::default() }, 100);
        assert_eq!(fleet.place().candidates.len(), kept);
    }
}

#[test]
fn impossible_charges_do_not_break_the_ledger() {
    let mut fleet = Fleet::new(PolicyKind::LeastWait, 1);
    fleet.charge.reserved_kv_tokens = u64::MAX;
    fleet.charge.uncached_prefill_tokens = u64::MAX;
    let (_, tickets) = fleet.burst(10);
    for ticket in tickets {
        fleet.scheduler.check_invariants().unwrap();
        fleet.settle(ticket, AttemptEnd::Cancelled);
    }
    fleet.assert_empty();
    assert_eq!(fleet.place().target.instance, InstanceId(0));
}
