use super::{Counters, Entry, Ledger};
use crate::ask::{Charge, Ticket};
use crate::health::Stamp;
use plimsoll_core::{InstanceId, Nanos, Rank, RequestId, Target};

fn ticket(request: u128) -> Ticket {
    Ticket { request: RequestId(request), leg: 0, attempt: 0 }
}

fn entry(instance: u32) -> Entry {
    Entry {
        target: Target { instance: InstanceId(instance), rank: Rank(0) },
        charge: Charge { uncached_prefill_tokens: 100, reserved_kv_tokens: 300, sequences: 1 },
        prefilling: true,
        prefill_until: None,
        first_token_seen: false,
        orphan: false,
        placed_at: Nanos::ZERO,
        served_before: 0,
        hit_tokens: 0,
        unseen_before: 0,
        waited: None,
        beside: None,
        stamp: Stamp::default(),
    }
}

#[test]
fn prefill_is_released_once_and_the_rest_at_the_end() {
    let (mut ledger, mut counters) = (Ledger::default(), Counters::default());
    ledger.charge(ticket(1), entry(0), &mut counters);
    let full = Counters { requests: 1, uncached_prefill_tokens: 100, reserved_kv_tokens: 300, ..Counters::default() };
    assert_eq!(counters, full);
    assert!(ledger.end_prefill(ticket(1), &mut counters));
    assert!(!ledger.end_prefill(ticket(1), &mut counters));
    assert_eq!(counters, Counters { uncached_prefill_tokens: 0, ..full });
    assert!(ledger.remove(ticket(1), Some(&mut counters)).is_some());
    assert!(ledger.remove(ticket(1), Some(&mut counters)).is_none());
    assert_eq!((counters, ledger.len(), ledger.mismatches()), (Counters::default(), 0, 0));
}

#[test]
fn legs_and_attempts_are_entries_of_their_own() {
    let (mut ledger, mut counters) = (Ledger::default(), Counters::default());
    for (leg, attempt) in [(0, 0), (1, 0), (0, 1)] {
        ledger.charge(Ticket { leg, attempt, ..ticket(1) }, entry(0), &mut counters);
    }
    assert_eq!((counters.requests, ledger.len()), (3, 3));
}

#[test]
fn orphans_are_counted_out_once_and_touch_no_counter() {
    let (mut ledger, mut counters) = (Ledger::default(), Counters::default());
    for request in 0..4 {
        ledger.charge(ticket(request), entry(request as u32 % 2), &mut counters);
    }
    assert_eq!((ledger.orphan(InstanceId(1)), ledger.orphan(InstanceId(1))), (2, 0));
    let before = counters;
    assert!(!ledger.end_prefill(ticket(1), &mut counters));
    assert!(ledger.remove(ticket(1), None).is_some_and(|e| e.orphan));
    assert_eq!((counters, ledger.orphans(), ledger.mismatches()), (before, 1, 0));
}

#[test]
fn what_is_due_comes_once_in_order_and_leaves_with_its_entry() {
    let (mut ledger, mut counters) = (Ledger::default(), Counters::default());
    for request in 0..6_u128 {
        let prefill_until = (request != 5).then(|| Nanos::from_secs(50 - 10 * request as u64));
        ledger.charge(ticket(request), Entry { prefill_until, ..entry(request as u32 % 2) }, &mut counters);
    }
    assert_eq!((counters.uncached_prefill_tokens, counters.unseen_prefill_tokens), (600, 500));
    assert!(ledger.remove(ticket(4), Some(&mut counters)).is_some());
    assert!(ledger.end_prefill(ticket(2), &mut counters));
    assert_eq!(ledger.orphan(InstanceId(1)), 3);
    assert_eq!(ledger.pop_due(Nanos::from_secs(49)), None, "0 is due at 50, the others are gone");
    let due = ledger.pop_due(Nanos::from_secs(50));
    assert_eq!(due, Some((ticket(0), Target { instance: InstanceId(0), rank: Rank(0) })));
    assert!(ledger.end_prefill(ticket(0), &mut counters));
    assert_eq!((ledger.pop_due(Nanos::MAX), ledger.mismatches()), (None, 0));
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "below zero"))]
fn a_subtraction_below_zero_is_noticed() {
    let (mut ledger, mut counters) = (Ledger::default(), Counters::default());
    ledger.charge(ticket(1), entry(0), &mut counters);
    counters.reserved_kv_tokens = 10;
    ledger.remove(ticket(1), Some(&mut counters));
    assert_eq!((counters.reserved_kv_tokens, ledger.mismatches()), (0, 1));
}
