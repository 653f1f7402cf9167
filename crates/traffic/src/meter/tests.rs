use super::*;
use proptest::prelude::*;

fn limit(tokens_per_s: f64, burst_tokens: u64) -> Limit {
    Limit { tokens_per_s, burst_tokens }
}

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

#[test]
fn a_burst_then_the_rate() {
    let mut meter = Meter::new(limit(100.0, 50), Nanos::ZERO);
    assert!(meter.admit(30, ms(0)).is_ok());
    assert!(meter.admit(20, ms(0)).is_ok());
    let refused = meter.admit(10, ms(0)).unwrap_err();
    let wait = refused.retry_after.unwrap();
    assert!(wait >= ms(100) && wait < ms(101), "{wait}");
    assert!(meter.admit(10, ms(99)).is_err());
    assert!(meter.admit(10, wait).is_ok());
}

#[test]
fn one_larger_than_the_burst_is_served_when_nothing_is_left() {
    let mut meter = Meter::new(limit(100.0, 50), Nanos::ZERO);
    assert!(meter.admit(1000, ms(0)).is_ok());
    let wait = meter.admit(1000, ms(0)).unwrap_err().retry_after.unwrap();
    assert!(wait >= ms(10_000) && wait < ms(10_001), "{wait}");
    assert!(meter.admit(1, ms(9_000)).is_err());
    assert!(meter.is_empty(ms(10_000)));
}

#[test]
fn a_rate_of_nothing_never_admits_again_and_says_so() {
    for rate in [0.0, -1.0, f64::NAN] {
        let mut meter = Meter::new(limit(rate, 10), Nanos::ZERO);
        assert!(meter.admit(10, ms(0)).is_ok());
        assert_eq!(meter.admit(1, ms(1_000_000)), Err(Refused { retry_after: None }));
    }
    let mut free = Meter::new(limit(f64::INFINITY, 0), Nanos::ZERO);
    assert!((0..100).all(|at| free.admit(u64::MAX, ms(at)).is_ok()));
    free.set_limit(limit(1.0, 10), ms(100));
    assert!(free.admit(10, ms(100)).is_ok(), "what was free is not owed later");
}

#[test]
fn a_new_rate_holds_from_now_on() {
    let mut meter = Meter::new(limit(1000.0, 1000), Nanos::ZERO);
    assert!(meter.admit(1000, ms(0)).is_ok());
    meter.set_limit(limit(10.0, 1000), ms(500));
    assert!(meter.check(500, ms(500)).is_ok());
    let wait = meter.check(600, ms(500)).unwrap_err().retry_after.unwrap();
    assert!(wait >= ms(10_000) && wait < ms(10_001), "{wait}");
    meter.refund(100, ms(500));
    assert!(meter.check(600, ms(500)).is_ok());
}

proptest! {
    /// Never more than rate x span + burst + the largest, over every span; and whoever comes back when told is admitted.
    #[test]
    fn what_is_admitted_is_bounded_over_every_span(
        rate in 1f64..10_000.0,
        burst in 0u64..5_000,
        asks in prop::collection::vec((0u64..2_000, 0u64..3_000), 1..60),
    ) {
        let mut meter = Meter::new(limit(rate, burst), Nanos::ZERO);
        let mut now = Nanos::ZERO;
        let mut admitted: Vec<(Nanos, u64)> = Vec::new();
        for (after, tokens) in asks {
            now = now + ms(after);
            match meter.admit(tokens, now) {
                Ok(()) => admitted.push((now, tokens)),
                Err(Refused { retry_after }) => {
                    let mut later = meter;
                    prop_assert!(later.admit(tokens, now + retry_after.unwrap()).is_ok());
                }
            }
        }
        let largest = admitted.iter().map(|(_, tokens)| *tokens).max().unwrap_or(0);
        for (from, (start, _)) in admitted.iter().enumerate() {
            let mut total = 0;
            for (end, tokens) in &admitted[from..] {
                total += tokens;
                let most = rate * end.since(*start).as_secs_f64() + (burst + largest) as f64;
                prop_assert!(total as f64 <= most + 1e-6, "{total} of {most}");
            }
        }
    }
}
