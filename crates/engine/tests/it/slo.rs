//! Deadlines and priorities over HTTP: every spelling, every face, refusals in each one's own form.

use crate::client::{Answer, PATIENCE, Server, config};
use plimsoll_engine::{EngineConfig, Order, SchedulePolicy};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Steps of 50 ms that compute at most 64 tokens: 2,000 tokens are 32 steps, 1.6 s. One request at a time.
fn slow() -> EngineConfig {
    EngineConfig { step_delay: Duration::from_millis(50), token_budget: 64, max_running: 1, ..config() }
}

fn prompt(tokens: usize, salt: &str) -> Value {
    json!({"prompt": " ship".repeat(tokens), "max_tokens": 1, "temperature": 0, "cache_salt": salt})
}

/// The engine learns how fast it is.
fn taught(server: &Server) {
    for tokens in [1, 300, 20] {
        server.ask("/v1/completions", &prompt(tokens, "teach"));
    }
}

fn send(server: &Server, path: &str, header: &str, body: &Value) -> Answer {
    server.send("POST", path, &format!("{header}\r\n"), &body.to_string())
}

fn is_unattainable(answer: Answer) {
    assert_eq!(answer.status, 429);
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds), "{seconds}");
    let error = answer.json()["error"].clone();
    assert_eq!((&error["code"], &error["type"]), (&json!("slo_unattainable"), &json!("overloaded_error")), "{error}");
    assert_eq!((&error["goal"], &error["wanted_ms"]), (&json!("ttft"), &json!(200.0)), "{error}");
    let predicted = error["predicted_ms"].as_f64().unwrap();
    // 1.6 s, if the machine were ours.
    assert!((1_000.0..20_000.0).contains(&predicted), "{predicted}");
    assert!(error["message"].as_str().unwrap().contains("wanted 200 ms"), "{error}");
}

#[test]
fn what_would_be_late_is_a_429_on_every_face_streaming_or_not() {
    let server = Server::start(slow());
    // Not known yet: not refused.
    assert_eq!(send(&server, "/v1/completions", "x-slo-ttft-ms: 40", &prompt(5, "first")).status, 200);
    taught(&server);
    let text = " ship".repeat(2_000);
    for stream in [false, true] {
        let headers =
            ["x-slo-ttft-ms: 200", "x-llm-d-slo-ttft-ms: 200", "x-sgl-ttft-slo-ms: 200", "x-request-deadline-ms: 200"];
        let bodies = [
            ("/v1/completions", json!({"prompt": text, "stream": stream})),
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}], "stream": stream})),
            ("/generate", json!({"text": text, "stream": stream})),
            ("/v1/embeddings", json!({"input": text})),
        ];
        for ((path, body), header) in bodies.iter().zip(headers) {
            is_unattainable(send(&server, path, header, body));
        }
    }
    // One without a deadline is served whatever it takes, and one that leaves enough time too.
    assert_eq!(send(&server, "/v1/completions", "x-slo-ttft-ms: 60000", &prompt(300, "time")).status, 200);
    server.ask("/v1/completions", &prompt(300, "none"));
    server.wait_empty();
}

#[test]
fn a_stream_that_is_open_is_told_inside() {
    let server = Server::start(slow());
    let mut runs = server.post(
        "/generate",
        &json!({"text": " ship", "stream": true, "sampling_params": {"max_new_tokens": 400, "ignore_eos": true}}),
    );
    runs.chunk().unwrap();
    // The only place is taken for 20 s, and the engine does not know for how long: they are accepted and wait.
    let body = json!({"text": " ship", "stream": true});
    let native = send(&server, "/generate", "x-slo-ttft-ms: 300", &body);
    let chat = json!({"messages": [{"role": "user", "content": " ship"}], "stream": true});
    let openai = send(&server, "/v1/chat/completions", "x-slo-ttft-ms: 300", &chat);
    let events = native.events();
    let reason = &events.last().unwrap()["meta_info"]["finish_reason"];
    assert_eq!((&reason["type"], &reason["status_code"]), (&json!("abort"), &json!(429)), "{reason}");
    assert_eq!((&reason["code"], &reason["retry_after"]), (&json!("slo_unattainable"), &json!(1)), "{reason}");
    let events = openai.events();
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["code"], "slo_unattainable");
    assert!(error["message"].as_str().unwrap().contains("(--max-running)"), "{error}");
    // Who runs is left alone, and nobody waits any more once the step that told them so is counted.
    let begun = Instant::now();
    while server.load()["num_waiting_reqs"] != 0 && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    let load = server.load();
    assert_eq!((&load["num_running_reqs"], &load["num_waiting_reqs"]), (&json!(1), &json!(0)));
    drop(runs);
    server.wait_empty();
}

