//! Requests that end early: abort, disconnect, full queue, stalled reader, shutdown. Nothing stays behind.

use crate::client::{Server, config, parse_events};
use plimsoll_engine::{EngineConfig, Order, SchedulePolicy};
use serde_json::{Value, json};
use std::time::Duration;

/// Slow enough that a request of thousands of tokens cannot finish by itself within a test.
fn slow() -> EngineConfig {
    EngineConfig { step_delay: Duration::from_millis(5), ..config() }
}

fn long(rid: &str, stream: bool) -> Value {
    json!({"text": " ship load", "rid": rid, "stream": stream, "sampling_params": {"max_new_tokens": 30_000, "ignore_eos": true}})
}

#[test]
fn a_request_id_in_flight_is_refused_and_free_again_afterwards() {
    let server = Server::start(slow());
    let mut running = server.post("/generate", &long("same", true));
    assert!(running.chunk().unwrap().is_some());
    let answer = server.post("/generate", &long("same", false));
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["message"], "Duplicate request ID detected: same");
    assert_eq!(server.post("/abort_request", &json!({"rid": "same"})).status, 200);
    assert_eq!(running.events().last().unwrap()["meta_info"]["finish_reason"]["type"], "abort");
    // Whoever has seen the end can use the id again at once.
    let body = json!({"text": " ship", "rid": "same", "sampling_params": {"max_new_tokens": 2}});
    for _ in 0..20 {
        assert_eq!(server.ask("/generate", &body)["meta_info"]["id"], "same");
    }
}

#[test]
fn an_abort_matches_by_prefix_and_ends_streams_with_a_reason() {
    let server = Server::start(slow());
    let (a, b) = (server.post("/generate", &long("r1", true)), server.post("/generate", &long("r10", true)));
    let other = server.post("/generate", &long("x", true));
    server.wait_load("three run", |load| load["num_running_reqs"] == 3);
    server.post("/abort_request", &json!({"rid": ""}));
    server.post("/abort_request", &json!({"rid": "r1"}));
    for stream in [a, b] {
        let events = stream.events();
        let reason = &events.last().unwrap()["meta_info"]["finish_reason"];
        assert_eq!((&reason["type"], &reason["status_code"]), (&json!("abort"), &Value::Null));
    }
    server.wait_load("one is left", |load| load["num_running_reqs"] == 1);
    server.post("/abort_request", &json!({"abort_all": true}));
    assert_eq!(other.events().last().unwrap()["meta_info"]["finish_reason"]["type"], "abort");
    server.wait_empty();
}

