//! A prefill and a decode engine over real sockets, driven as SGLang's router drives them: the same body to both.

use crate::client::{Server, config};
use plimsoll_engine::EngineConfig;
use plimsoll_engine::disagg::{DisaggConfig, Role};
use plimsoll_engine::transfer::Secret;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{JoinHandle, scope};
use std::time::{Duration, Instant};

mod failures;
mod legs;

/// Generous, but far from SGLang's 300 s.
const SOON: Duration = Duration::from_secs(20);

fn disagg(role: Role) -> DisaggConfig {
    DisaggConfig { role, bootstrap_port: 0, handshake: SOON, deadline: SOON, ..DisaggConfig::default() }
}

fn engine(role: Role) -> EngineConfig {
    EngineConfig { disagg: disagg(role), ..config() }
}

struct Pair {
    prefill: Server,
    decode: Server,
    port: u64,
}

impl Pair {
    fn new() -> Pair {
        Pair::of(engine(Role::Prefill), engine(Role::Decode))
    }

    fn of(prefill: EngineConfig, decode: EngineConfig) -> Pair {
        let prefill = Server::start(prefill);
        let port = prefill.get("/server_info").json()["disaggregation_bootstrap_port"].as_u64().unwrap();
        Pair { prefill, decode: Server::start(decode), port }
    }

    /// The body with what brings the legs together, in a fresh room.
    fn body(&self, body: &Value) -> Value {
        with(body, &json!({"bootstrap_host": "127.0.0.1", "bootstrap_port": self.port, "bootstrap_room": room()}))
    }

    /// Both legs at once: status and text of each.
    fn both(&self, path: &str, body: &Value) -> [(u16, String); 2] {
        let body = self.body(body);
        scope(|scope| {
            let prefill = scope.spawn(|| answer(&self.prefill, path, &body));
            let decode = answer(&self.decode, path, &body);
            [prefill.join().unwrap(), decode]
        })
    }

    /// As [`Self::both`]; both must succeed.
    fn ask(&self, path: &str, body: &Value) -> [Value; 2] {
        self.both(path, body).map(|(status, text)| {
            assert_eq!(status, 200, "{path} {body}: {text}");
            serde_json::from_str(&text).unwrap()
        })
    }

    fn wait_empty(&self) {
        for server in [&self.prefill, &self.decode] {
            server.wait_load("nothing in flight", |load| {
                let legs = &load["disaggregation"];
                let queues = [
                    "prefill_bootstrap_queue_reqs",
                    "prefill_inflight_queue_reqs",
                    "decode_prealloc_queue_reqs",
                    "decode_transfer_queue_reqs",
                ];
                ["num_running_reqs", "num_waiting_reqs", "num_used_tokens"].iter().all(|name| load[*name] == 0)
                    && queues.iter().all(|name| legs[*name] == 0)
            });
        }
    }
}

fn answer(server: &Server, path: &str, body: &Value) -> (u16, String) {
    let answer = server.post(path, body);
    (answer.status, answer.text())
}

fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn room() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    NEXT.fetch_add(1000, Ordering::Relaxed)
}

fn prompt(words: usize) -> String {
    (0..words).map(|index| format!(" {}", plimsoll_engine::word(index * 7))).collect()
}

fn generate(words: usize, tokens: usize) -> Value {
    json!({
        "text": prompt(words),
        "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": true},
    })
}

fn metric(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with(&format!("sglang:{name}{{")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}
