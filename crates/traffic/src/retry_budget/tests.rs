use super::RetryBudget;

/// Retries granted when each of `requests` wants `wanted` of them.
fn granted(budget: &mut RetryBudget, requests: u32, wanted: u32) -> u32 {
    let mut granted = 0;
    for _ in 0..requests {
        budget.on_request();
        granted += (0..wanted).filter(|_| budget.try_retry()).count() as u32;
    }
    granted
}

#[test]
fn retries_stay_a_tenth_of_requests_however_many_are_wanted() {
    let mut budget = RetryBudget::new(0.1, 16);
    // The first deposit finds the bucket full.
    assert_eq!(granted(&mut budget, 10_000, 4), 16 + 999);
}

#[test]
fn a_burst_is_available_at_once_and_no_more() {
    let mut budget = RetryBudget::new(0.1, 3);
    for _ in 0..1_000 {
        budget.on_request();
    }
    assert_eq!(budget.available(), 3);
    assert_eq!((0..10).filter(|_| budget.try_retry()).count(), 3);
}

#[test]
fn it_refills_by_requests_alone() {
    let mut budget = RetryBudget::new(0.25, 1);
    assert!(budget.try_retry());
    for _ in 0..3 {
        budget.on_request();
        assert!(!budget.try_retry());
    }
    budget.on_request();
    assert!(budget.try_retry());
}

#[test]
fn odd_settings_mean_fewer_retries_never_more() {
    assert_eq!(granted(&mut RetryBudget::new(0.1, 0), 100, 1), 0);
    assert_eq!(granted(&mut RetryBudget::new(0.0, 5), 100, 1), 5);
    assert_eq!(granted(&mut RetryBudget::new(-1.0, 5), 100, 1), 5);
    assert_eq!(granted(&mut RetryBudget::new(f64::NAN, 5), 100, 1), 5);
    assert_eq!(granted(&mut RetryBudget::new(7.0, 1), 100, 2), 1 + 99, "read as 1");
}

#[test]
fn a_reload_keeps_the_balance_within_the_new_bound() {
    let mut budget = RetryBudget::new(0.1, 16);
    assert!(budget.try_retry());
    budget.reconfigure(0.1, 100);
    assert_eq!(budget.available(), 15);
    budget.reconfigure(0.1, 4);
    assert_eq!(budget.available(), 4);
}
