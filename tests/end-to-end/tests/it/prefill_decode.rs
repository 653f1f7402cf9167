//! Prefill and decode in two processes: the answer of one engine, and an end for both legs whatever happens to either.

use plimsoll_end_to_end::engine::{EngineProcess, PrefillDecode, SOON};
use plimsoll_end_to_end::{Answer, Connection, PATIENCE};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::task::{JoinHandle, JoinSet};

/// Time-outs that a loaded machine keeps, chunks that make a long prompt take many steps.
const ARGS: [&str; 6] = ["--token-budget", "64", "--transfer-timeout-ms", "2000", "--handshake-timeout-ms", "5000"];
const SLOW: [&str; 2] = ["--step-delay-ms", "20"];

/// Words of the tiny model's vocabulary, one token each.
const WORDS: [&str; 7] = [" ship", " load", " mast", " the", " and", " water", " time"];

fn request(words: usize, tokens: usize) -> Value {
    let text: String = (0..words).map(|index| WORDS[(index * index + index / 7) % WORDS.len()]).collect();
    json!({"text": text, "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": true}})
}

/// A long prompt that no cache has.
fn fresh(words: usize) -> Value {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut body = request(words, 20);
    body["cache_salt"] = json!(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
    body
}

/// A leg whose answer is looked at later, if there is one at all.
fn leg(engine: &EngineProcess, body: &Value) -> JoinHandle<Option<Answer>> {
    let (addr, body) = (engine.addr, body.to_string());
    tokio::spawn(async move {
        let mut connection = Connection::open(addr).await;
        connection.post("/generate", &[], &body).await;
        connection.try_answer().await
    })
}

async fn fails(leg: JoinHandle<Option<Answer>>, part: &str) {
    let answer = tokio::time::timeout(PATIENCE, leg).await.unwrap().unwrap().unwrap();
    assert_eq!(answer.status(), 500, "{}", answer.text());
    assert!(answer.text().contains(part), "{part:?} is not in {}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_answer_as_one() {
    let pair = PrefillDecode::start(&ARGS, &[]).await;
    let plain = EngineProcess::start(&[]);
    for (words, tokens) in [(1, 1), (17, 40), (300, 25), (2000, 10)] {
        let (prefill, decode) = pair.both("/generate", &request(words, tokens)).await;
        let whole = plain.ask("/generate", &request(words, tokens)).await.json();
        assert_eq!(decode.json()["output_ids"], whole["output_ids"], "{}", decode.text());
        assert_eq!(decode.json()["text"], whole["text"]);
        assert_eq!(prefill.json()["output_ids"], json!([whole["output_ids"][0]]), "{}", prefill.text());
    }
    // Many at once, on every route.
    let ids = |route: &str, answer: &Value| match route {
        "/generate" => answer["output_ids"].clone(),
        _ => answer["choices"][0]["token_ids"].clone(),
    };
    let (pair, plain) = (Arc::new(pair), Arc::new(plain));
    let mut all = JoinSet::new();
    for index in 0..12 {
        let (route, body) = match index % 3 {
            0 => ("/generate", request(50 + 30 * index, 12)),
            1 => {
                let prompt = request(40 + index, 0)["text"].clone();
                (
                    "/v1/completions",
                    json!({"prompt": prompt, "max_tokens": 9, "temperature": 0, "return_token_ids": true}),
                )
            }
            _ => {
                let messages = json!([{"role": "user", "content": request(60 + index, 0)["text"]}]);
                (
                    "/v1/chat/completions",
                    json!({"messages": messages, "max_tokens": 9, "temperature": 0, "return_token_ids": true}),
                )
            }
        };
        let (pair, plain) = (Arc::clone(&pair), Arc::clone(&plain));
        all.spawn(async move {
            let (prefill, decode) = pair.both(route, &body).await;
            assert_eq!(prefill.status(), 200, "{}", prefill.text());
            let whole = plain.ask(route, &body).await.json();
            assert_eq!(ids(route, &decode.json()), ids(route, &whole), "{route}: {}", decode.text());
            assert!(ids(route, &whole).is_array(), "{whole}");
        });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    pair.prefill.empty().await;
    pair.decode.empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_prefill_engine_ends_the_decode_leg_and_another_takes_its_place() {
    let mut pair = PrefillDecode::start(&ARGS, &SLOW).await;
    let body = pair.body(&fresh(3000));
    let (prefill, decode) = (leg(&pair.prefill, &body), leg(&pair.decode, &body));
    pair.in_transfer().await;
    let killed = Instant::now();
    pair.prefill.process.kill();
    fails(decode, "Decode transfer failed").await;
    assert!(killed.elapsed() < SOON);
    assert!(prefill.await.unwrap().is_none(), "it died with its request");
    pair.decode.empty().await;
    // Nobody is there: the next one fails soon as well.
    fails(leg(&pair.decode, &pair.body(&request(20, 4))), "Decode handshake failed").await;
    // Another prefill engine at the same port.
    let port = pair.bootstrap_port.to_string();
    let args = [&["--role", "prefill", "--disaggregation-bootstrap-port", &port][..], &ARGS].concat();
    pair.prefill = EngineProcess::start(&args);
    let (_, decode) = pair.both("/generate", &request(20, 4)).await;
    assert_eq!(decode.status(), 200, "{}", decode.text());
    pair.decode.empty().await;
    pair.prefill.empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_decode_engine_ends_the_prefill_leg() {
    let mut pair = PrefillDecode::start(&ARGS, &SLOW).await;
    let body = pair.body(&fresh(3000));
    let (prefill, decode) = (leg(&pair.prefill, &body), leg(&pair.decode, &body));
    pair.in_transfer().await;
    let killed = Instant::now();
    pair.decode.process.kill();
    fails(prefill, "Prefill transfer failed").await;
    assert!(killed.elapsed() < SOON);
    assert!(decode.await.unwrap().is_none(), "it died with its request");
    pair.prefill.empty().await;
    // The prefill engine goes on with another.
    pair.decode = EngineProcess::start(&[&["--role", "decode"][..], &ARGS].concat());
    let (_, decode) = pair.both("/generate", &request(20, 4)).await;
    assert_eq!(decode.status(), 200, "{}", decode.text());
    pair.prefill.empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_process_is_given_up_and_can_come_back() {
    let pair = PrefillDecode::start(&ARGS, &SLOW).await;
    for (ill, well, part) in [
        (&pair.prefill, &pair.decode, "Decode transfer failed"),
        (&pair.decode, &pair.prefill, "Prefill transfer failed"),
    ] {
        let body = pair.body(&fresh(3000));
        let (ill_leg, well_leg) = (leg(ill, &body), leg(well, &body));
        pair.in_transfer().await;
        let frozen = Instant::now();
        ill.process.freeze();
        fails(well_leg, part).await;
        assert!(frozen.elapsed() < SOON, "2 s of silence, and slack for a busy machine");
        well.empty().await;
        ill.process.thaw();
        fails(ill_leg, "transfer failed").await;
        ill.empty().await;
        let (_, decode) = pair.both("/generate", &request(20, 4)).await;
        assert_eq!(decode.status(), 200, "{}", decode.text());
    }
    pair.prefill.empty().await;
    pair.decode.empty().await;
}
