use super::{Foreign, Known, Reported, TrustClock};
use crate::ledger::Counters;
use plimsoll_core::{LoadReport, Nanos};

const STALE: Nanos = Nanos::from_secs(2);

fn report(at: u64) -> LoadReport {
    LoadReport {
        received: Nanos::from_millis(at),
        running_requests: Some(3),
        waiting_requests: Some(4),
        waiting_uncached_tokens: Some(1_000),
        used_kv_tokens: Some(500),
        ..LoadReport::default()
    }
}

fn foreign_at(reported: &Reported, ms: u64) -> Foreign {
    reported.foreign(&TrustClock::new(Nanos::from_millis(ms), STALE))
}

#[test]
fn only_what_exceeds_the_ledger_is_foreign() {
    let own = Counters { requests: 2, uncached_prefill_tokens: 400, reserved_kv_tokens: 9_000, ..Counters::default() };
    let mut reported = Reported::NONE;
    reported.take(&report(0), &own, Nanos::ZERO);
    assert_eq!(foreign_at(&reported, 0), Foreign::default(), "one report may show requests of ours that just ended");
    reported.take(&report(0), &own, Nanos::ZERO);
    assert_eq!(foreign_at(&reported, 0), Foreign { requests: 5.0, prefill_tokens: 600.0, kv_tokens: 0.0 });
}

#[test]
fn trust_falls_linearly_to_nothing() {
    let mut reported = Reported::NONE;
    for at in [999, 1_000] {
        reported.take(&report(at), &Counters::default(), Nanos::from_millis(at));
    }
    for (at, prefill_tokens) in [(1_000, 1_000.0), (1_500, 750.0), (2_000, 500.0), (3_000, 0.0), (90_000, 0.0)] {
        assert!((foreign_at(&reported, at).prefill_tokens - prefill_tokens).abs() < 1e-6, "{at} ms");
    }
    let all = Known { requests: true, prefill_tokens: true, kv_tokens: true };
    assert_eq!(reported.known(Nanos::from_millis(2_999), STALE), all);
    assert_eq!(reported.known(Nanos::from_millis(3_000), STALE), Known::default());
}

#[test]
fn missing_fields_are_unknown_and_do_not_keep_their_old_value() {
    let mut reported = Reported::NONE;
    reported.take(&report(0), &Counters::default(), Nanos::ZERO);
    let sparse = LoadReport { waiting_requests: Some(1), received: Nanos::from_millis(1), ..LoadReport::default() };
    reported.take(&sparse, &Counters::default(), Nanos::from_millis(1));
    assert_eq!(foreign_at(&reported, 1), Foreign { requests: 1.0, prefill_tokens: 0.0, kv_tokens: 0.0 });
    let requests_only = Known { requests: true, ..Known::default() };
    assert_eq!(reported.known(Nanos::from_millis(1), STALE), requests_only);
}

/// Found by a burst test against vLLM's form: the sample held requests that had ended when it was read.
#[test]
fn a_phantom_is_gone_by_the_next_report() {
    let mut reported = Reported::NONE;
    let (busy, idle) = (Counters { requests: 7, ..Counters::default() }, Counters::default());
    for (at, own) in [(0, &busy), (500, &idle), (1_000, &busy)] {
        reported.take(&report(at), own, Nanos::from_millis(at));
        assert!(foreign_at(&reported, at).requests.abs() < 1e-9, "at {at} ms");
    }
}

#[test]
fn without_a_report_or_with_no_trusted_age_nothing_is_added() {
    assert_eq!(foreign_at(&Reported::NONE, 5), Foreign::default());
    let mut reported = Reported::NONE;
    reported.take(&report(0), &Counters::default(), Nanos::ZERO);
    for at in [0, 1, 1_000] {
        assert_eq!(reported.foreign(&TrustClock::new(Nanos::from_millis(at), Nanos::ZERO)), Foreign::default());
    }
}

#[test]
fn a_capacity_of_zero_is_not_believed() {
    let mut reported = Reported::NONE;
    for (capacity, kept) in
        [(Some(0), None), (Some(7), Some(7)), (None, Some(7)), (Some(0), Some(7)), (Some(9), Some(9))]
    {
        let report = LoadReport { capacity_kv_tokens: capacity, ..LoadReport::default() };
        reported.take(&report, &Counters::default(), Nanos::ZERO);
        assert_eq!(reported.capacity_kv_tokens(), kept);
    }
}
