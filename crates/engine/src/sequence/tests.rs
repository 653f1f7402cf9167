use super::*;
use crate::sampling::logprobs::LogprobAsk;

fn stops(list: &[&str]) -> Vec<String> {
    list.iter().map(|stop| (*stop).to_owned()).collect()
}

#[test]
fn stop_strings_are_found_across_tokens() {
    assert_eq!(find_stop(" ship load run", 10, &stops(&["p load r"])), Some((4, "p load r")));
    assert_eq!(find_stop(" ship load", 5, &stops(&["zzz", " load", "load"])), Some((5, " load")));
    assert_eq!(find_stop(" ship", 0, &stops(&["shipp"])), None);
    assert_eq!(find_stop("é漢", 2, &stops(&["漢"])), Some((2, "漢")));
}

#[test]
fn what_may_become_a_stop_string_is_held_back() {
    assert_eq!(held_back("abc E", &stops(&["END"])), 1);
    assert_eq!(held_back("abc EN", &stops(&["END", "N!"])), 2);
    assert_eq!(held_back("abc", &stops(&["END"])), 0);
    assert_eq!(held_back("E", &stops(&["END"])), 1);
    assert_eq!(held_back("x漢", &stops(&["漢字"])), 3);
    assert_eq!(held_back("", &stops(&["END"])), 0);
}

#[test]
fn a_request_that_comes_with_output_needs_no_logits_of_its_prompt() {
    let ask = LogprobAsk { prompt_from: Some(2), ..LogprobAsk::default() };
    let params = SamplingParams { logprobs: Some(ask), ..SamplingParams::default() };
    let rids = RidSet::default();
    let guard = RidGuard::take("r", &rids).unwrap();
    let request = Request::new("r".to_owned(), (300..340).collect(), Task::Generate(params));
    let mut sequence = Sequence::new(request, guard, Arc::default(), 16, Instant::now());
    assert_eq!((sequence.logits_from(20), sequence.matchable_pages()), (Some(2), 0));
    // Moved here after its first token, with its KV.
    assert_eq!(sequence.replay(400, &TokenRules::default()), None);
    sequence.computed = 40;
    assert_eq!((sequence.logits_from(41), sequence.matchable_pages()), (Some(40), 2));
    sequence.take_prompt_logprobs(&mut std::iter::repeat(&[0.0; 768][..]), 41, &TokenRules::default());
    let Job::Generate(generation) = &sequence.job else { panic!("a generation") };
    assert!(generation.prompt_logprobs.is_empty());
}
