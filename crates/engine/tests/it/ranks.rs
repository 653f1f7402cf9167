//! Ranks on the wire: who is where, and how a router says where.

use crate::client::{PATIENCE, Server, config};
use plimsoll_engine::EngineConfig;
use serde_json::{Value, json};
use std::time::Instant;

fn ranks(dp_size: usize) -> Server {
    Server::start(EngineConfig { dp_size, ..config() })
}

fn ask(server: &Server, more: &Value) -> Value {
    let mut body = json!({"text": " ship load mast", "sampling_params": {"max_new_tokens": 6, "temperature": 0}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.ask("/generate", &body)
}

fn loads(server: &Server) -> Vec<Value> {
    server.get("/v1/loads").json()["loads"].as_array().unwrap().clone()
}

#[test]
fn without_a_rank_requests_take_turns_and_say_where_they_were() {
    let server = ranks(3);
    let answers: Vec<Value> = (0..6).map(|_| ask(&server, &json!({}))).collect();
    let seen: Vec<u64> = answers.iter().map(|a| a["meta_info"]["dp_rank"].as_u64().unwrap()).collect();
    assert_eq!(seen, [0, 1, 2, 0, 1, 2]);
    assert!(answers.iter().all(|answer| answer["output_ids"] == answers[0]["output_ids"]));
    assert_eq!(server.get("/server_info").json()["dp_size"], 3);
    assert_eq!(server.get("/server_info").json()["internal_states"].as_array().unwrap().len(), 3);
}

#[test]
fn a_rank_is_pinned_by_body_and_header_and_has_a_cache_of_its_own() {
    let server = ranks(4);
    let long = " ship".repeat(40);
    let cached = |rank: u64| {
        let answer = ask(&server, &json!({"text": long, "routed_dp_rank": rank}));
        assert_eq!(answer["meta_info"]["dp_rank"], rank);
        answer["meta_info"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!([cached(2), cached(2), cached(3), cached(2)], [0, 32, 0, 32]);
    assert_eq!(ask(&server, &json!({"data_parallel_rank": 1}))["meta_info"]["dp_rank"], 1);
    let generated = |server: &Server| -> Vec<u64> {
        let text = server.get("/metrics").text();
        let of = |rank| {
            let label = format!("dp_rank=\"{rank}\"");
            let line = text.lines().find(|l| l.starts_with("sglang:generation_tokens_total") && l.contains(&label));
            line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
        };
        (0..4).map(of).collect()
    };
    // An answer may be here before its last step is counted.
    let wait_generated = |wanted: [u64; 4]| {
        let until = Instant::now() + PATIENCE;
        while generated(&server) != wanted {
            assert!(Instant::now() < until, "{:?} are not {wanted:?}", generated(&server));
        }
    };
    wait_generated([0, 6, 18, 6]);
    // On OpenAI's routes the header counts before the body.
    let body = json!({"prompt": " ship", "max_tokens": 5, "ignore_eos": true, "routed_dp_rank": 1}).to_string();
    let answer = server.send("POST", "/v1/completions", "x-data-parallel-rank: 0\r\n", &body);
    assert_eq!(answer.status, 200);
    drop(answer.text());
    let chat = json!({"messages": [{"role": "user", "content": " ship"}], "max_tokens": 7, "ignore_eos": true});
    let answer = server.send("POST", "/v1/chat/completions", "x-data-parallel-rank: 3\r\n", &chat.to_string());
    assert_eq!(answer.status, 200);
    drop(answer.text());
    wait_generated([5, 6, 18, 13]);
}

#[test]
fn a_rank_that_is_not_there_is_a_400() {
    let server = ranks(2);
    for (more, what) in [
        (json!({"routed_dp_rank": 2}), "routed_dp_rank: 2 is out of range, this engine has ranks 0 to 1"),
        (json!({"routed_dp_rank": -1}), "routed_dp_rank: must not be negative"),
        (json!({"data_parallel_rank": "one"}), "data_parallel_rank: expected an integer"),
    ] {
        let mut body = json!({"text": " ship"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post("/generate", &body);
        assert_eq!((answer.status, &answer.json()["error"]["message"]), (400, &json!(what)));
    }
    for header in ["two", "-1", "2"] {
        let body = json!({"prompt": " ship"}).to_string();
        let answer = server.send("POST", "/v1/completions", &format!("x-data-parallel-rank: {header}\r\n"), &body);
        assert_eq!(answer.status, 400, "{header}");
    }
    // An engine without ranks takes rank 0, as SGLang does.
    let single = ranks(1);
    assert_eq!(ask(&single, &json!({"routed_dp_rank": 0}))["meta_info"]["dp_rank"], 0);
    assert_eq!(single.post("/generate", &json!({"text": " ship", "routed_dp_rank": 1})).status, 400);
}

#[test]
fn loads_say_per_rank_who_waited_for_whom() {
    let server = ranks(3);
    ask(&server, &json!({"routed_dp_rank": 1, "sampling_params": {"max_new_tokens": 30, "ignore_eos": true}}));
    server.wait_load("the last step is counted", |load| load["plimsoll_joint_steps"] == 30);
    let loads = loads(&server);
    let of = |name: &str| -> Vec<u64> { loads.iter().map(|load| load[name].as_u64().unwrap()).collect() };
    assert_eq!(of("dp_rank"), [0, 1, 2]);
    assert_eq!(of("plimsoll_joint_steps"), [30, 30, 30]);
    let (busy, idle) = (of("plimsoll_busy_us"), of("plimsoll_idle_us"));
    assert!(busy[1] > 0 && idle[0] > 0, "{busy:?} {idle:?}");
    assert_eq!((busy[0], busy[2], idle[1]), (0, 0, 0));
    assert_eq!((idle[0], idle[2]), (busy[1], busy[1]));
    let one = server.get("/v1/loads?dp_rank=1").json();
    assert_eq!((one["loads"].as_array().unwrap().len(), &one["loads"][0]["dp_rank"]), (1, &json!(1)));
    assert_eq!(server.get("/v1/loads?dp_rank=3").json()["loads"], json!([]));
}

/// The values of a metric, one per sample.
fn samples(server: &Server, name: &str) -> Vec<f64> {
    let text = server.get("/metrics").text();
    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn the_one_step_loop_of_all_ranks_is_counted_once() {
    let server = ranks(3);
    ask(&server, &json!({"routed_dp_rank": 1, "sampling_params": {"max_new_tokens": 30, "ignore_eos": true}}));
    let until = Instant::now() + PATIENCE;
    loop {
        let spent = samples(&server, "plimsoll_engine_loop_cpu_seconds_total");
        assert_eq!(spent.len(), 1, "{spent:?}");
        if spent[0] > 0.0 {
            break;
        }
        assert!(Instant::now() < until, "nothing is counted");
    }
    assert_eq!(samples(&server, "plimsoll_engine_steps_total").len(), 3);
}
