//! Whatever fails, the request goes on where it was and nothing is kept.

use super::*;
use crate::migration::notes::fence_of;
use crate::migration::protocol::source::When;

mod bounds;

fn params() -> SamplingParams {
    SamplingParams {
        max_new_tokens: 40,
        temperature: 0.8,
        seed: Some(3),
        ignore_eos: true,
        ..SamplingParams::default()
    }
}

fn prompt() -> Vec<u32> {
    (0..50).map(|t| 300 + t * 7 % 600).collect()
}

struct Run {
    source: Side,
    target: Side,
    reader: Ticket,
}

/// In the middle of its output.
fn running() -> Run {
    let config = config(32, 4, 32);
    let (mut source, target) = (Side::new(&config), Side::new(&config));
    let reader = Ticket::bare(source.submit(0, params(), &prompt()));
    for _ in 0..15 {
        source.step();
    }
    Run { source, target, reader }
}

impl Run {
    /// Offered, reserved and started; nothing has been carried yet.
    fn shipping() -> Run {
        let mut run = running();
        let offered = run.source.report(offer(0));
        let reserved = run.target.report(reserve_for(&offered, 40));
        run.source.report(start_to(&reserved));
        run
    }

    fn carry(&mut self) {
        carry(&mut self.source, &mut self.target, |_| false);
    }

    fn synced() -> Run {
        let mut run = Run::shipping();
        run.carry();
        run.source.report(FREEZE);
        run.carry();
        assert_eq!((run.source.state(), run.target.state()), ("synced", "ready"));
        run
    }

    fn committed() -> (Run, String) {
        let mut run = Run::synced();
        let fence = run.source.report(Verb::Commit).fence.unwrap();
        (run, fence)
    }

    /// Runs to the end at the source: the answer is that of a request that was never moved, and both sides are empty.
    fn completes_at_source(mut self) {
        for _ in 0..200 {
            self.source.step();
            self.target.step();
            carry(&mut self.source, &mut self.target, |_| false);
        }
        let mut read = Read::default();
        read.take(&mut self.reader);
        assert_eq!(read, unmoved(&config(32, 4, 32), &params(), &prompt()).0);
        assert_eq!((self.source.state(), self.target.state()), ("resumed", "aborted"));
        self.source.check_empty();
        self.target.check_empty();
    }
}

#[test]
fn any_post_can_be_the_last_that_arrives() {
    // How many there are in an undisturbed run.
    let mut all = 0;
    let mut cut_off = false;
    for lost in 0..100 {
        let mut run = Run::shipping();
        let mut posts = 0;
        let mut lose = |_: &Post| {
            posts += 1;
            posts > lost
        };
        carry(&mut run.source, &mut run.target, &mut lose);
        // The driver does not know yet.
        let frozen = run.source.ask(FREEZE);
        carry(&mut run.source, &mut run.target, &mut lose);
        if run.source.state() == "synced" {
            break;
        }
        if posts <= lost {
            assert!(frozen.is_ok());
        }
        all += 1;
        // What reached the target before is dropped there when it expires, or when the request is aborted. By a verb it is
        // not if everything has come: the source might have committed.
        if let Err(error) = run.target.ask(Verb::Abort) {
            let early = matches!(error, VerbError::Unknown | VerbError::Over { .. });
            cut_off |= error == VerbError::CutOff;
            assert!(early || error == VerbError::CutOff, "{error}");
            run.target.desk.cancel(Some("r"), &mut run.target.cores);
        }
        run.completes_at_source();
    }
    assert!(all >= 6, "head, tokens, pages, tokens, last word, confirmation: {all}");
    assert!(cut_off, "a confirmation that is lost leaves a target that has everything");
}

#[test]
fn both_sides_can_abort_in_every_state_before_the_commit() {
    for at_source in [true, false] {
        for state in 0..5 {
            let mut run = match state {
                0..=1 => Run::shipping(),
                2 => {
                    let mut run = Run::shipping();
                    run.carry();
                    run.source.report(Verb::Freeze { delta: false, commit: When::Asked });
                    run
                }
                3 => {
                    let mut run = Run::shipping();
                    run.carry();
                    run.source.report(FREEZE);
                    run
                }
                _ => Run::synced(),
            };
            if state == 1 {
                run.carry();
            }
            let aborted = if at_source { run.source.report(Verb::Abort) } else { run.target.report(Verb::Abort) };
            assert_eq!(aborted.why, Some("asked"));
            let again = if at_source { run.source.report(Verb::Abort) } else { run.target.report(Verb::Abort) };
            assert_eq!(again, aborted, "an abort is obeyed once");
            if state == 0 && !at_source {
                // The source is told by the connection that nobody answers.
                run.source.desk.posts();
                run.source.desk.hear("m", true, Heard::Lost, &mut run.source.cores);
            }
            if state == 0 && at_source {
                // Not even the first word has arrived: the target would wait until its reservation expires.
                run.source.desk.posts();
                run.target.report(Verb::Abort);
            }
            run.completes_at_source();
        }
    }
}

