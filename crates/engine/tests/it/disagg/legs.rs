//! When all goes well.

use super::*;

#[test]
fn the_answer_is_that_of_one_engine_on_every_route() {
    let (pair, plain) = (Pair::new(), Server::start(config()));
    let long = json!({"max_tokens": 12, "temperature": 0, "ignore_eos": true});
    let bodies = [
        ("/generate", generate(50, 12)),
        (
            "/generate",
            json!({"input_ids": (300..364).collect::<Vec<u32>>(), "sampling_params": {"max_new_tokens": 1, "temperature": 0}}),
        ),
        ("/v1/completions", with(&long, &json!({"prompt": prompt(30), "return_token_ids": true}))),
        (
            "/v1/chat/completions",
            with(&long, &json!({"messages": [{"role": "user", "content": prompt(40)}], "return_token_ids": true})),
        ),
    ];
    let essence = |mut answer: Value| {
        for part in ["meta_info", "id", "created"] {
            answer.as_object_mut().unwrap().remove(part);
        }
        answer
    };
    for (path, body) in bodies {
        let [prefill, decode] = pair.ask(path, &body);
        let whole = plain.ask(path, &body);
        assert_eq!(essence(decode.clone()), essence(whole.clone()), "{path}");
        if path == "/generate" {
            assert_eq!(decode["meta_info"]["finish_reason"], whole["meta_info"]["finish_reason"]);
            assert_eq!(prefill["output_ids"][0], whole["output_ids"][0]);
            assert_eq!(prefill["output_ids"].as_array().unwrap().len(), 1);
            assert_eq!(prefill["meta_info"]["finish_reason"], json!({"type": "length", "length": 0}));
        }
    }
    pair.wait_empty();
}

#[test]
fn streams_carry_every_token_and_the_prefill_stream_its_one() {
    let pair = Pair::new();
    let body = with(&generate(100, 20), &json!({"stream": true}));
    let [prefill, decode] = pair.both("/generate", &body);
    let last = |(status, text): (u16, String)| {
        assert_eq!(status, 200);
        let events = text.strip_suffix("data: [DONE]\n\n").unwrap().to_owned();
        crate::client::parse_events(&events).pop().unwrap()
    };
    let (prefill, decode) = (last(prefill), last(decode));
    let whole = Server::start(config()).ask("/generate", &generate(100, 20));
    assert_eq!(decode["output_ids"], whole["output_ids"]);
    assert_eq!(decode["text"], whole["text"]);
    assert_eq!(prefill["output_ids"], json!([whole["output_ids"][0]]));
    assert_eq!(prefill["meta_info"]["finish_reason"], json!({"type": "length", "length": 0}));
    pair.wait_empty();
}

#[test]
fn either_leg_may_come_first() {
    let pair = Pair::new();
    for prefill_first in [true, false] {
        let body = pair.body(&generate(20, 5));
        let servers = if prefill_first { [&pair.prefill, &pair.decode] } else { [&pair.decode, &pair.prefill] };
        scope(|scope| {
            let first = scope.spawn(|| answer(servers[0], "/generate", &body));
            servers[0].wait_load("the first leg waits", |load| load["num_waiting_reqs"] == 1);
            let second = answer(servers[1], "/generate", &body);
            for (status, text) in [first.join().unwrap(), second] {
                assert_eq!(status, 200, "{text}");
            }
        });
    }
    pair.wait_empty();
}

#[test]
fn a_batch_has_a_room_for_each_request() {
    let (pair, plain) = (Pair::new(), Server::start(config()));
    let body = json!({"text": [prompt(20), prompt(33), prompt(7)], "sampling_params": {"max_new_tokens": 8, "temperature": 0}});
    let whole = plain.ask("/generate", &body);
    let ids = |answer: &Value| -> Vec<Value> {
        answer.as_array().unwrap().iter().map(|answer| answer["output_ids"].clone()).collect()
    };
    // One room stands for itself and those after it.
    let [_, decode] = pair.ask("/generate", &body);
    assert_eq!(ids(&decode), ids(&whole));
    let lists = json!({
        "bootstrap_host": ["127.0.0.1", "127.0.0.1", "localhost"],
        "bootstrap_port": [pair.port, pair.port, pair.port],
        "bootstrap_room": [room(), room(), room()],
    });
    let body = with(&body, &lists);
    let decode = scope(|scope| {
        let prefill = scope.spawn(|| pair.prefill.ask("/generate", &body));
        let decode = pair.decode.ask("/generate", &body);
        assert_eq!(prefill.join().unwrap().as_array().unwrap().len(), 3);
        decode
    });
    assert_eq!(ids(&decode), ids(&whole));
    let wrong = with(&body, &json!({"bootstrap_room": [1, 2]}));
    assert_eq!(pair.decode.post("/generate", &wrong).status, 400);
    pair.wait_empty();
}

