//! Moved at every step of its life, a request says what it would have said.

use super::*;
use proptest::prelude::*;

/// How a migration is driven.
#[derive(Clone, Copy, Debug)]
struct Course {
    /// Steps before the offer, and between start and freeze.
    before: usize,
    shipping: usize,
    commit: When,
    /// The target has computed the same prompt before: its pages need not come.
    warm: bool,
    /// Other requests beside it, on either side.
    company: bool,
}

const WHEN: [When; 3] = [When::Asked, When::Confirmed, When::Sent];

fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens).map(|t| 272 + (t * 31 % 700) as u32).collect()
}

fn plain(max_new_tokens: usize) -> SamplingParams {
    SamplingParams { max_new_tokens, temperature: 0.0, ..SamplingParams::default() }
}

fn both_run(source: &mut Side, target: &mut Side, steps: usize) {
    for _ in 0..steps {
        source.step();
        target.step();
    }
}

/// Moves a request and returns what its reader saw. `None` when it was over before it could be moved.
fn moved(config: &EngineConfig, params: &SamplingParams, prompt: &[u32], course: Course) -> Option<Read> {
    let (mut source, mut target) = (Side::new(config), Side::new(config));
    let mut others = Vec::new();
    if course.warm {
        others.push(target.submit(7, plain(1), prompt));
        while !target.is_idle() {
            target.step();
        }
    }
    let mut reader = Ticket::bare(source.submit(0, params.clone(), prompt));
    if course.company {
        others.push(source.submit(1, plain(60), &prompt[..prompt.len() / 2]));
        others.push(target.submit(2, plain(60), &prompt[prompt.len() / 3..]));
    }
    both_run(&mut source, &mut target, course.before);
    let offered = match source.ask(offer(0)) {
        Ok(Reply::Report(report)) => *report,
        Err(VerbError::NoSuchRequest) => return None,
        other => panic!("{other:?}"),
    };
    let reserved = target.report(reserve_for(&offered, 64));
    if course.warm {
        assert_eq!(reserved.have_pages, offered.pages.min(prompt.len() / config.page_tokens));
    }
    source.report(start_to(&reserved));
    for _ in 0..course.shipping {
        carry(&mut source, &mut target, |_| false);
        both_run(&mut source, &mut target, 1);
    }
    let was_over = source.state() == "ended";
    let read = if was_over { None } else { Some(hand_over(&mut source, &mut target, &mut reader, course.commit)) };
    carry(&mut source, &mut target, |_| false);
    for _ in 0..10_000 {
        if source.is_idle() && target.is_idle() {
            break;
        }
        both_run(&mut source, &mut target, 1);
    }
    let states = if was_over { ("ended", "aborted") } else { ("released", "done") };
    assert_eq!((source.state(), target.state()), states);
    source.check_empty();
    target.check_empty();
    read.map(|(mut read, mut reader)| {
        read.take(&mut reader);
        read
    })
}

/// From the freeze to the release: what was read until then, and the reader at the target.
fn hand_over(source: &mut Side, target: &mut Side, reader: &mut Ticket, commit: When) -> (Read, Ticket) {
    let mut read = Read::default();
    let frozen = source.report(Verb::Freeze { delta: true, commit });
    assert_eq!(frozen.state, if commit == When::Sent { "committed" } else { "frozen" });
    // Frozen: a further step brings no token.
    source.step();
    carry(source, target, |_| false);
    read.take(reader);
    let at = read.ids.len();
    if commit == When::Asked {
        assert_eq!((source.state(), target.state()), ("synced", "ready"));
        let seal = source.report(Verb::Look).seal.unwrap();
        target.report(Verb::Verify(Box::new(seal.clone())));
        let wrong = Seal { crc32c: !seal.crc32c, ..seal };
        let refused = target.ask(Verb::Verify(Box::new(wrong)));
        assert_eq!(refused.err(), Some(VerbError::Mismatch { field: "crc32c" }));
        source.report(Verb::Commit);
    }
    // Whoever commits with the last word has let it run already.
    assert_eq!(target.state(), if commit == When::Sent { "taken_over" } else { "ready" });
    let committed = source.report(Verb::Look);
    assert_eq!((committed.state, committed.output_tokens), ("committed", at));
    let fence = committed.fence.unwrap();
    let Reply::Reader(attached) = target.ask(take_over(&fence)).unwrap() else { panic!("no reader") };
    assert_eq!((&attached.had.ids, &attached.had.text), (&read.ids, &read.text));
    source.report(Verb::Release);
    read.take(reader);
    let migrated = Finish::Migrated { migration: "m".into(), output_tokens: at, fence };
    assert_eq!((read.ids.len(), read.finish.take()), (at, Some(migrated)), "its last token was said before the freeze");
    (read, attached.ticket)
}

