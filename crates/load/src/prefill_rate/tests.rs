use super::{MIN_TOKENS, PrefillRate, median};
use plimsoll_core::Nanos;

/// A request alone on its rank, nothing of it cached.
fn alone(rate: &mut PrefillRate, tokens: u64, elapsed: Nanos) {
    rate.observe(elapsed, 0, tokens, tokens);
}

fn near(rate: &PrefillRate, expected: f64) -> bool {
    rate.tokens_per_s().is_some_and(|r| (r / expected - 1.0).abs() < 0.05)
}

#[test]
fn it_needs_three_observations() {
    let mut rate = PrefillRate::default();
    for _ in 0..2 {
        alone(&mut rate, 1_000, Nanos::from_millis(100));
        assert_eq!(rate.tokens_per_s(), None);
    }
    alone(&mut rate, 1_000, Nanos::from_millis(100));
    assert!(near(&rate, 10_000.0));
}

#[test]
fn outliers_do_not_move_it() {
    let mut rate = PrefillRate::default();
    for step in 0..200 {
        let elapsed = match step % 10 {
            3 => 1,      // a prefix hit that nobody predicted
            7 => 60_000, // swapped out
            _ => 100,
        };
        alone(&mut rate, 1_000, Nanos::from_millis(elapsed));
    }
    assert!(near(&rate, 10_000.0), "{rate:?}");
}

#[test]
fn it_follows_a_lasting_change() {
    let mut rate = PrefillRate::default();
    for _ in 0..50 {
        alone(&mut rate, 1_000, Nanos::from_millis(100));
    }
    for _ in 0..30 {
        alone(&mut rate, 1_000, Nanos::from_millis(1_000));
    }
    assert!(near(&rate, 1_000.0), "{rate:?}");
}

#[test]
fn short_prompts_are_a_lower_bound_only() {
    let mut rate = PrefillRate::default();
    for _ in 0..50 {
        alone(&mut rate, 10, Nanos::from_millis(20));
    }
    assert_eq!(rate.tokens_per_s(), None, "500 tokens/s would be the round trip, not the engine");
    for _ in 0..3 {
        alone(&mut rate, MIN_TOKENS * 4, Nanos::from_millis(100));
    }
    let learnt = rate.tokens_per_s();
    for _ in 0..50 {
        alone(&mut rate, 10, Nanos::from_millis(20));
    }
    assert_eq!(rate.tokens_per_s(), learnt);
}

#[test]
fn impossible_observations_are_ignored() {
    let mut rate = PrefillRate::default();
    for _ in 0..10 {
        alone(&mut rate, 0, Nanos::from_millis(5));
        alone(&mut rate, 1_000, Nanos::ZERO);
    }
    assert_eq!(rate.tokens_per_s(), None);
}

#[test]
fn others_count_as_far_as_they_were_not_cached() {
    let mut rate = PrefillRate::default();
    for _ in 0..50 {
        // 9,000 tokens charged to others in front, this one of 1,000; a tenth of everything is really computed.
        rate.observe(Nanos::from_millis(100), 9_000, 1_000, 100);
    }
    assert!(near(&rate, 10_000.0), "{rate:?}");
}

#[test]
fn median_of_few() {
    assert_eq!(median(&mut [3.0]), 3.0);
    assert_eq!(median(&mut [9.0, 1.0, 5.0]), 5.0);
    assert_eq!(median(&mut [4.0, 1.0]), 4.0);
}
