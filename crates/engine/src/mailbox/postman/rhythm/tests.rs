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
fn an_even_step_is_looked_for_right_after_its_end() {
    for step in [2_000, 4_000, 8_000, 40_000] {
        let (rhythm, last) = after([step; 60]);
        assert_eq!(rhythm.patience(), Duration::from_micros((step / 4).min(1000)));
        let end = last + Duration::from_micros(step);
        let look = rhythm.next_look(last, 0).unwrap();
        assert!(look >= end && look <= end + SLACK * 2, "{:?}", look - end);
        // And then no more.
        assert_eq!(rhythm.next_look(look, 1), None);
    }
}

#[test]
fn steps_that_differ_are_looked_for_from_the_earliest_to_the_latest() {
    let (rhythm, last) = after([7_300, 8_700].repeat(40));
    let mut looks = Vec::new();
    while let Some(look) = rhythm.next_look(last, looks.len() as u32) {
        looks.push(look);
    }
    assert!((2..=LOOKS as usize + 1).contains(&looks.len()), "{looks:?}");
    // Whenever it comes between the ends, somebody looks within the patience.
    let patience = rhythm.patience();
    let (early, late) = (last + Duration::from_micros(7_300), last + Duration::from_micros(8_700));
    assert!(looks[0] > last && looks[0] <= early + patience);
    assert!(*looks.last().unwrap() + patience > late);
    looks.windows(2).for_each(|pair| assert_eq!(pair[1] - pair[0], patience));
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
    let late = rhythm.next_look(last, 0).unwrap() - (last + Duration::from_millis(8));
    assert!(late < SLACK * 3, "{late:?}");
}
