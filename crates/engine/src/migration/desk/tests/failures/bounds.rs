//! What the other side says is not believed, and nothing lives shorter or holds longer than it should.

use super::*;
use crate::migration::notes::Head;
use crate::sampling::logprobs::LogprobAsk;
use crate::urgency::Urgency;

#[test]
fn pages_that_the_request_does_not_have_are_refused() {
    let mut run = running();
    let offered = run.source.report(offer(0));
    let reserved = run.target.report(reserve_for(&offered, 40));
    let Verb::Start { to, first_page } = start_to(&reserved) else { panic!() };
    let ours = run.source.cores[0].scheduler.running[0].chain.digests().len();
    assert!(ours >= 3, "50 tokens of prompt and some of output");
    for wrong in [ours + 1, 1000, usize::MAX] {
        let refused = run.source.ask(Verb::Start { to: to.clone(), first_page: wrong }).err();
        assert_eq!(refused, Some(VerbError::Incompatible { what: "have_pages", theirs: wrong, ours }));
        assert_eq!(run.source.state(), "offered", "nothing has changed");
    }
    run.source.report(Verb::Start { to, first_page });
    run.carry();
    run.source.report(FREEZE);
    run.carry();
    assert_eq!(run.target.state(), "ready");
    run.source.report(Verb::Abort);
    run.carry();
    run.completes_at_source();
}

#[test]
fn a_request_that_no_engine_lets_through_is_not_taken_from_one() {
    fn ask(ask: LogprobAsk) -> impl Fn(&mut Head) {
        move |head| head.params.logprobs = Some(ask.clone())
    }
    type Change = Box<dyn Fn(&mut Head)>;
    let changes: Vec<(&str, Change)> = vec![
        ("max_new_tokens", Box::new(|head| head.params.max_new_tokens = usize::MAX)),
        ("max_new_tokens", Box::new(|head| head.params.max_new_tokens = 0)),
        ("max_new_tokens", Box::new(|head| head.params.max_new_tokens = 512 - head.prompt_tokens + 1)),
        ("min_new_tokens", Box::new(|head| head.params.min_new_tokens = 41)),
        ("temperature", Box::new(|head| head.params.temperature = f32::NAN)),
        ("top_p", Box::new(|head| head.params.top_p = 0.0)),
        ("stop", Box::new(|head| head.params.stop = vec!["x".repeat(1 << 20)])),
        ("stop", Box::new(|head| head.params.stop = vec![String::new()])),
        ("stop_token_ids", Box::new(|head| head.params.stop_token_ids = vec![1; 65])),
        ("logit_bias", Box::new(|head| head.params.logit_bias = vec![(u32::MAX, 1.0)])),
        ("logprobs.top", Box::new(ask(LogprobAsk { top: 1 << 40, ..LogprobAsk::default() }))),
        ("logprobs.ids", Box::new(ask(LogprobAsk { ids: vec![1; 1025], ..LogprobAsk::default() }))),
        ("logprobs.from", Box::new(ask(LogprobAsk { prompt_from: Some(50), ..LogprobAsk::default() }))),
        ("prompt_tokens", Box::new(|head| head.prompt_tokens = usize::MAX)),
        ("prompt_tokens", Box::new(|head| head.prompt_tokens = 0)),
        ("cached_tokens", Box::new(|head| head.cached_tokens = Some(51))),
    ];
    for (what, change) in changes {
        let mut run = Run::shipping();
        for post in run.source.desk.posts() {
            match post.send {
                Send::Note(Note::Head(mut head)) => {
                    change(&mut head);
                    assert!(run.target.desk.link(*head, &mut run.target.cores));
                }
                Send::Note(note) => run.target.desk.hear("m", false, Heard::Note(note), &mut run.target.cores),
                Send::Pages(pages) => run.target.desk.hear("m", false, Heard::Pages(pages), &mut run.target.cores),
                Send::Open(_) | Send::Close => {}
            }
        }
        assert_eq!(run.target.report(Verb::Look).why, Some("damaged"), "{what}");
        run.carry();
        run.completes_at_source();
    }
}

