//! KV events over HTTP's description and a stock consumer's sockets.
//!
//! Python with `zmq` and `msgspec`: `PLIMSOLL_PYTHON`, else `.venv/bin/python` of the repository. Passed over by name
//! where it has them not.

use crate::client::{PATIENCE, Server, config};
use plimsoll_cache::block_hash::{event_hash, salt_seed};
use plimsoll_cache::vllm_hash::{self, ExtraKey, block_digest, none_digest};
use plimsoll_cache::{Chain, Digest};
use plimsoll_engine::EngineConfig;
use plimsoll_engine::kv_events::KvEventsConfig;
use plimsoll_engine::kv_events::config::{Format, Publisher};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

fn with_events(format: Format, dp_size: usize) -> EngineConfig {
    let kv_events = KvEventsConfig {
        publisher: Publisher::Zmq,
        endpoint: "tcp://127.0.0.1:0".to_owned(),
        bind: Some(true),
        replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
        topic: "kv".to_owned(),
        format,
        ..KvEventsConfig::default()
    };
    EngineConfig { kv_events: Some(kv_events), dp_size, kv_tokens: 1024, context_tokens: 512, ..config() }
}

fn generate(server: &Server, ids: impl IntoIterator<Item = u32>, more: &Value) {
    let ids: Vec<u32> = ids.into_iter().collect();
    let mut body = json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.ask("/generate", &body);
}

/// Waits until a rank has published that many batches: it does so after it answers.
fn wait_batches(server: &Server, rank: usize, count: usize) {
    let line = format!(
        "plimsoll_engine_kv_events_batches_total{{model_name=\"plimsoll-tiny\",engine_type=\"unified\",dp_rank=\"{rank}\"}} \
         {count}\n"
    );
    let until = Instant::now() + PATIENCE;
    loop {
        let metrics = server.get("/metrics").text();
        if metrics.contains(&line) {
            return;
        }
        assert!(Instant::now() < until, "never: {line}{metrics}");
    }
}

#[test]
fn server_info_and_metrics_tell_of_the_stream_as_sglang_does() {
    let server = Server::start(with_events(Format::Default, 2));
    let info = server.get("/server_info").json();
    let events = &info["kv_events"];
    for (key, value) in [("publisher", json!("zmq")), ("endpoint_host", json!("127.0.0.1")), ("topic", json!("kv"))] {
        assert_eq!(events[key], value, "{events}");
    }
    assert_eq!((&events["block_size"], &events["dp_size"]), (&json!(16), &json!(2)));
    let port = events["endpoint_port_base"].as_u64().unwrap();
    assert!(port > 0 && events["replay_endpoint_port_base"].as_u64().unwrap() > 0);
    let config: Value = serde_json::from_str(info["kv_events_config"].as_str().unwrap()).unwrap();
    assert_eq!(config["endpoint"], json!(format!("tcp://127.0.0.1:{port}")));
    for rank in 0..2 {
        generate(&server, 300..340, &json!({"routed_dp_rank": rank}));
    }
    for rank in 0..2 {
        wait_batches(&server, rank, 1);
    }
    let without = Server::start(crate::client::config());
    assert_eq!(without.get("/server_info").json()["kv_events"], Value::Null);
    assert!(!without.get("/metrics").text().contains("kv_events"));
}

#[test]
fn faults_of_the_stream_are_switched_over_http() {
    let server = Server::start(with_events(Format::Default, 1));
    let faults = server.ask("/admin/faults", &json!({"drop_events": 3, "wrong_seq": "reset"}));
    assert_eq!(faults["drop_events"], json!({"every": 3, "mode": "live"}));
    assert_eq!(faults["wrong_seq"], json!("reset"));
    let faults =
        server.ask("/admin/faults", &json!({"drop_events": {"every": 1, "mode": "silent"}, "wrong_seq": {"jump": -7}}));
    assert_eq!(faults["drop_events"], json!({"every": 1, "mode": "silent"}));
    assert_eq!(faults["wrong_seq"], json!({"jump": -7}));
    for wrong in [json!({"drop_events": 0}), json!({"drop_events": "all"}), json!({"wrong_seq": 3})] {
        assert_eq!(server.post("/admin/faults", &wrong).status, 400, "{wrong}");
    }
    let faults = server.ask("/admin/faults", &json!({"drop_events": null, "wrong_seq": null}));
    assert_eq!((&faults["drop_events"], &faults["wrong_seq"]), (&Value::Null, &Value::Null));
}

