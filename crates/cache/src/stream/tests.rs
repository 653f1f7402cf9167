use super::*;
use proptest::prelude::*;

const NOW: Nanos = Nanos(1);

fn applied(steps: &[Step<u64>]) -> Vec<u64> {
    steps.iter().filter_map(|step| if let Step::Apply(batch) = step { Some(*batch) } else { None }).collect()
}

fn live(stream: &mut Stream<u64>, seq: u64) -> Vec<Step<u64>> {
    stream.live(NOW, seq, seq as f64, 8, seq)
}

#[test]
fn in_order_from_the_start_everything_is_known() {
    let mut stream = Stream::default();
    assert_eq!(stream.trust(), Trust::Silent);
    for seq in 0..5 {
        assert_eq!(live(&mut stream, seq), [Step::Apply(seq)]);
    }
    assert_eq!(stream.trust(), Trust::Whole);
}

#[test]
fn a_gap_is_filled_from_the_replay_before_anything_later_counts() {
    let mut stream = Stream::default();
    live(&mut stream, 0);
    assert_eq!(live(&mut stream, 3), [Step::Replay { from: 1 }]);
    assert_eq!(stream.trust(), Trust::Gap);
    assert_eq!(live(&mut stream, 4), []);
    assert_eq!(applied(&stream.replayed(1, 1)), [1]);
    assert_eq!(applied(&stream.replayed(2, 2)), [2, 3, 4]);
    assert_eq!(stream.trust(), Trust::Whole);
    assert_eq!(applied(&stream.replayed(3, 3)), [] as [u64; 0]);
    assert_eq!(stream.replay_ended(), []);
    assert_eq!(applied(&live(&mut stream, 5)), [5]);
}

#[test]
fn a_gap_that_cannot_be_filled_drops_the_view() {
    let mut stream = Stream::default();
    live(&mut stream, 0);
    live(&mut stream, 5);
    live(&mut stream, 6);
    assert_eq!(stream.replay_ended(), [Step::Reset(Why::Gap), Step::Apply(5), Step::Apply(6)]);
    assert_eq!(stream.trust(), Trust::Partial);
    live(&mut stream, 9);
    assert_eq!(stream.tick(Nanos(2)), []);
    assert_eq!(stream.tick(REPLAY_TIMEOUT + Nanos(2)), [Step::Reset(Why::Gap), Step::Apply(9)]);
}

#[test]
fn a_late_subscriber_asks_for_everything_and_takes_what_is_left() {
    let mut stream = Stream::default();
    assert_eq!(live(&mut stream, 50), [Step::Replay { from: 0 }]);
    assert_eq!(stream.trust(), Trust::Gap);
    // The buffer still has 48 and 49.
    assert_eq!(applied(&stream.replayed(48, 48)), [48]);
    assert_eq!(applied(&stream.replayed(49, 49)), [49, 50]);
    assert_eq!((stream.replay_ended(), stream.trust()), (vec![], Trust::Partial));
    let mut whole = Stream::default();
    live(&mut whole, 1);
    assert_eq!(applied(&whole.replayed(0, 0)), [0, 1]);
    assert_eq!(whole.trust(), Trust::Whole);
}

#[test]
fn a_restart_is_told_from_a_duplicate_by_its_time() {
    let mut stream = Stream::default();
    for seq in 0..10 {
        stream.live(NOW, seq, 100.0 + seq as f64, 8, seq);
    }
    assert_eq!(stream.live(NOW, 4, 104.0, 8, 4), []);
    assert_eq!(stream.duplicates(), 1);
    assert_eq!(stream.live(NOW, 0, 200.0, 8, 77), [Step::Reset(Why::Restarted), Step::Apply(77)]);
    assert_eq!(stream.trust(), Trust::Whole);
    for seq in 1..10 {
        stream.live(NOW, seq, 200.0 + seq as f64, 8, seq);
    }
    // Restarted again, and its first messages were missed.
    assert_eq!(stream.live(NOW, 3, 300.0, 8, 3), [Step::Reset(Why::Restarted), Step::Replay { from: 0 }]);
}

#[test]
fn a_publisher_that_never_replays_does_not_collect_memory() {
    let mut stream = Stream::default();
    live(&mut stream, 0);
    let mut resets = 0;
    for seq in 2..20_000u64 {
        let seq = seq * 2;
        resets += live(&mut stream, seq).iter().filter(|step| matches!(step, Step::Reset(_))).count();
        assert!(stream.gap.as_ref().is_none_or(|gap| gap.held.len() <= MOST_HELD));
    }
    assert!(resets >= 3, "{resets}");
}

