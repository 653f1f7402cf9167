use super::*;
use proptest::prelude::*;

#[test]
fn the_table_of_the_design() {
    let quotas = Quotas::default();
    let table = [
        (0.0, [1.0, 1.0, 1.0]),
        (0.70, [1.0, 1.0, 1.0]),
        (0.85, [1.0, 1.0, 0.7]),
        (0.95, [1.0, 0.6, 0.25]),
        (1.00, [0.9, 0.2, 0.02]),
        (7.0, [0.9, 0.2, 0.02]),
    ];
    for (level, shares) in table {
        for (class, share) in Class::ALL.into_iter().zip(shares) {
            assert!((quotas.share(class, Some(level)) - share).abs() < 1e-12, "{class} at {level}");
        }
    }
    assert!((quotas.share(Class::Low, Some(0.775)) - 0.85).abs() < 1e-12);
    assert!((quotas.share(Class::Medium, Some(0.90)) - 0.8).abs() < 1e-12);
    assert_eq!(quotas.share(Class::Low, None), 1.0);
}

#[test]
fn what_is_no_curve_is_refused_by_class() {
    let full = || vec![(0.0, 1.0)];
    let of = |low: Vec<(f64, f64)>| Quotas::new(full(), full(), low).map(|_| ());
    let class = Class::Low;
    assert_eq!(of(vec![]), Err(CurveError::Points { class }));
    assert_eq!(of(vec![(0.0, 1.0); 65]), Err(CurveError::Points { class }));
    assert_eq!(of(vec![(0.0, f64::NAN)]), Err(CurveError::Range { class }));
    assert_eq!(of(vec![(-0.1, 1.0)]), Err(CurveError::Range { class }));
    assert_eq!(of(vec![(0.5, 1.0), (0.5, 0.5)]), Err(CurveError::Order { class }));
    assert_eq!(of(vec![(0.5, 0.4), (0.6, 0.5)]), Err(CurveError::Rising { class }));
    let half = vec![(0.0, 1.0), (1.0, 0.0)];
    let crossing = Quotas::new(half.clone(), full(), full());
    assert_eq!(crossing, Err(CurveError::Classes { higher: Class::High, lower: Class::Medium }));
    assert!(Quotas::new(full(), half.clone(), half).is_ok());
}

fn curve() -> impl Strategy<Value = Vec<(f64, f64)>> {
    prop::collection::btree_map(0u32..=1000, 0u32..=1000, 1..8).prop_map(|points| {
        let mut shares: Vec<u32> = points.values().copied().collect();
        shares.sort_unstable_by(|a, b| b.cmp(a));
        points.keys().zip(shares).map(|(level, share)| (f64::from(*level) / 1e3, f64::from(share) / 1e3)).collect()
    })
}

proptest! {
    /// Falls with the level and with the class, for every set of curves that is accepted.
    #[test]
    fn shares_are_monotone_in_level_and_in_class(
        high in curve(), medium in curve(), low in curve(), one in 0f64..=1.0, other in 0f64..=1.0,
    ) {
        let quotas = Quotas::new(high, medium, low).unwrap_or_default();
        let (lower, higher) = (one.min(other), one.max(other));
        for class in Class::ALL {
            prop_assert!(quotas.share(class, Some(higher)) <= quotas.share(class, Some(lower)));
        }
        for level in [lower, higher] {
            let [high, medium, low] = Class::ALL.map(|class| quotas.share(class, Some(level)));
            prop_assert!(high >= medium - 1e-9 && medium >= low - 1e-9);
        }
    }
}
