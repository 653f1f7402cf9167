use super::{ClassRules, Past, classify};
use plimsoll_core::Class::{High, Low, Medium};

#[test]
fn table() {
    let cases = [
        (0, None, High, "few_uncached_tokens"),
        (0, Some(0), High, "few_uncached_tokens"),
        (2_000, None, High, "few_uncached_tokens"),
        (2_001, None, Medium, "between"),
        (2_001, Some(1), High, "few_uncached_tokens"),
        (16_000, None, Medium, "between"),
        (16_001, None, Medium, "long_hits_unknown"),
        (1_000_000, None, Medium, "long_hits_unknown"),
        (16_000, Some(0), Medium, "between"),
        (16_001, Some(0), Low, "long_and_cold"),
        (100_000, Some(0), Low, "long_and_cold"),
        (100_000, Some(29_999), Low, "long_and_cold"),
        (100_000, Some(30_000), Medium, "between"),
        (100_000, Some(79_999), Medium, "between"),
        (100_000, Some(80_000), High, "high_hit_fraction"),
        (100_000, Some(99_000), High, "few_uncached_tokens"),
        (100_000, Some(u64::MAX), High, "few_uncached_tokens"),
        (u64::MAX, Some(0), Low, "long_and_cold"),
    ];
    for (input, hit, class, rule) in cases {
        let verdict = classify(&ClassRules::default(), input, hit, Past::default());
        assert_eq!((verdict.class, verdict.rule), (class, rule), "{input} tokens, {hit:?} hit");
    }
}

#[test]
fn more_known_hits_never_lower_the_class() {
    for input in [1_000, 5_000, 20_000, 200_000] {
        let classes: Vec<_> = (0..=100)
            .map(|i| classify(&ClassRules::default(), input, Some(input * i / 100), Past::default()).class)
            .collect();
        // `Class` orders high first.
        assert!(classes.is_sorted_by(|a, b| a >= b), "{input}: {classes:?}");
    }
}

#[test]
fn bounds_are_settable() {
    let rules = ClassRules {
        high_uncached_tokens: 10,
        low_uncached_tokens: 20,
        low_hit_fraction: 1.0,
        ..ClassRules::default()
    };
    assert_eq!(classify(&rules, 11, None, Past::default()).class, Medium);
    assert_eq!(classify(&rules, 50, Some(29), Past::default()).class, Low);
}

#[test]
fn a_session_that_lost_its_kv_is_not_low_for_that() {
    let class = |hit_rounds, known_tokens| {
        let verdict = classify(&ClassRules::default(), 100_000, Some(0), Past { hit_rounds, known_tokens });
        (verdict.class, verdict.rule)
    };
    assert_eq!(class(1, 99_000), (Medium, "established_session"));
    assert_eq!(class(u32::MAX, u64::MAX), (Medium, "established_session"));
    // Never found it: nothing says that it will.
    assert_eq!(class(0, 99_000), (Low, "long_and_cold"));
    // A long document in an old conversation was never computed.
    assert_eq!(class(9, 80_000), (Medium, "established_session"));
    assert_eq!(class(9, 79_999), (Low, "long_and_cold"));
    assert_eq!(class(9, 0), (Low, "long_and_cold"));
    // It lifts nothing else.
    let past = Past { hit_rounds: 9, known_tokens: 100_000 };
    assert_eq!(classify(&ClassRules::default(), 100_000, Some(50_000), past).rule, "between");
    let wide = ClassRules { established_hit_rounds: 3, ..ClassRules::default() };
    assert_eq!(classify(&wide, 100_000, Some(0), Past { hit_rounds: 2, known_tokens: 99_000 }).class, Low);
}