#[test]
fn expiry_ends_every_state() {
    let soon = Nanos::from_millis(1);
    let sleep = || std::thread::sleep(Duration::from_millis(3));
    // The source's: offered, shipping, frozen, synced.
    for state in 0..4 {
        let mut run = running();
        let Verb::Offer { rid, .. } = offer(0) else { panic!() };
        let offered = run.source.report(Verb::Offer { rid, ship: soon, freeze: soon, commit: soon });
        let reserved = run.target.report(reserve_for(&offered, 40));
        let steps: [&dyn Fn(&mut Run); 3] = [
            &|run| {
                run.source.report(start_to(&reserved));
            },
            &|run| {
                run.source.report(Verb::Freeze { delta: false, commit: When::Asked });
            },
            &|run| {
                run.source.report(Verb::Delta);
            },
        ];
        for step in &steps[..state] {
            step(&mut run);
            run.carry();
        }
        sleep();
        run.source.step();
        assert_eq!(run.source.report(Verb::Look).why, Some("expired"));
        if state == 0 {
            run.target.report(Verb::Abort);
        }
        run.completes_at_source();
    }
    // The target's: reserved, receiving, ready; the source is told where there is a connection.
    for state in 0..3 {
        let mut run = running();
        let offered = run.source.report(offer(0));
        let Verb::Reserve(mut reserve) = reserve_for(&offered, 40) else { panic!() };
        (reserve.reserve, reserve.ready) = (soon, soon);
        let reserved = run.target.report(Verb::Reserve(reserve));
        if state > 0 {
            run.source.report(start_to(&reserved));
            run.carry();
        }
        if state > 1 {
            run.source.report(FREEZE);
            run.carry();
            run.source.report(Verb::Commit);
        }
        sleep();
        run.target.step();
        assert_eq!(run.target.report(Verb::Look).why, Some("expired"));
        if state == 0 {
            run.source.report(Verb::Abort);
        }
        // After the commit too: the target's word is proof.
        run.completes_at_source();
    }
}

#[test]
fn after_the_commit_only_proof_brings_it_back() {
    let (mut run, fence) = Run::committed();
    assert_eq!(run.source.ask(Verb::Resume { fence: None }).err(), Some(VerbError::BadFence));
    assert_eq!(run.source.ask(Verb::Abort).err(), Some(VerbError::BadFence));
    run.source.desk.hear("m", true, Heard::Lost, &mut run.source.cores);
    assert_eq!(run.source.state(), "committed");
    run.target.report(Verb::Abort);
    // Its word cannot arrive: the driver brings it.
    run.source.desk.posts();
    run.target.desk.posts();
    run.source.report(Verb::Resume { fence: fence_of(&fence) });
    assert_eq!(run.target.ask(take_over(&fence)).err(), Some(VerbError::Over { state: "aborted", why: Some("asked") }));
    run.completes_at_source();
}

#[test]
fn a_commit_that_nobody_follows_ends_with_an_end() {
    let (mut run, fence) = Run::committed();
    let Verb::Offer { .. } = offer(0) else { panic!() };
    // As if its time had passed: the reader learns where to go on.
    run.source.report(Verb::Release);
    let mut read = Read::default();
    read.take(&mut run.reader);
    let at = read.ids.len();
    assert_eq!(read.finish, Some(Finish::Migrated { migration: "m".into(), output_tokens: at, fence: fence.clone() }));
    run.source.check_empty();
    // The source's process is gone now; what is complete at the target can be had.
    run.carry();
    let Reply::Reader(attached) = run.target.ask(take_over(&fence)).unwrap() else { panic!() };
    drop(attached);
    // Its answer was lost: asked for again, from an earlier token, it is answered again.
    let Verb::TakeOver { warrant, .. } = take_over(&fence) else { panic!() };
    let again = Verb::TakeOver { warrant, expected: None, from_token: Some(at - 3) };
    let Reply::Reader(mut attached) = run.target.ask(again).unwrap() else { panic!() };
    while !run.target.is_idle() {
        run.target.step();
    }
    let mut whole = Read { ids: attached.had.ids, text: attached.had.text, finish: None };
    assert_eq!(whole.ids.len(), at - 3);
    whole.take(&mut attached.ticket);
    assert_eq!(whole, unmoved(&config(32, 4, 32), &params(), &prompt()).0);
    run.target.step();
    run.target.check_empty();
}

