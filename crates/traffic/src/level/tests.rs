use super::*;
use proptest::prelude::*;

fn load(backlog: u64, rate: Option<f64>, reserved: u64, capacity: Option<u64>) -> InstanceLoad {
    InstanceLoad {
        backlog_tokens: backlog,
        prefill_tokens_per_s: rate,
        reserved_kv_tokens: reserved,
        kv_capacity_tokens: capacity,
        running: 0,
        out: false,
    }
}

const SECOND: Nanos = Nanos::from_secs(1);

#[test]
fn a_full_engine_among_eight_is_an_eighth_of_the_pool() {
    let mut pool = vec![load(0, Some(1000.0), 0, Some(100)); 7];
    pool.push(load(50_000, Some(1000.0), 500, Some(100)));
    assert_eq!(pool_levels(&pool, SECOND), Levels { prefill: Some(0.125), decode: Some(0.125) });
}

#[test]
fn big_engines_count_more() {
    let pool = [load(0, Some(3000.0), 0, None), load(1000, Some(1000.0), 0, None)];
    assert_eq!(pool_levels(&pool, SECOND), Levels { prefill: Some(0.25), decode: None });
}

#[test]
fn the_unknown_is_left_out_and_is_not_empty() {
    let known = load(500, Some(1000.0), 90, Some(100));
    let unknown = load(0, None, 0, None);
    assert_eq!(pool_levels(&[known, unknown], SECOND), pool_levels(&[known], SECOND));
    assert_eq!(pool_levels(&[unknown], SECOND), Levels::default());
    assert_eq!(pool_levels(&[], SECOND).highest(), None);
    assert_eq!(Levels { prefill: Some(0.5), decode: None }.highest(), Some(0.5));
    assert_eq!(Levels { prefill: Some(0.5), decode: Some(0.9) }.highest(), Some(0.9));
}

#[test]
fn what_has_no_room_is_full() {
    assert_eq!(
        instance_levels(&load(0, Some(0.0), 0, Some(0)), SECOND),
        Levels { prefill: Some(1.0), decode: Some(1.0) }
    );
    assert_eq!(instance_levels(&load(9, Some(f64::NAN), 0, None), SECOND).prefill, None);
    assert_eq!(instance_levels(&load(9, Some(-1.0), 0, None), SECOND).prefill, None);
}

#[test]
fn it_rises_faster_than_it_falls() {
    let mut level = SmoothLevel::new(Nanos::from_millis(100), Nanos::from_secs(10));
    assert_eq!(level.update(Nanos::from_secs(1), Some(0.0)), Some(0.0));
    let up = level.update(Nanos::from_secs(2), Some(1.0)).unwrap();
    assert!(up > 0.9, "{up}");
    let down = level.update(Nanos::from_secs(3), Some(0.0)).unwrap();
    assert!(down > 0.8 * up, "{down}");
    assert_eq!(level.update(Nanos::from_secs(4), None), Some(down), "not knowing is no measurement");
}

#[test]
fn a_latch_holds_between_its_levels() {
    let mut latch = Latch::new(0.8, 0.15);
    let states: Vec<bool> =
        [0.7, 0.79, 0.8, 0.75, 0.69, 0.68, 0.67, 0.79].into_iter().map(|level| latch.update(Some(level))).collect();
    assert_eq!(states, [false, false, true, true, true, false, false, false]);
    assert!(!latch.update(None));
}

#[test]
fn a_held_level_rises_at_once_and_falls_late() {
    let mut held = HeldLevel::new(0.2);
    assert_eq!(held.update(None), None);
    let seen: Vec<f64> = [0.5, 1.0, 0.9, 0.8, 0.4, 0.45].map(|level| held.update(Some(level)).unwrap()).to_vec();
    assert_eq!(seen, [0.5, 1.0, 1.0, 1.0, 0.5, 0.5]);
    assert_eq!(held.update(Some(0.0)), Some(0.0), "an empty pool is empty");
}

proptest! {
    /// More load never lowers a level, and levels stay between 0 and 1.
    #[test]
    fn levels_are_monotone_in_load(
        pool in prop::collection::vec((0u64..1_000_000, 0.1f64..1e6, 0u64..1_000_000, 1u64..1_000_000), 1..9),
        at in any::<prop::sample::Index>(),
        more in 0u64..1_000_000,
    ) {
        let mut pool: Vec<InstanceLoad> =
            pool.into_iter().map(|(b, r, k, c)| load(b, Some(r), k, Some(c))).collect();
        let before = pool_levels(&pool, SECOND);
        let at = at.index(pool.len());
        pool[at].backlog_tokens += more;
        pool[at].reserved_kv_tokens += more;
        let after = pool_levels(&pool, SECOND);
        for (before, after) in [(before.prefill, after.prefill), (before.decode, after.decode)] {
            let (before, after) = (before.unwrap(), after.unwrap());
            prop_assert!((0.0..=1.0).contains(&before) && (0.0..=1.0).contains(&after));
            prop_assert!(after >= before - 1e-12);
        }
    }

    /// Whatever the times between measurements, it stays between the least and the greatest of them.
    #[test]
    fn smoothing_never_overshoots(
        rise in 0u64..10_000, fall in 0u64..10_000,
        measured in prop::collection::vec((0u64..100_000, 0f64..=1.0), 1..40),
    ) {
        let mut level = SmoothLevel::new(Nanos::from_millis(rise), Nanos::from_millis(fall));
        let (mut now, mut low, mut high) = (Nanos::ZERO, f64::INFINITY, f64::NEG_INFINITY);
        for (after, measured) in measured {
            now = now + Nanos::from_millis(after);
            (low, high) = (low.min(measured), high.max(measured));
            let value = level.update(now, Some(measured)).unwrap();
            prop_assert!(value >= low - 1e-12 && value <= high + 1e-12);
        }
    }
}
