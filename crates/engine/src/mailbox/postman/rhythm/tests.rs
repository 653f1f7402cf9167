use super::*;

/// After bags at these distances, and the time of the last one.
fn after(micros: impl IntoIterator<Item = u64>) -> (Rhythm, Instant) {
    let (mut rhythm, mut now) = (Rhythm::default(), Instant::now());
    rhythm.beat(now);
    for distance in micros {
        now += Duration::from_micros(distance);
        rhythm.beat(now);
    }
    (rhythm, now)
}

#[test]
fn an_even_step_is_looked_for_a_little_after_its_end() {
    for step in [2_000, 4_000, 8_000, 40_000] {
        let (rhythm, last) = after([step; 30]);
        let patience = rhythm.patience();
        assert_eq!(patience, Duration::from_micros((step / 8).min(1000)));
        let look = rhythm.next_look(last, 0).unwrap();
        assert_eq!(look, last + Duration::from_micros(step) + patience / 2);
        // Too early: again, a little later each time, and no more than twice.
        let again = rhythm.next_look(look, 1).unwrap();
        assert_eq!(again, look + patience / 2);
        assert_eq!(rhythm.next_look(again, 2), Some(again + patience / 2));
        assert_eq!(rhythm.next_look(again + patience / 2, 3), None);
    }
}

#[test]
fn nobody_sets_an_alarm_by_steps_that_are_short_or_not_alike_or_over() {
    let none = |micros: Vec<u64>| {
        let (rhythm, last) = after(micros);
        assert_eq!(rhythm.next_look(last, 0), None);
    };
    none(vec![]);
    none(vec![8_000]);
    none(vec![1_900; 100]);
    none([6_000, 10_000].repeat(50));
    let (rhythm, last) = after([8_000; 30]);
    assert_eq!(rhythm.next_look(last + Duration::from_secs(1), 0), None, "that time has passed");
    assert_eq!(Rhythm::default().next_look(last, 0), None);
}

#[test]
fn a_pause_is_forgotten() {
    let (rhythm, last) = after([8_000; 30].into_iter().chain([2_000_000]));
    assert_eq!(rhythm.next_look(last, 0), None);
    let (rhythm, last) = after([8_000; 30].into_iter().chain([2_000_000]).chain([8_000; 80]));
    let look = rhythm.next_look(last, 0).unwrap();
    assert!(look.abs_diff_to(last + Duration::from_micros(8_500)) < Duration::from_micros(100));
}

trait Apart {
    fn abs_diff_to(self, other: Instant) -> Duration;
}

impl Apart for Instant {
    fn abs_diff_to(self, other: Instant) -> Duration {
        self.max(other) - self.min(other)
    }
}