#[test]
fn a_source_that_died_before_its_commit_can_be_replaced() {
    let mut run = Run::synced();
    let mut read = Read::default();
    read.take(&mut run.reader);
    run.target.desk.hear("m", false, Heard::Lost, &mut run.target.cores);
    let gone = |warrant| Verb::TakeOver { warrant, expected: None, from_token: None };
    let wrong = gone(target::Warrant::Fence(Fence(1)));
    assert_eq!(run.target.ask(wrong).err(), Some(VerbError::BadFence));
    let Reply::Reader(mut attached) = run.target.ask(gone(target::Warrant::SourceGone)).unwrap() else { panic!() };
    while !run.target.is_idle() {
        run.target.step();
    }
    read.take(&mut attached.ticket);
    assert_eq!(read, unmoved(&config(32, 4, 32), &params(), &prompt()).0);
}

#[test]
fn a_reader_that_leaves_and_an_abort_by_id_end_it_wherever_it_is() {
    // While it is frozen: both sides are empty at once.
    let mut run = Run::synced();
    drop(run.reader);
    run.source.step();
    carry(&mut run.source, &mut run.target, |_| false);
    assert_eq!((run.source.state(), run.target.state()), ("ended", "aborted"));
    run.source.check_empty();
    run.target.check_empty();
    // By its id, at the source.
    let mut run = Run::synced();
    run.source.cores[0].abort(Some("r"));
    run.source.desk.cancel(Some("r"), &mut run.source.cores);
    let mut read = Read::default();
    read.take(&mut run.reader);
    assert_eq!(read.finish, Some(Finish::Abort { message: "Aborted".into(), status: None }));
    carry(&mut run.source, &mut run.target, |_| false);
    run.source.check_empty();
    run.target.check_empty();
    // By its id, at the target: the source goes on.
    let mut run = Run::synced();
    run.target.desk.cancel(Some("r0"), &mut run.target.cores);
    run.carry();
    run.completes_at_source();
    // By its id, after the take-over.
    let (mut run, fence) = Run::committed();
    let Reply::Reader(attached) = run.target.ask(take_over(&fence)).unwrap() else { panic!() };
    run.source.report(Verb::Release);
    run.target.cores[0].abort(Some("r0"));
    run.target.step();
    assert_eq!(run.target.state(), "done");
    drop(attached);
    run.carry();
    run.source.check_empty();
    run.target.check_empty();
}

#[test]
fn a_commit_with_the_last_word_is_safe_when_the_last_word_is_lost() {
    let direct = Verb::Freeze { delta: true, commit: When::Sent };
    // The last word never arrives, and nobody can say so but the driver.
    let mut run = Run::shipping();
    run.carry();
    let fence = run.source.report(direct).fence.unwrap();
    run.source.desk.posts();
    run.source.desk.hear("m", true, Heard::Lost, &mut run.source.cores);
    run.target.desk.hear("m", false, Heard::Lost, &mut run.target.cores);
    assert_eq!((run.source.state(), run.target.state()), ("committed", "aborted"));
    assert_eq!(run.source.ask(Verb::Abort).err(), Some(VerbError::BadFence));
    run.source.report(Verb::Resume { fence: fence_of(&fence) });
    run.completes_at_source();
    // It arrives damaged: the target's refusal is proof.
    let mut run = Run::shipping();
    run.carry();
    run.source.report(Verb::Freeze { delta: true, commit: When::Sent });
    let posts = run.source.desk.posts();
    for post in posts {
        match post.send {
            Send::Note(Note::Last(mut last)) => {
                last.seal.crc32c ^= 1;
                run.target.desk.hear("m", false, Heard::Note(Note::Last(last)), &mut run.target.cores);
            }
            Send::Note(note) => run.target.desk.hear("m", false, Heard::Note(note), &mut run.target.cores),
            Send::Pages(pages) => run.target.desk.hear("m", false, Heard::Pages(pages), &mut run.target.cores),
            Send::Open(_) | Send::Close => {}
        }
    }
    assert_eq!(run.target.report(Verb::Look).why, Some("damaged"));
    run.carry();
    run.completes_at_source();
}