proptest! {
    /// Lost, repeated and reordered messages, with a replay that answers or does not: what has been applied since the last reset is a
    /// run of numbers without a hole, in order, each once.
    #[test]
    fn what_is_believed_has_no_hole(
        seqs in proptest::collection::vec(0u64..40, 1..80),
        answers in proptest::collection::vec(0u8..3, 80),
    ) {
        let (mut stream, mut believed) = (Stream::default(), Vec::new());
        for (seq, answer) in seqs.iter().zip(answers) {
            let mut steps = stream.live(NOW, *seq, *seq as f64, 8, *seq);
            if let Some(Step::Replay { from }) = steps.last().cloned() {
                if answer > 0 {
                    for seq in from.max(if answer == 1 { 0 } else { 3 })..*seq {
                        steps.extend(stream.replayed(seq, seq));
                    }
                }
                steps.extend(stream.replay_ended());
            }
            for step in steps {
                match step {
                    Step::Reset(_) => believed.clear(),
                    Step::Apply(seq) => believed.push(seq),
                    Step::Replay { .. } => {}
                }
            }
            prop_assert!(believed.windows(2).all(|pair| pair[1] == pair[0] + 1), "{:?}", believed);
            prop_assert!(stream.trust() != Trust::Whole || believed.first() == Some(&0));
        }
    }
}

/// What a publisher held that died is gone before its successor says a word; where that begins anew, everything is known again.
#[test]
fn a_publisher_that_died_takes_its_view_along() {
    let mut stream = Stream::default();
    assert_eq!(stream.gone(), [], "of one that never spoke nothing was believed");
    live(&mut stream, 0);
    live(&mut stream, 4);
    assert_eq!(stream.gone(), [Step::Reset(Why::Restarted)]);
    assert_eq!((stream.trust(), stream.gone()), (Trust::Silent, vec![]));
    assert_eq!(stream.replayed(1, 1), [], "of the old one's replay nothing counts");
    // A clock that was set back meanwhile does not make it a repetition.
    assert_eq!(stream.live(NOW, 0, -5.0, 8, 0), [Step::Apply(0)]);
    assert_eq!((stream.trust(), stream.gaps()), (Trust::Whole, 1));
}

#[test]
fn what_is_held_back_is_bounded_in_bytes_too() {
    let mut stream = Stream::default();
    stream.live(NOW, 0, 0.0, 8, 0);
    for seq in 2..6 {
        stream.live(NOW, seq, seq as f64, MOST_HELD_BYTES / 4, seq);
        assert_eq!(stream.trust(), Trust::Gap);
    }
    let steps = stream.live(NOW, 6, 6.0, 8, 6);
    assert_eq!(steps.first(), Some(&Step::Reset(Why::Gap)));
    assert_eq!((steps.len(), stream.trust()), (6, Trust::Partial));
}

#[test]
fn the_last_number_there_is_means_nothing() {
    let mut stream = Stream::default();
    stream.live(NOW, 0, 0.0, 8, 0);
    assert_eq!(stream.live(NOW, u64::MAX, 1.0, 8, 1), []);
    assert_eq!(stream.live(NOW, 1, 1.0, 8, 1), [Step::Apply(1)]);
}

/// Its clock was ahead, it was put right and the process started anew: the old time says "repeated", the row says "telling on".
#[test]
fn a_restart_behind_a_clock_that_was_ahead_is_seen() {
    let mut stream = Stream::default();
    for seq in 0..20 {
        stream.live(NOW, seq, 30_000.0 + seq as f64, 8, seq);
    }
    for seq in 0..u64::from(MOST_REPEATED) {
        assert_eq!(stream.live(NOW, seq, 100.0 + seq as f64, 8, seq), []);
    }
    let next = u64::from(MOST_REPEATED);
    let steps = stream.live(NOW, next, 200.0, 8, next);
    assert_eq!(steps, [Step::Reset(Why::Restarted), Step::Replay { from: 0 }]);
    for seq in 0..next {
        stream.replayed(seq, seq);
    }
    assert_eq!(stream.trust(), Trust::Whole);
    assert_eq!(stream.live(NOW, next + 1, 201.0, 8, 9), [Step::Apply(9)]);
}

#[test]
fn single_repeated_messages_stay_repeated() {
    let mut stream = Stream::default();
    for seq in 0..100 {
        live(&mut stream, seq);
        assert_eq!(live(&mut stream, seq), [], "repeated {seq}");
    }
    assert_eq!((stream.duplicates(), stream.trust()), (100, Trust::Whole));
}
