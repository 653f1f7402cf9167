//! Questions that are refused, and what is said of those that are not.

use super::*;
use crate::world::{Nobody, StartUp};

fn asked(change: impl FnOnce(&mut Question)) -> Result<Report, QuestionError> {
    let trace = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(trace.path(), "t_s,input_tokens,output_tokens\n0,5,3\n").unwrap();
    let mut question = Question::new(trace.path(), "h100-llama3-8b", 2, Policy::Random);
    change(&mut question);
    question.answer(&mut Nobody)
}

/// Found by hand: each of them ran, or ended the program with an overflow.
#[test]
fn engines_that_are_not_there_and_speeds_that_are_none_are_refused() {
    let error = |change: fn(&mut Question)| asked(change).unwrap_err().to_string();
    let kill = error(|question| question.changes = vec![(Nanos::ZERO, Change::Die { instance: 2 })]);
    assert_eq!(kill, "there is no engine 2: they are counted from 0, and the last one is 1");
    let slow = error(|question| question.changes = vec![(Nanos::ZERO, Change::Slow { instance: 1, times: 0 })]);
    assert!(slow.starts_with("engine 1: a step cannot take 0 times"), "{slow}");
    assert!(
        asked(|question| {
            question.changes = vec![
                (Nanos::ZERO, Change::Join { start_up: StartUp::default() }),
                (Nanos(1), Change::Slow { instance: 2, times: 3 }),
            ];
        })
        .is_ok()
    );
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let tier = TierConfig { capacity_tokens: 1, bytes_per_s: rate, latency: Nanos::ZERO };
        for result in [
            asked(|question| question.network_bytes_per_s = Some(rate)),
            asked(|question| question.host = Some(tier)),
            asked(|question| question.pool = Some(tier)),
        ] {
            assert!(result.unwrap_err().to_string().ends_with("rate must be above 0 GB/s"), "{rate}");
        }
    }
    let slow = error(|question| question.speedup = 1e-12);
    assert!(slow.contains("h100-llama3-8b: prefill of a whole token budget"), "{slow}");
}

#[test]
fn a_budget_that_is_raised_is_said_and_changes_are_in_words() {
    let report = asked(|question| {
        question.token_budget = Some(1);
        let again = StartUp(vec![("weights".to_owned(), Nanos::from_secs(30))]);
        let at = Nanos::from_millis(1_500);
        question.changes =
            vec![(at, Change::Return { instance: 0, start_up: again }), (at, Change::Slow { instance: 1, times: 3 })];
    });
    let report = report.unwrap();
    assert!(
        report.notes.iter().any(|note| note.starts_with("the token budget of 1 was raised to ")),
        "{:?}",
        report.notes
    );
    let words = "at 1.5 s engine 0 is started again, for 30 s; at 1.5 s engine 1 takes 3 times as long for a step";
    assert_eq!(report.setup.settings["changes"], words);
    assert!(asked(|question| question.token_budget = Some(4_096)).unwrap().notes.is_empty());
}

#[test]
fn a_trace_of_which_nothing_is_left_is_no_answer() {
    let trace = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(trace.path(), "t_s,input_tokens,output_tokens\n0,no,3\n").unwrap();
    let mut question = Question::new(trace.path(), "h100-llama3-8b", 2, Policy::Random);
    question.input.skip_bad = true;
    let error = question.answer(&mut Nobody).unwrap_err().to_string();
    assert!(error.ends_with("nothing is left to replay; 1 rows were passed over"), "{error}");
}

/// Found in review: beyond 32,768 targets, caches of different engines had one number.
#[test]
fn fleets_of_more_targets_than_the_view_tells_apart_are_refused() {
    let trace = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(trace.path(), "t_s,input_tokens,output_tokens\n0,5,3\n").unwrap();
    let mut question = Question::new(trace.path(), "h100-llama3-8b", 4_096, Policy::Random);
    question.ranks = Some(8);
    question.changes = vec![(Nanos::ZERO, Change::Join { start_up: StartUp::default() })];
    let error = question.answer(&mut Nobody).unwrap_err();
    assert!(error.to_string().starts_with("32776 ranks in all; at most 32768"), "{error}");
}