#[test]
fn a_request_that_cannot_end_within_the_context_is_not_reserved_for() {
    let mut run = running();
    let mut offered = run.source.report(offer(0));
    // The prompt's 50 tokens and 462 more are the 512 of the context; the last one is not computed.
    for (most, fits) in [(512, false), (511, true)] {
        offered.most_tokens = Some(most);
        let refused = run.target.ask(reserve_for(&offered, 40)).err();
        let wrong = VerbError::Incompatible { what: "tokens do not fit the context", theirs: most + 1, ours: 512 };
        assert_eq!(refused, (!fits).then_some(wrong), "{most}");
    }
}

#[test]
fn a_request_is_as_important_where_it_goes_as_where_it_came_from() {
    let mut run = running();
    let urgency =
        Urgency { ttft: Some(Duration::from_secs(1)), tpot: Some(Duration::from_millis(20)), priority: Some(-7) };
    run.source.cores[0].scheduler.running[0].urgency = urgency;
    let offered = run.source.report(offer(0));
    let reserved = run.target.report(reserve_for(&offered, 40));
    run.source.report(start_to(&reserved));
    run.source.report(Verb::Freeze { delta: true, commit: When::Sent });
    run.carry();
    // Its first token is out: no deadline for that one.
    assert_eq!(run.target.cores[0].scheduler.running[0].urgency, Urgency { ttft: None, ..urgency });
    run.source.report(Verb::Release);
    while !run.target.is_idle() {
        run.target.step();
    }
}

#[test]
fn nobody_reads_is_counted_from_when_the_request_runs() {
    let linger = Duration::from_millis(300);
    let mut run = running();
    let offered = run.source.report(offer(0));
    let Verb::Reserve(mut reserve) = reserve_for(&offered, 40) else { panic!() };
    reserve.linger = linger;
    let reserved = run.target.report(Verb::Reserve(reserve));
    run.source.report(start_to(&reserved));
    // The prompt is there; the rest takes longer than a reader may.
    run.carry();
    std::thread::sleep(linger + linger / 4);
    run.source.report(Verb::Freeze { delta: true, commit: When::Sent });
    let before = Instant::now();
    run.carry();
    run.target.step();
    let state = run.target.state();
    assert!(state == "taken_over" || before.elapsed() >= linger, "ended before a reader could come: {state}");
    // And nobody comes.
    std::thread::sleep(linger);
    run.target.step();
    assert_eq!(run.target.state(), "done");
    run.source.report(Verb::Release);
    run.source.check_empty();
    run.target.check_empty();
}

#[test]
fn requests_that_run_here_count_as_requests_and_not_as_migrations() {
    let count = MOST_LIVE + 2;
    let config = config(512, count, 512);
    let (mut source, mut target) = (Side::new(&config), Side::new(&config));
    let mut readers = Vec::new();
    for name in 0..count {
        let prompt: Vec<u32> = (0..20).map(|t| 300 + (name as u32 * 31 + t * 7) % 600).collect();
        readers.push(source.submit(name, SamplingParams { max_new_tokens: 40, ..params() }, &prompt));
    }
    // As many steps as all prompts need.
    for _ in 0..6 {
        source.step();
    }
    for name in 0..count {
        let id = format!("m{name}");
        let report = |reply: Result<Reply, VerbError>| match reply {
            Ok(Reply::Report(report)) => *report,
            other => panic!("{id}: {other:?}"),
        };
        let offered = report(source.ask_as(&id, offer(name)));
        let reserved = report(target.ask_as(&id, reserve_for(&offered, 16)));
        report(source.ask_as(&id, start_to(&reserved)));
        report(source.ask_as(&id, Verb::Freeze { delta: true, commit: When::Sent }));
        carry(&mut source, &mut target, |_| false);
        assert_eq!(report(target.ask_as(&id, Verb::Look)).state, "taken_over");
        report(source.ask_as(&id, Verb::Release));
    }
    assert_eq!(target.cores[0].scheduler.running.len(), count);
    while !target.is_idle() {
        target.step();
    }
    target.step();
    source.check_empty();
    target.check_empty();
}