#[test]
fn many_at_once_come_out_right() {
    let pair = Pair::of(
        EngineConfig { kv_tokens: 1024, max_running: 3, token_budget: 48, ..engine(Role::Prefill) },
        EngineConfig { kv_tokens: 1024, max_running: 4, token_budget: 48, ..engine(Role::Decode) },
    );
    let plain = Server::start(config());
    scope(|scope| {
        let asks: Vec<_> = (0..16)
            .map(|index| {
                let (pair, plain) = (&pair, &plain);
                scope.spawn(move || {
                    let body = generate(30 + 17 * index, 10 + index);
                    let [_, decode] = pair.ask("/generate", &body);
                    assert_eq!(decode["output_ids"], plain.ask("/generate", &body)["output_ids"]);
                })
            })
            .collect();
        asks.into_iter().for_each(|ask| ask.join().unwrap());
    });
    pair.wait_empty();
    assert_eq!(metric(&pair.prefill, "kv_transfer_latency_ms_count"), 16.0);
    assert_eq!(metric(&pair.decode, "kv_transfer_latency_ms_count"), 16.0);
}

#[test]
fn only_what_decode_lacks_is_sent() {
    let pair = Pair::new();
    let sent = || metric(&pair.prefill, "kv_transfer_total_mb_sum");
    pair.ask("/generate", &generate(160, 4));
    let first = sent();
    let [_, decode] = pair.ask("/generate", &generate(170, 4));
    // Ten of eleven pages are there.
    let second = sent() - first;
    assert!(first > 0.0 && (second * 10.0 - first).abs() < 1e-9, "{first} then {second}");
    assert_eq!(decode["meta_info"]["cached_tokens"], 160);
    pair.wait_empty();
}

#[test]
fn what_the_engines_say_of_themselves() {
    let pair = Pair::new();
    for (server, mode) in [(&pair.prefill, "prefill"), (&pair.decode, "decode")] {
        let info = server.get("/server_info").json();
        assert_eq!(info["disaggregation_mode"], mode);
        assert_eq!(info["internal_states"][0]["disaggregation_mode"], mode);
        assert_eq!(server.get("/model_info").json()["disaggregation_mode"], mode);
        assert_eq!(server.load()["disaggregation"]["mode"], mode);
        assert!(server.get("/metrics").text().contains(&format!("engine_type=\"{mode}\"")));
        // A health check needs no partner.
        assert_eq!(server.get("/health_generate").status, 200);
    }
    // SGLang leaves the section out on an engine that does everything.
    assert_eq!(Server::start(config()).load()["disaggregation"], Value::Null);
    let body = with(&generate(5, 3), &json!({"bootstrap_host": "2.2.2.2", "bootstrap_room": 0}));
    assert_eq!(pair.decode.ask("/generate", &body)["output_ids"].as_array().unwrap().len(), 3);
    let http = |path: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", pair.port as u16)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: p\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    assert!(http("/health").starts_with("HTTP/1.1 200"));
    let route = http("/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1");
    let route: Value = serde_json::from_str(route.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(route["page_size"], 16);
    assert_eq!(route["prefill_http_port"], pair.prefill.address.port());
    assert_eq!(route["follow_bootstrap_room"], true);
}

#[test]
fn a_room_chooses_the_rank_of_prefill() {
    let pair = Pair::of(
        EngineConfig { dp_size: 3, ..engine(Role::Prefill) },
        EngineConfig { dp_size: 2, ..engine(Role::Decode) },
    );
    for room in [30, 31, 32, 33] {
        let body = with(&pair.body(&generate(20, 4)), &json!({"bootstrap_room": room}));
        scope(|scope| {
            let prefill = scope.spawn(|| pair.prefill.ask("/generate", &body));
            pair.decode.ask("/generate", &body);
            assert_eq!(prefill.join().unwrap()["meta_info"]["dp_rank"], room % 3);
        });
    }
    pair.wait_empty();
}

#[test]
fn with_the_same_secret_on_both_sides() {
    let with_secret = |role| EngineConfig {
        disagg: DisaggConfig { secret: Some(Secret::new("anchor")), ..disagg(role) },
        ..config()
    };
    let pair = Pair::of(with_secret(Role::Prefill), with_secret(Role::Decode));
    pair.ask("/generate", &generate(40, 4));
    pair.wait_empty();
}