#[test]
fn a_reader_can_wait_where_the_request_will_be() {
    let mut run = Run::shipping();
    let (answer, mut answered) = oneshot::channel();
    run.target.desk.obey("m", Verb::Follow { from_token: None }, true, answer, &mut run.target.cores);
    let refused = run.target.ask(Verb::Follow { from_token: None }).err();
    assert_eq!(refused, Some(VerbError::WrongState { verb: "follow", role: "target", state: "reserved" }));
    run.carry();
    run.source.report(Verb::Freeze { delta: true, commit: When::Sent });
    assert!(answered.try_recv().is_err(), "the request is not there yet");
    run.carry();
    let Reply::Reader(mut attached) = answered.try_recv().unwrap().unwrap() else { panic!() };
    run.source.report(Verb::Release);
    while !run.target.is_idle() {
        run.target.step();
    }
    let mut read = Read::default();
    read.take(&mut run.reader);
    assert_eq!((&attached.had.ids, &attached.had.text), (&read.ids, &read.text));
    read.take(&mut attached.ticket);
    assert_eq!(read, unmoved(&config(32, 4, 32), &params(), &prompt()).0);
    // One that gives up waiting for its take-over has not taken over.
    let mut run = Run::synced();
    run.source.report(Verb::Abort);
    run.carry();
    let mut run = Run::shipping();
    let Verb::TakeOver { expected, from_token, .. } = take_over(&"0".repeat(32)) else { panic!() };
    let gone = Verb::TakeOver { warrant: target::Warrant::SourceGone, expected, from_token };
    let (answer, answered) = oneshot::channel();
    run.target.desk.obey("m", gone, true, answer, &mut run.target.cores);
    drop(answered);
    run.carry();
    run.source.report(FREEZE);
    run.carry();
    assert_eq!(run.target.state(), "ready");
    run.source.report(Verb::Abort);
    run.carry();
    run.completes_at_source();
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let mut run = running();
    assert_eq!(run.source.ask(Verb::Look).err(), Some(VerbError::Unknown));
    assert_eq!(run.source.ask(offer(9)).err(), Some(VerbError::NoSuchRequest));
    let offered = run.source.report(offer(0));
    assert_eq!(run.source.ask_as("other", offer(0)).err(), Some(VerbError::Moving("m".into())));
    let early = run.source.ask(FREEZE).err();
    assert_eq!(early, Some(VerbError::WrongState { verb: "freeze", role: "source", state: "offered" }));
    // The request runs there already.
    assert_eq!(run.source.ask_as("t", reserve_for(&offered, 1)).err(), Some(VerbError::RidInFlight));
    let Verb::Reserve(mut other) = reserve_for(&offered, 1) else { panic!() };
    other.page_tokens = 32;
    let refused = run.target.ask(Verb::Reserve(other)).err();
    assert_eq!(refused, Some(VerbError::Incompatible { what: "page_tokens", theirs: 32, ours: 16 }));
    let mut full = Side::new(&config(32, 1, 64));
    full.submit(4, params(), &prompt());
    full.step();
    let Err(VerbError::NoRoom(room)) = full.ask(reserve_for(&offered, 2000)).map(|_| ()) else { panic!() };
    // Three of the 32 are those of the same prompt; the one that runs may need one more than its four.
    assert_eq!((room.pages, room.available_pages, room.has_place), (30, 28, false));
    assert_eq!(full.rids.lock().len(), 1, "the id is free again");
    let reserved = run.target.report(reserve_for(&offered, 16));
    assert_eq!(run.target.report(reserve_for(&offered, 16)), reserved, "a reservation is made once");
    run.source.report(start_to(&reserved));
    let mut elsewhere = reserved.endpoint.unwrap();
    elsewhere.port += 1;
    let refused = run.source.ask(Verb::Start { to: elsewhere, first_page: 0 }).err();
    assert_eq!(refused, Some(VerbError::Conflict("another target")));
    let refused = run.target.ask(take_over(&"0".repeat(32))).err();
    assert_eq!(refused, Some(VerbError::WrongState { verb: "take_over", role: "target", state: "reserved" }));
    run.source.report(Verb::Abort);
    run.target.report(Verb::Abort);
    run.source.desk.posts();
    run.completes_at_source();
}

#[test]
fn a_page_that_was_changed_on_the_way_is_not_taken() {
    let mut run = Run::shipping();
    let posts = run.source.desk.posts();
    let pool = Pool::new(run.source.cores[0].page_bytes(), 1);
    for post in posts {
        match post.send {
            Send::Note(Note::Head(head)) => assert!(run.target.desk.link(*head, &mut run.target.cores)),
            Send::Note(note) => run.target.desk.hear("m", false, Heard::Note(note), &mut run.target.cores),
            Send::Pages(pages) => {
                let mut changed = pool.try_take().unwrap();
                for page in pages.iter() {
                    let mut digest = page.digest;
                    digest[31] ^= u8::from(page.index == 1);
                    changed.push(page.index, &digest, |bytes| bytes.copy_from_slice(page.bytes));
                }
                run.target.desk.hear("m", false, Heard::Pages(changed), &mut run.target.cores);
            }
            Send::Open(_) | Send::Close => {}
        }
    }
    assert_eq!(run.target.report(Verb::Look).why, Some("damaged"));
    run.carry();
    run.completes_at_source();
}
