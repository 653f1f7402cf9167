//! A running request moves from one engine process to another, over HTTP and TCP, and its reader cannot tell.

use crate::client::{Answer, PATIENCE, Server, config, parse_events, send};
use plimsoll_engine::EngineConfig;
use plimsoll_engine::migration::MigrationConfig;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

mod failures;
mod moves;
mod refusals;

const MARK: &str = "PLIMSOLL_TEST_MIGRATION_CHILD";

/// One that can migrate, small and slow enough to be caught in the middle.
fn movable() -> EngineConfig {
    let migration = MigrationConfig {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        deadline: Duration::from_secs(2),
        ..MigrationConfig::default()
    };
    EngineConfig { migration, step_delay: Duration::from_millis(2), incremental_streaming: true, ..config() }
}

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    let server = Server::start(movable());
    println!("at {}", server.address);
    // Until the parent goes away.
    let _ = std::io::stdin().read(&mut [0]);
}

/// An engine in a process of its own.
struct Engine {
    child: Child,
    address: SocketAddr,
}

impl Engine {
    fn start() -> Engine {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "migration::child", "--nocapture"])
            .env(MARK, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().unwrap().unwrap();
            if let Some((_, address)) = line.split_once("at 127") {
                break format!("127{address}").parse().unwrap();
            }
        };
        Engine { child, address }
    }

    /// SIGKILL.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        send(self.address, "POST", path, "", &body.to_string())
    }

    /// A verb of migration `m`: status and answer.
    fn try_verb(&self, verb: &str, body: &Value) -> (u16, Value) {
        let answer = self.post(&format!("/plimsoll/v1/migrations/m/{verb}"), body);
        (answer.status, answer.json())
    }

    fn verb(&self, verb: &str, body: &Value) -> Value {
        let (status, answer) = self.try_verb(verb, body);
        assert_eq!(status, 200, "{verb}: {answer}");
        answer
    }

    fn look(&self) -> Value {
        send(self.address, "GET", "/plimsoll/v1/migrations/m", "", "").json()
    }

    /// Waits until the migration is in this state.
    fn wait_state(&self, state: &str) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let report = self.look();
            if report["state"] == state {
                return report;
            }
            assert!(Instant::now() < until, "never {state}: {report}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Nothing runs, waits or is held.
    fn wait_empty(&self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let loads: Value = send(self.address, "GET", "/v1/loads", "", "").json();
            let load = &loads["loads"][0];
            if ["num_running_reqs", "num_waiting_reqs", "num_used_tokens"].iter().all(|name| load[*name] == 0) {
                // And the cache can be emptied: no migration holds anything.
                assert_eq!(self.post("/flush_cache", &json!({})).status, 200);
                return;
            }
            assert!(Instant::now() < until, "still held: {load}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A stream of increments, as far as it was read.
#[derive(Default)]
struct Heard {
    ids: Vec<u64>,
    text: String,
    finish: Value,
}

impl Heard {
    fn add(&mut self, chunk: &str) {
        for event in parse_events(chunk.strip_suffix("data: [DONE]\n\n").unwrap_or(chunk)) {
            self.ids.extend(event["output_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()));
            self.text.push_str(event["text"].as_str().unwrap());
            self.finish = event["meta_info"]["finish_reason"].clone();
            assert_eq!(event["meta_info"]["completion_tokens"], self.ids.len());
        }
    }

    /// At least so many tokens.
    fn until(&mut self, stream: &mut Answer, tokens: usize) {
        while self.ids.len() < tokens {
            let chunk = stream.chunk().unwrap().unwrap();
            self.add(&chunk);
        }
    }

    fn rest(&mut self, mut stream: Answer) {
        while let Some(chunk) = stream.chunk().unwrap() {
            self.add(&chunk);
        }
    }

    fn said(&self) -> (&[u64], &str, &Value) {
        (&self.ids, &self.text, &self.finish)
    }
}

const LENGTH: usize = 300;

fn request(rid: &str) -> Value {
    let words: Vec<u32> = (0..200).map(|at| 300 + at * 13 % 600).collect();
    let params = json!({
        "max_new_tokens": LENGTH, "temperature": 0.8, "sampling_seed": 4, "ignore_eos": true,
        "frequency_penalty": 0.3,
    });
    json!({"rid": rid, "input_ids": words, "sampling_params": params, "stream": true})
}

/// What the request says when nobody moves it.
fn unmoved(engine: &Engine) -> Heard {
    let mut read = Heard::default();
    read.rest(engine.post("/generate", &request("unmoved")));
    assert_eq!((read.ids.len(), &read.finish["type"]), (LENGTH, &json!("length")));
    assert_eq!(engine.post("/flush_cache", &json!({})).status, 200);
    read
}

/// A pair of engines, and a request that has said 40 tokens at the first.
struct Scene {
    source: Engine,
    target: Engine,
    stream: Answer,
    read: Heard,
    whole: Heard,
}

impl Scene {
    fn new() -> Scene {
        let (source, target) = (Engine::start(), Engine::start());
        let whole = unmoved(&source);
        let mut stream = source.post("/generate", &request("r"));
        let mut read = Heard::default();
        read.until(&mut stream, 40);
        Scene { source, target, stream, read, whole }
    }

    /// Reserved and started, as the driver says it besides; returns what `reserve` answered.
    fn start(&self, more: &Value) -> Value {
        let merged = |base: &Value| {
            let mut body = base.clone();
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let offered = self.source.verb("offer", &merged(&json!({"rid": "r"})));
        let reserved = self.target.verb("reserve", &merged(&offered));
        self.source.verb("start", &reserved);
        reserved
    }

    /// All the rest comes from the source, and both sides are empty.
    fn completes_at_source(mut self) {
        self.read.rest(self.stream);
        assert_eq!(self.read.said(), self.whole.said());
        self.source.wait_empty();
    }
}