#[test]
fn a_goal_between_tokens_is_refused_when_tokens_come_slower() {
    let server = Server::start(slow());
    let decode = json!({"prompt": " ship", "max_tokens": 10, "ignore_eos": true});
    server.ask("/v1/completions", &decode);
    for header in ["x-slo-tpot-ms: 10", "x-llm-d-slo-tpot-ms: 10", "x-sgl-tps-slo: 100"] {
        let answer = send(&server, "/v1/completions", header, &decode);
        assert_eq!(answer.status, 429, "{header}");
        let error = answer.json()["error"].clone();
        assert_eq!((&error["goal"], &error["wanted_ms"]), (&json!("tpot"), &json!(10.0)), "{error}");
    }
    assert_eq!(send(&server, "/v1/completions", "x-slo-tpot-ms: 10000", &decode).status, 200);
}

#[test]
fn a_header_that_says_nothing_sensible_is_a_400_that_names_it() {
    let server = Server::start(config());
    for header in ["x-slo-ttft-ms: soon", "x-request-deadline-ms: -5", "x-slo-tpot-ms: 0"] {
        for path in ["/v1/completions", "/v1/chat/completions", "/generate", "/v1/embeddings"] {
            let answer = send(&server, path, header, &json!({}));
            assert_eq!(answer.status, 400);
            let error = answer.json()["error"].clone();
            assert_eq!((&error["code"], &error["param"]), (&json!("invalid_header"), &json!(header.split(':').next())));
        }
    }
    let answer = server.post("/v1/completions", &json!({"prompt": " ship", "priority": "high"}));
    assert_eq!(answer.json()["error"]["param"], "priority");
}

#[test]
fn priority_decides_who_is_next_and_who_gives_way() {
    let order = Order { policy: SchedulePolicy::Priority, ..Order::default() };
    let server = Server::start(EngineConfig { order, max_waiting: 2, ..slow() });
    assert_eq!(server.get("/server_info").json()["schedule_policy"], "priority");
    let body = |priority: i64, tokens: usize| {
        json!({"text": " ship", "stream": true, "priority": priority,
               "sampling_params": {"max_new_tokens": tokens, "ignore_eos": true, "temperature": 0}})
    };
    let mut low = server.post("/generate", &body(0, 40));
    low.chunk().unwrap();
    let mid = server.post("/generate", &body(10, 2));
    let least = server.post("/generate", &body(-1, 2));
    server.wait_load("two wait", |load| load["num_waiting_reqs"] == 2);
    // More than ten above who runs: it takes the place, and that of the least in the full queue.
    let high = server.post("/generate", &body(11, 2));
    let last = |answer: Answer| answer.events().last().unwrap()["meta_info"].clone();
    assert_eq!(last(high)["finish_reason"]["type"], "length");
    let reason = last(least)["finish_reason"].clone();
    assert_eq!((&reason["code"], &reason["status_code"]), (&json!("displaced"), &json!(503)), "{reason}");
    assert_eq!(reason["message"], "The request is aborted by a higher priority request.");
    assert_eq!(last(mid)["num_retractions"], 0);
    let low = last(low);
    assert_eq!((&low["num_retractions"], &low["completion_tokens"]), (&json!(1), &json!(40)));
}
