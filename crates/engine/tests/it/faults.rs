//! The fault switch does what it says, and can be taken back.

use crate::client::{Server, config, parse_events};
use plimsoll_engine::EngineConfig;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

fn completion(tokens: usize, stream: bool) -> Value {
    json!({"prompt": " ship", "max_tokens": tokens, "ignore_eos": true, "stream": stream})
}

#[test]
fn a_frozen_engine_accepts_and_never_answers_until_it_thaws() {
    let server = Server::start(EngineConfig { step_delay: Duration::from_millis(1), ..config() });
    let mut stream = server.post("/v1/completions", &completion(400, true));
    stream.chunk().unwrap();
    assert_eq!(server.ask("/admin/faults", &json!({"no_respond": true}))["no_respond"], true);
    let mut health = std::net::TcpStream::connect(server.address).unwrap();
    health.write_all(b"GET /health HTTP/1.1\r\nhost: e\r\n\r\n").unwrap();
    health.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(health.read(&mut [0; 1]).is_err(), "nothing is answered");
    server.ask("/admin/faults", &json!({"no_respond": false}));
    health.set_read_timeout(Some(crate::client::PATIENCE)).unwrap();
    let mut start = [0; 12];
    health.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    // The stream goes on where it stopped and is complete.
    assert!(stream.text().ends_with("data: [DONE]\n\n"));
}

#[test]
fn a_torn_stream_has_no_end() {
    let server = Server::start(EngineConfig { step_delay: Duration::from_millis(2), ..config() });
    server.ask("/admin/faults", &json!({"torn_stream_after_tokens": 5}));
    let mut stream = server.post("/v1/completions", &completion(50, true));
    let mut text = String::new();
    let broken = loop {
        match stream.chunk() {
            Ok(Some(chunk)) => text.push_str(&chunk),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert!(broken, "the connection breaks");
    assert!(parse_events(&text).iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
    server.ask("/admin/faults", &json!({"torn_stream_clean": true}));
    let text = server.post("/v1/completions", &completion(50, true)).text();
    let events = parse_events(&text);
    assert!(events.iter().all(|event| event["choices"][0]["finish_reason"].is_null()), "no finish, no [DONE]");
    server.wait_empty();
    server.ask("/admin/faults", &json!({"torn_stream_after_tokens": null}));
    assert!(server.post("/v1/completions", &completion(50, true)).text().ends_with("[DONE]\n\n"));
}

#[test]
fn statuses_and_slow_steps() {
    let server = Server::start(config());
    server.ask("/admin/faults", &json!({"http_status": 503}));
    assert_eq!(server.post("/v1/completions", &completion(2, false)).status, 503);
    assert_eq!(server.get("/health").status, 200);
    server.ask("/admin/faults", &json!({"http_status": null, "step_delay_us": 20_000}));
    let started = Instant::now();
    server.ask("/v1/completions", &completion(10, false));
    assert!(started.elapsed() >= Duration::from_millis(200));
    assert_eq!(server.post("/admin/faults", &json!({"unknown": 1})).status, 400);
    assert_eq!(server.post("/admin/faults", &json!({"http_status": 200})).status, 400);
    let closed = Server::start(EngineConfig { faults: false, ..config() });
    assert_eq!(closed.post("/admin/faults", &json!({"no_respond": true})).status, 404);
}

#[test]
fn a_skewed_clock_is_seen_wherever_a_time_is_reported() {
    let server = Server::start(config());
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let reported = || {
        let models: Value = server.get("/v1/models").json();
        let loads: Value = server.get("/v1/loads").json();
        let chat = json!({"messages": [{"role": "user", "content": " ship"}], "max_tokens": 1});
        let generate = json!({"text": " ship", "sampling_params": {"max_new_tokens": 1}});
        [
            models["data"][0]["created"].as_f64().unwrap(),
            loads["timestamp"].as_f64().unwrap(),
            loads["loads"][0]["timestamp"].as_f64().unwrap(),
            server.ask("/v1/completions", &completion(1, false))["created"].as_f64().unwrap(),
            server.ask("/v1/chat/completions", &chat)["created"].as_f64().unwrap(),
            server.ask("/generate", &generate)["meta_info"]["response_sent_to_client_ts"].as_f64().unwrap(),
        ]
    };
    for skew_s in [0.0, 7200.0, -86_400.0] {
        server.ask("/admin/faults", &json!({"clock_skew_ms": (skew_s * 1e3) as i64}));
        for time in reported() {
            // Within a quarter of an hour: the machine may be slow, a skew of an hour is not missed.
            assert!((time - now() - skew_s).abs() < 900.0, "skew {skew_s}: {time}, now {}", now());
        }
    }
    assert_eq!(server.get("/admin/faults").json()["clock_skew_ms"], -86_400_000);
    let answer = server.post("/admin/faults", &json!({"no_respnd": true}));
    assert_eq!(answer.status, 400);
    let error = answer.json();
    assert!(error["error"]["message"].as_str().unwrap().contains("no_respond"), "{error}");
}

#[test]
fn under_pressure_requests_wait_and_are_served_when_it_is_lifted() {
    // 64 pages in all.
    let server = Server::start(EngineConfig { kv_tokens: 1024, context_tokens: 1024, ..config() });
    let greedy = |stream: bool| json!({"prompt": " ship", "max_tokens": 200, "ignore_eos": true, "stream": stream, "temperature": 0});
    let alone = server.ask("/v1/completions", &greedy(false));
    server.ask("/admin/faults", &json!({"kv_pressure": 1.0}));
    server.wait_load("all pages are away", |load| load["token_usage"] == 1.0);
    let waiting =
        server.post("/generate", &json!({"text": " ship", "stream": true, "sampling_params": {"max_new_tokens": 3}}));
    server.wait_load("it waits", |load| load["num_waiting_reqs"] == 1);
    let generated = |server: &Server| {
        let page = server.get("/metrics").text();
        page.lines().find(|line| line.starts_with("sglang:generation_tokens_total")).unwrap().to_owned()
    };
    let before = generated(&server);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(generated(&server), before, "nothing is generated without room");
    // Some room: it is served. Two that do not fit together take turns, and the answer is the same.
    server.ask("/admin/faults", &json!({"kv_pressure": 0.7}));
    assert_eq!(waiting.events().last().unwrap()["meta_info"]["completion_tokens"], 3);
    let twins: Vec<_> = (0..2).map(|_| server.post("/v1/completions", &greedy(true))).collect();
    for twin in twins {
        let text: String =
            twin.events().iter().map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
        assert_eq!(text, alone["choices"][0]["text"]);
    }
    server.ask("/admin/faults", &json!({"kv_pressure": null}));
    server.wait_empty();
}
