//! Nobody waits for a step loop that is gone, and an engine that takes nothing keeps its promises.

use super::*;
use crate::Faults;
use crate::migration::desk::Reply;
use crate::migration::protocol::source::When;
use crate::migration::report::Endpoint;
use crate::request::{Finish, Task};
use crate::sampling::SamplingParams;
use plimsoll_core::Nanos;
use std::future::Future;
use tokio::time::timeout;

/// Far longer than anything here takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

fn config() -> EngineConfig {
    let small = crate::core::tests::config(64, 4, 64);
    // Nothing of hundreds of tokens ends by itself within a test.
    EngineConfig { step_delay: Duration::from_millis(20), max_waiting: 4, ..small }
}

fn request(rid: &str, max_new_tokens: usize) -> Request {
    let params = SamplingParams { max_new_tokens, ignore_eos: true, ..SamplingParams::default() };
    Request::new(rid.to_owned(), (300..330).collect(), Task::Generate(params))
}

async fn soon<T>(what: &str, done: impl Future<Output = T>) -> T {
    timeout(PATIENCE, done).await.unwrap_or_else(|_| panic!("{what}: waits for ever"))
}

async fn end(mut ticket: Ticket) -> Option<Finish> {
    let mut finish = None;
    while let Some(update) = soon("the end", ticket.next()).await {
        finish = update.finish;
    }
    finish
}

fn stopped() -> Option<Finish> {
    Some(Finish::Abort { message: "The engine is shutting down.".to_owned(), status: Some(503) })
}

/// Takes nothing out of its inbox until it is thawed.
fn frozen(faults: &FaultSwitch) -> Engine {
    faults.set(Faults { no_respond: true, ..Faults::default() });
    Engine::start(&config(), faults.clone()).unwrap()
}

async fn ends_everybody(engine: &Engine, finish: impl FnOnce(&Engine), faults: &FaultSwitch) {
    let handle = engine.handle();
    let asked = handle.clone();
    let flushed = tokio::spawn(async move { asked.flush().await });
    let tickets: Vec<Ticket> = (0..4).map(|at| handle.submit(request(&format!("r{at}"), 400)).unwrap()).collect();
    finish(engine);
    faults.set(Faults::default());
    for ticket in tickets {
        assert_eq!(end(ticket).await, stopped());
    }
    assert!(!soon("a flush that was asked for before", flushed).await.unwrap());
    // And afterwards.
    soon("the thread", async {
        while engine.is_alive() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(handle.submit(request("late", 4)).err(), Some(SubmitError::Stopped));
    assert!(!soon("a flush", handle.flush()).await);
    assert_eq!(soon("names", handle.cached()).await.map(|_| ()), None);
    assert_eq!(handle.abort(None), Ok(()));
    assert_eq!(handle.in_flight(), 0);
}

#[tokio::test]
async fn a_step_loop_that_panics_leaves_nobody_waiting() {
    let faults = FaultSwitch::default();
    let engine = frozen(&faults);
    let handle = engine.handle();
    // Before, so that it finds the others in the inbox and in the batch of commands at hand.
    ends_everybody(&engine, |_| handle.send(Command::Break), &faults).await;
    // While it runs.
    let engine = Engine::start(&config(), FaultSwitch::default()).unwrap();
    let mut running = engine.handle().submit(request("runs", 400)).unwrap();
    assert!(soon("a token", running.next()).await.unwrap().finish.is_none());
    engine.handle().send(Command::Break);
    assert_eq!(end(running).await, stopped());
}

#[tokio::test]
async fn a_stop_ends_what_lies_in_the_inbox() {
    let faults = FaultSwitch::default();
    let engine = frozen(&faults);
    ends_everybody(&engine, Engine::stop, &faults).await;
}

#[tokio::test]
async fn polls_and_parcels_take_no_place_from_requests_and_lose_no_abort() {
    let faults = FaultSwitch::default();
    let engine = frozen(&faults);
    let handle = engine.handle();
    let limit = handle.0.inbox_limit;
    for _ in 0..3 * limit {
        handle.look();
        handle.hear_migration("m".to_owned(), true, Heard::Lost, None);
    }
    let tickets: Vec<Ticket> = (0..limit).map(|at| handle.submit(request(&format!("r{at}"), 400)).unwrap()).collect();
    assert_eq!(handle.submit(request("more", 4)).err(), Some(SubmitError::QueueFull));
    for _ in 0..3 * limit {
        assert_eq!(handle.abort(Some("r")), Ok(()));
    }
    for at in 0..limit - 1 {
        assert_eq!(handle.abort(Some(&format!("x{at}"))), Ok(()));
    }
    assert_eq!(handle.abort(Some("one more")), Err(TooManyAborts));
    faults.set(Faults::default());
    for ticket in tickets {
        let ended = end(ticket).await.unwrap();
        let refused = matches!(ended, Finish::Refused(_));
        assert!(refused || matches!(ended, Finish::Abort { status: None, .. }), "{ended:?}");
    }
    // An abort is of what was there.
    handle.abort(None).unwrap();
    assert_eq!(end(handle.submit(request("next", 4)).unwrap()).await, Some(Finish::Length));
}

#[tokio::test]
async fn a_reader_that_leaves_a_frozen_request_is_noticed_by_an_idle_engine() {
    let engine = Engine::start(&config(), FaultSwitch::default()).unwrap();
    let handle = engine.handle();
    let mut reader = handle.submit(request("r", 400)).unwrap();
    soon("a token", reader.next()).await.unwrap();
    // For longer than the test has patience.
    let long = Nanos::from_secs(600);
    let to = Endpoint { host: "nowhere".to_owned(), port: 1, key: String::new() };
    let verbs = [
        Verb::Offer { rid: "r".to_owned(), ship: long, freeze: long, commit: long },
        Verb::Start { to, first_page: 0 },
        Verb::Freeze { delta: false, commit: When::Asked },
    ];
    for verb in verbs {
        let reply = soon("a verb", handle.migrate("m", verb, Duration::ZERO)).await.unwrap();
        assert!(matches!(reply, Reply::Report(_)));
    }
    drop(reader);
    soon("the reader's leaving", async {
        while handle.in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}
