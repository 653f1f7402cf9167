use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// Steps of `n` prefill tokens that take `fixed + n * slope` milliseconds.
fn taught(sizes: &[usize], fixed: f64, slope: f64) -> Pace {
    let mut pace = Pace::default();
    for (at, n) in sizes.iter().enumerate() {
        let took = ((fixed + *n as f64 * slope) * MS as f64) as u64;
        pace.observe(Nanos(at as u64), *n, 3, Nanos(took));
    }
    pace
}

fn ms(pace: &Pace, tokens: usize) -> f64 {
    pace.prefill_step_ns(Nanos(100), tokens).unwrap() / MS as f64
}

#[test]
fn a_line_is_found_and_not_followed_beyond_what_was_seen() {
    let pace = taught(&[1, 500, 30, 512, 4, 512], 10.0, 0.1);
    assert!((ms(&pace, 1) - 10.1).abs() < 0.01);
    assert!((ms(&pace, 300) - 40.0).abs() < 0.01);
    assert!((ms(&pace, 512) - 61.2).abs() < 0.01);
    assert!((ms(&pace, 4096) - 61.2).abs() < 0.01);
    assert!((199..=200).contains(&pace.prefill_within(Nanos(100), Nanos(30 * MS)).unwrap()));
    assert_eq!(pace.prefill_within(Nanos(100), Nanos(5 * MS)), Some(0));
}

#[test]
fn steps_of_one_size_are_extrapolated_kindly() {
    let pace = taught(&[8, 8, 9, 8], 10.0, 0.0);
    assert!((ms(&pace, 512) - 10.0).abs() < 0.01, "not 64 times as long");
    assert!(ms(&pace, 1) < 2.0, "perhaps it is all per token");
    // Chunks follow the steps seen: twice the time, about twice as much.
    assert_eq!(pace.prefill_within(Nanos(100), Nanos(20 * MS)), Some(16));
}

#[test]
fn what_is_not_known_or_old_is_no_figure() {
    let mut pace = Pace::default();
    assert_eq!(pace.prefill_step_ns(Nanos(5), 8), None);
    pace.observe(Nanos(5), 0, 4, Nanos(8 * MS));
    assert_eq!(pace.prefill_step_ns(Nanos(5), 8), None, "a decode step tells nothing about prefill");
    assert_eq!(pace.decode_step(Nanos(5), 4), Some(Nanos(8 * MS)));
    assert_eq!(pace.decode_step(Nanos(5), 1), Some(Nanos(2 * MS)), "at most proportional");
    let later = Nanos(5) + HORIZON;
    assert!(pace.decode_step(later, 4).is_some());
    assert_eq!(pace.decode_step(later + Nanos(1), 4), None);
    // And what comes after is not mixed with it.
    pace.observe(later + Nanos(2), 0, 4, Nanos(MS));
    assert_eq!(pace.decode_step(later + Nanos(2), 4), Some(Nanos(MS)));
}

proptest! {
    /// Whatever was seen, nothing is said to take longer than the slowest step seen, nor is more said to take less.
    #[test]
    fn figures_are_bounded_by_experience(
        steps in prop::collection::vec((1usize..600, 1u64..100), 1..60),
        asked in 1usize..5_000,
    ) {
        let mut pace = Pace::default();
        for (at, (tokens, took)) in steps.iter().enumerate() {
            pace.observe(Nanos(at as u64), *tokens, 0, Nanos(took * MS));
        }
        let said = ms(&pace, asked);
        prop_assert!(said >= 0.0 && said <= ms(&pace, asked + 1) + 1e-6);
        // A line through noise can overshoot at its end, but not by more than its own rise.
        let slowest = steps.iter().map(|(_, took)| *took).max().unwrap() as f64;
        prop_assert!(said <= 4.0 * slowest, "{} against {}", said, slowest);
    }
}
