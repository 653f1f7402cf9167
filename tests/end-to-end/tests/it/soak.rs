//! Thousands of mixed requests, engines that fail in every way and clients that leave: each request ends in one of the
//! ways that are promised, and at the end every counter is at zero.

use crate::{CHAT, COMPLETIONS, EMBEDDINGS, GENERATE, body};
use plimsoll_end_to_end::{Connection, Plan, patient};
use plimsoll_fakes::{Control, Dialect, FakeEngine, Fault, Options};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const CLIENTS: u64 = 24;
const REQUESTS_EACH: u64 = 125;

/// A small generator (splitmix64), so that a run can be repeated from its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

fn faults(dice: &mut Dice) -> Vec<Fault> {
    let bad = [
        Fault::Status { status: 500, retry_after_s: None },
        Fault::Status { status: 503, retry_after_s: None },
        Fault::Status { status: 429, retry_after_s: Some(1) },
        Fault::Status { status: 400, retry_after_s: None },
        Fault::CloseBeforeHeaders,
        Fault::CutAfter { events: 2 },
        Fault::EndAfter { events: 0 },
        Fault::EndAfter { events: 3 },
        Fault::StallAfter { events: 1 },
        Fault::ErrorEventAfter { events: 2 },
        Fault::AbortAfter { events: 2, status_code: None, as_error: false },
        Fault::AbortAfter { events: 0, status_code: Some(503), as_error: true },
        Fault::BadJsonAfter { events: 1 },
        Fault::Garbage,
        Fault::Html,
        Fault::BadJson,
        Fault::LengthShort,
        Fault::LengthLong,
        Fault::HangAfterHeaders,
    ];
    (0..97)
        .map(|_| if dice.roll(10) < 7 { Fault::None } else { bad[dice.roll(bad.len() as u64) as usize].clone() })
        .collect()
}

/// One request; answers the word under which its end is counted.
async fn one(addr: SocketAddr, dice: &mut Dice) -> String {
    let route = [CHAT, CHAT, COMPLETIONS, GENERATE, EMBEDDINGS][dice.roll(5) as usize];
    let stream = route != EMBEDDINGS && dice.roll(3) > 0;
    let ask = body(route, stream, 1 + dice.roll(12)).to_string();
    let mut connection = Connection::open(addr).await;
    connection.post(route, &[], &ask).await;
    match dice.roll(10) {
        0 => {
            tokio::time::sleep(Duration::from_millis(dice.roll(30))).await;
            return "left before the answer".into();
        }
        1 if stream => {
            if connection.head().await.status == 200 {
                connection.data().await;
                return "left inside the stream".into();
            }
            return "left at an error".into();
        }
        _ => {}
    }
    let answer = connection.answer().await;
    assert!(answer.complete, "broken framing: {} {}", answer.status(), answer.text());
    if answer.status() != 200 {
        let engines_own = answer.status() == 400 && answer.text().contains("asked to fail");
        assert!(engines_own || !answer.code().is_empty(), "{} without a code: {}", answer.status(), answer.text());
        return format!("{} {}", answer.status(), answer.code());
    }
    if !stream {
        assert!(answer.json().is_object(), "half an answer as 200: {}", answer.text());
        return "completed".into();
    }
    let events = answer.events();
    assert!(events.last().is_some_and(plimsoll_end_to_end::sse::Event::is_done), "no [DONE]: {}", answer.text());
    let codes: Vec<String> = events.iter().filter_map(|event| event.error_code()).collect();
    assert!(codes.len() <= 1, "more than one error: {codes:?}");
    codes.first().map_or("completed".into(), |code| format!("event {code}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_ends_and_every_counter_is_zero() {
    let seed = std::env::var("PLIMSOLL_SOAK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("PLIMSOLL_SOAK_SEED={seed}");
    let mut dice = Dice(seed);
    let mut engines = Vec::new();
    for dialect in [Dialect::Sglang, Dialect::Sglang, Dialect::Vllm, Dialect::Openai] {
        let engine = FakeEngine::start(Options { ttft_ms: 5, itl_ms: 1, ..Options::new(dialect) }).await.unwrap();
        engine.control(Control { faults: Some(faults(&mut dice)), idle_close_ms: Some(300), ..Control::default() });
        engines.push(engine);
    }
    let gateway = Plan::with(engines.iter().map(FakeEngine::url))
        .set("streams.idle_timeout_ms.high", 400)
        .set("streams.first_token_timeout_ms", 400)
        .set("health.probe_interval_ms", 200)
        .start()
        .await;
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let (addr, mut dice) = (gateway.addr, Dice(seed ^ (client << 32)));
        clients.spawn(async move {
            let mut ends = BTreeMap::<String, u64>::new();
            for _ in 0..REQUESTS_EACH {
                *ends.entry(one(addr, &mut dice).await).or_default() += 1;
            }
            ends
        });
    }
    let mut ends = BTreeMap::<String, u64>::new();
    for part in tokio::time::timeout(Duration::from_secs(180), clients.join_all()).await.unwrap() {
        for (end, count) in part {
            *ends.entry(end).or_default() += count;
        }
    }
    println!("{ends:#?}");
    assert_eq!(ends.values().sum::<u64>(), CLIENTS * REQUESTS_EACH);
    assert!(ends["completed"] > CLIENTS * REQUESTS_EACH / 2, "{ends:?}");
    gateway.settled().await;
    for engine in &engines {
        patient("idle engines", async {
            while engine.snapshot().in_flight > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
    // One that left at once may have gone before its body was read; everything else is counted by exactly one outcome.
    let counted = gateway.metric("plimsoll_requests_total", &[]).await;
    let all = (CLIENTS * REQUESTS_EACH) as f64;
    let left = ends.get("left before the answer").copied().unwrap_or(0) as f64;
    assert!(counted <= all && counted >= all - left, "{counted} of {all} counted, {left} left at once");
    gateway.finish().await;
}