#[test]
fn a_client_that_leaves_frees_everything_at_every_stage() {
    let server = Server::start(EngineConfig { max_running: 2, token_budget: 16, ..slow() });
    // In a stream, in silence without a stream, in the queue, in the middle of a long prefill.
    let mut streaming = server.post("/generate", &long("streaming", true));
    streaming.chunk().unwrap();
    let connect = |body: Value| {
        use std::io::Write;
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        let body = body.to_string();
        write!(stream, "POST /generate HTTP/1.1\r\nhost: e\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    };
    let silent = connect(long("silent", false));
    server.wait_load("two run", |load| load["num_running_reqs"] == 2);
    let waiting = connect(long("waiting", false));
    server.wait_load("one waits", |load| load["num_waiting_reqs"] == 1);
    drop(waiting);
    server.wait_load("none waits", |load| load["num_waiting_reqs"] == 0);
    drop(silent);
    server.wait_load("one runs", |load| load["num_running_reqs"] == 1);
    let prefill = connect(json!({"text": " ship".repeat(20_000), "stream": true}));
    server.wait_load("prefill runs", |load| load["num_running_reqs"] == 2);
    drop(prefill);
    server.wait_load("prefill stopped", |load| load["num_running_reqs"] == 1);
    drop(streaming);
    server.wait_empty();
    let metrics = server.get("/metrics").text();
    let aborted = metrics.lines().find(|line| line.starts_with("sglang:num_aborted_requests_total")).unwrap();
    assert!(aborted.ends_with(" 4"), "{aborted}");
}

#[test]
fn a_full_queue_is_a_503_in_both_forms() {
    let server = Server::start(EngineConfig { max_running: 1, max_waiting: 1, ..slow() });
    let mut running = server.post("/generate", &long("runs", true));
    running.chunk().unwrap();
    let waiting = server.post("/generate", &long("waits", true));
    server.wait_load("one waits", |load| load["num_waiting_reqs"] == 1);
    let answer = server.post("/generate", &long("refused", false));
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["message"], "The request queue is full.");
    // A stream has its 200 already: SGLang says it inside.
    let events = server.post("/generate", &long("refused", true)).events();
    let reason = &events[0]["meta_info"]["finish_reason"];
    assert_eq!(reason["status_code"], 503);
    assert_eq!(reason["message"], "The request queue is full.");
    let chat = json!({"messages": [{"role": "user", "content": " ship"}], "stream": true});
    let events = server.post("/v1/chat/completions", &chat).events();
    assert_eq!(events[0]["error"]["message"], "The request queue is full.");
    assert_eq!(events.len(), 1);
    // That is no illness, and no probe waits for its turn.
    assert_eq!(server.get("/health_generate").status, 200);
    drop((running, waiting));
    server.wait_empty();
    assert_eq!(server.get("/health_generate").status, 200);
}

#[test]
fn a_busy_engine_is_healthy_as_long_as_it_computes() {
    // Whoever asks for health comes behind everybody with a priority, for as long as these are served.
    let order = Order { policy: SchedulePolicy::Priority, ..Order::default() };
    let server = Server::start(EngineConfig { max_running: 1, order, ..slow() });
    let mut body = long("runs", true);
    body["priority"] = json!(1);
    let mut running = server.post("/generate", &body);
    running.chunk().unwrap();
    assert_eq!(server.get("/health_generate").status, 200);
    assert_eq!(server.load()["num_waiting_reqs"], 0, "nothing was queued for it");
}

#[test]
fn a_reader_that_takes_nothing_is_cut_off() {
    // Cumulative chunks of a long answer fill every buffer on the way.
    let server = Server::start(EngineConfig { stalled_reader: Duration::from_millis(300), ..config() });
    let body =
        json!({"text": " ship", "stream": true, "sampling_params": {"max_new_tokens": 32_000, "ignore_eos": true}});
    let stalled = server.post("/generate", &body);
    server.wait_load("it runs", |load| load["num_running_reqs"] == 1);
    server.wait_empty();
    let mut broken = false;
    let mut stalled = stalled;
    for _ in 0..100_000 {
        match stalled.chunk() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => {
                broken = true;
                break;
            }
        }
    }
    assert!(broken, "the connection should have been cut");
}

#[test]
fn a_shutdown_lets_running_requests_finish() {
    let mut server = Server::start(EngineConfig { step_delay: Duration::from_millis(2), ..config() });
    let body = json!({"prompt": " ship", "max_tokens": 200, "ignore_eos": true, "stream": true});
    let mut stream = server.post("/v1/completions", &body);
    let mut text = stream.chunk().unwrap().unwrap();
    server.begin_stop();
    text.push_str(&stream.text());
    let events = parse_events(text.strip_suffix("data: [DONE]\n\n").unwrap());
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    server.join();
    assert!(std::net::TcpStream::connect(server.address).is_err(), "nothing listens any more");
}

#[test]
fn a_shutdown_ends_what_does_not_finish() {
    let mut server = Server::start(EngineConfig { drain: Duration::from_millis(200), ..slow() });
    let mut stream = server.post("/generate", &long("stays", true));
    stream.chunk().unwrap();
    server.begin_stop();
    let events = stream.events();
    assert_eq!(events.last().unwrap()["meta_info"]["finish_reason"]["type"], "abort");
    server.join();
}