pub(super) fn cases() -> Vec<(&'static str, SamplingParams)> {
    let greedy = SamplingParams { max_new_tokens: 40, temperature: 0.0, ignore_eos: true, ..SamplingParams::default() };
    let sampled = SamplingParams { temperature: 0.9, top_p: 0.95, top_k: Some(40), seed: Some(11), ..greedy.clone() };
    let penalised = SamplingParams {
        presence_penalty: 0.7,
        frequency_penalty: 0.4,
        repetition_penalty: 1.3,
        seed: Some(5),
        temperature: 0.7,
        min_new_tokens: 6,
        ..greedy.clone()
    };
    vec![("greedy", greedy), ("sampled", sampled), ("penalised", penalised)]
}

#[test]
fn at_every_step_of_its_life() {
    // Four chunks of prefill, then a token a step; pages end in the prompt and in the output.
    let config = config(24, 4, 13);
    let prompt = prompt(45);
    for (name, params) in cases() {
        let (whole, steps) = unmoved(&config, &params, &prompt);
        assert_eq!(whole.ids.len(), 40);
        let mut moves = 0;
        for before in 0..steps {
            let course = Course { before, shipping: 0, commit: WHEN[before % 3], warm: false, company: false };
            if let Some(read) = moved(&config, &params, &prompt, course) {
                assert_eq!(read, whole, "{name}, moved after {before} steps");
                moves += 1;
            }
        }
        assert_eq!(moves, steps, "it can be moved until its last token");
    }
}

#[test]
fn a_stop_string_that_spans_the_border_is_found_and_held_back() {
    let config = config(24, 4, 64);
    let prompt = prompt(20);
    let greedy = cases().remove(0).1;
    let (whole, _) = unmoved(&config, &greedy, &prompt);
    // Some words and a bit, from the middle of the answer: held back over several tokens.
    let words: Vec<&str> = whole.text.split_inclusive(' ').collect();
    let stop = words[14..17].concat();
    let cut = whole.text.find(&stop).unwrap();
    for no_stop_trim in [false, true] {
        let params = SamplingParams { stop: vec![stop.clone()], no_stop_trim, ..greedy.clone() };
        let (stopped, steps) = unmoved(&config, &params, &prompt);
        assert_eq!(stopped.text, whole.text[..cut + if no_stop_trim { stop.len() } else { 0 }]);
        assert_eq!(stopped.finish, Some(Finish::StopText(stop.clone())));
        for before in 0..steps {
            let course = Course { before, shipping: 0, commit: WHEN[before % 3], warm: false, company: false };
            assert_eq!(moved(&config, &params, &prompt, course), Some(stopped.clone()), "moved after {before} steps");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Any lengths, any moment, with blocks shipped while it runs, prefix hits at the target, and company on both sides.
    #[test]
    fn at_any_moment_in_any_company(
        length in 1usize..120,
        budget in 6usize..80,
        case in 0usize..3,
        max_new_tokens in 1usize..60,
        before in 0usize..60,
        shipping in 0usize..40,
        commit in 0usize..3,
        flags in any::<[bool; 2]>(),
    ) {
        let config = config(40, 4, budget);
        let mut params = SamplingParams { max_new_tokens, ..cases().remove(case).1 };
        // More at least than at most is refused, here and there.
        params.min_new_tokens = params.min_new_tokens.min(max_new_tokens);
        let prompt = prompt(length);
        let course = Course { before, shipping, commit: WHEN[commit], warm: flags[0], company: flags[1] && length > 3 };
        if let Some(read) = moved(&config, &params, &prompt, course) {
            prop_assert_eq!(read, unmoved(&config, &params, &prompt).0);
        }
    }
}

#[test]
fn what_is_left_at_the_freeze_does_not_grow_with_the_context() {
    let mut config = EngineConfig { context_tokens: 4096, ..config(300, 4, 256) };
    config.model.context_tokens = 4096;
    let params = SamplingParams { max_new_tokens: 200, ..cases().remove(0).1 };
    let mut left = Vec::new();
    for length in [256, 1024, 3800] {
        let (mut source, mut target) = (Side::new(&config), Side::new(&config));
        source.submit(0, params.clone(), &prompt(length));
        while source.cores[0].scheduler.running.first().is_none_or(|sequence| sequence.generated() < 2) {
            source.step();
        }
        let offered = source.report(offer(0));
        let reserved = target.report(reserve_for(&offered, 200));
        source.report(start_to(&reserved));
        // One buffer a step; the page that grows meanwhile goes with the next.
        for _ in 0..5 {
            carry(&mut source, &mut target, |_| false);
            source.step();
        }
        carry(&mut source, &mut target, |_| false);
        let shipping = source.report(Verb::Look);
        assert_eq!(shipping.moved_pages, shipping.pages, "everything that is full was shipped while it ran");
        source.report(FREEZE);
        carry(&mut source, &mut target, |_| false);
        let all = source.report(Verb::Look);
        assert_eq!(all.state, "synced");
        left.push(all.moved_pages - shipping.moved_pages);
    }
    assert!(left.iter().all(|pages| *pages <= 1), "pages left at the freeze: {left:?}");
}