/// A Python that can import what a consumer needs.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("PLIMSOLL_PYTHON").filter(|path| !path.is_empty()).map(PathBuf::from);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let python = named.unwrap_or_else(|| root.join(".venv/bin/python"));
    let tried = Command::new(&python).args(["-c", "import zmq, msgspec"]).output();
    tried.is_ok_and(|output| output.status.success()).then_some(python)
}

/// Names of the full pages of a prompt, as the consumer should learn them.
fn sglang_names(tokens: &[u32], salt: Option<&str>) -> Vec<Value> {
    let mut chain = Chain::new(16, salt.map(salt_seed));
    chain.extend(tokens);
    chain.digests().iter().map(|digest| json!(event_hash(digest))).collect()
}

fn vllm_names(tokens: &[u32], salt: Option<&str>) -> Vec<Value> {
    let mut last: Digest = none_digest(vllm_hash::NONE_SEED);
    let pages = tokens.chunks_exact(16).enumerate();
    pages
        .map(|(index, page)| {
            let extra: Vec<_> = salt.filter(|_| index == 0).map(ExtraKey::CacheSalt).into_iter().collect();
            last = block_digest(&last, page, &extra);
            json!(vllm_hash::event_hash(&last))
        })
        .collect()
}

#[test]
fn a_stock_consumer_reads_every_form() {
    let Some(python) = python() else {
        eprintln!("passed over a_stock_consumer_reads_every_form: no Python with zmq and msgspec");
        return;
    };
    type Names = fn(&[u32], Option<&str>) -> Vec<Value>;
    let forms: [(Format, &str, Names); 3] = [
        (Format::Default, "map", sglang_names),
        (Format::SglangArray, "array", sglang_names),
        (Format::Vllm, "map", vllm_names),
    ];
    for (format, form, names) in forms {
        let server = Server::start(with_events(format, 1));
        let events = server.get("/server_info").json()["kv_events"].clone();
        let endpoint = |key: &str| format!("tcp://127.0.0.1:{}", events[key]);
        let mut consumer = Command::new(&python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/kv_events_consumer.py"))
            .args([&endpoint("endpoint_port_base"), &endpoint("replay_endpoint_port_base"), "kv", form])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(consumer.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        // 1: stored; 2: stored under a salt; 3: a flush. One prompt at a time, one step each.
        let (first, second, third): (Vec<u32>, Vec<u32>, Vec<u32>) =
            ((300..350).collect(), (300..340).collect(), (500..533).collect());
        generate(&server, first.clone(), &json!({}));
        wait_batches(&server, 0, 1);
        assert_eq!(server.get("/flush_cache").status, 200);
        wait_batches(&server, 0, 2);
        // From here on only the replay knows.
        server.ask("/admin/faults", &json!({"drop_events": 1}));
        generate(&server, second.clone(), &json!({"cache_salt": "tenant-a", "session_id": "s"}));
        wait_batches(&server, 0, 3);
        server.ask("/admin/faults", &json!({"drop_events": null}));
        generate(&server, third.clone(), &json!({}));
        consumer.stdin.take().unwrap().write_all(b"4\n").unwrap();
        line.clear();
        said.read_line(&mut line).unwrap();
        assert!(consumer.wait().unwrap().success());
        let seen: Value = serde_json::from_str(&line).unwrap();
        let mut expected = [names(&second, Some("tenant-a")), names(&third, None)].concat();
        expected.sort_by_key(|name| name.as_i64().map_or(i128::from(name.as_u64().unwrap_or(0)), i128::from));
        assert_eq!(seen["names"], json!({"GPU": expected}), "{format:?}: {seen}");
        assert_eq!((&seen["stored"], &seen["cleared"]), (&json!(3), &json!(1)));
        let tokens: Vec<u32> = [&first[..48], &second[..32], &third[..32]].concat();
        assert_eq!(seen["tokens"], json!(tokens));
        assert_eq!(seen["salts"], json!([null, "tenant-a", null]));
        if format != Format::SglangArray {
            assert_eq!(seen["sessions"], json!([null, "s", null]));
        }
        assert!(seen["replayed"].as_u64() >= Some(1) && seen["req"] == json!([0]), "{seen}");
    }
}
