//! The `plimsoll serve` process and its two faces.

use crate::client::{Answer, Connection, ask};
use crate::plan::Plan;
use crate::process::Process;
use crate::wait::{PATIENCE, eventually};
use crate::{binaries, sse};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

/// A running gateway.
pub struct Gateway {
    pub process: Process,
    /// The clients' listener.
    pub addr: SocketAddr,
    /// The operators' listener.
    pub admin: SocketAddr,
    token: Option<String>,
}

impl Gateway {
    /// Starts the process, without waiting for its engines.
    ///
    /// # Panics
    /// When it does not say that it listens.
    #[must_use]
    pub fn launch(plan: &Plan) -> Gateway {
        let mut command = Command::new(binaries::plimsoll());
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(&plan.args);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PLIMSOLL_")) {
            command.env_remove(name);
        }
        let mut process = match Process::start("plimsoll serve", &mut command) {
            Ok(process) => process,
            Err(error) => panic!("{error:#}"),
        };
        let line = process.wait_line("plimsoll serve: listening on ");
        let mut addrs = line.split("://").skip(1).map(|rest| {
            let end = rest.find([' ', ')', '/']).unwrap_or(rest.len());
            rest[..end].parse::<SocketAddr>()
        });
        let (Some(Ok(addr)), Some(Ok(admin))) = (addrs.next(), addrs.next()) else {
            panic!("cannot read the addresses from: {line}");
        };
        Gateway { process, addr, admin, token: plan.token.clone() }
    }

    pub(crate) async fn start(plan: Plan) -> Gateway {
        let gateway = Gateway::launch(&plan);
        let wanted = plan.wait_for.unwrap_or(plan.engines);
        gateway.healthy(wanted, PATIENCE).await;
        gateway
    }

    /// Waits until so many engines are healthy.
    ///
    /// # Panics
    /// When they are not within `within`.
    pub async fn healthy(&self, wanted: usize, within: Duration) {
        eventually(&format!("{wanted} healthy engines"), within, || async {
            let states = self.states().await;
            if states.iter().filter(|state| *state == "healthy").count() >= wanted { Ok(()) } else { Err(states) }
        })
        .await;
    }

    /// `http://ADDR`
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// A POST on a connection of its own.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_raw(path, &[], body.to_string().as_bytes()).await
    }

    /// A POST of these bytes with these headers on a connection of its own.
    pub async fn post_raw(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        ask(self.addr, "POST", path, headers, body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        ask(self.addr, "GET", path, &[], &[]).await
    }

    /// Opens a stream and reads its head.
    pub async fn stream(&self, path: &str, body: &Value) -> Connection {
        let mut connection = Connection::open(self.addr).await;
        connection.post(path, &[], &body.to_string()).await;
        let head = connection.head().await;
        if head.status != 200 {
            let rest = connection.rest().await;
            panic!("the stream was refused with {}: {}", head.status, String::from_utf8_lossy(&rest));
        }
        connection
    }

    /// The events of a whole stream, comments left out.
    pub async fn events(&self, path: &str, body: &Value) -> Vec<sse::Event> {
        let answer = self.post(path, body).await;
        answer.events().into_iter().filter(|event| matches!(event, sse::Event::Data(_))).collect()
    }

    /// A request to the admin listener, with the token where there is one.
    pub async fn admin(&self, method: &str, path: &str, body: &Value) -> Answer {
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = bearer.iter().map(|bearer| ("Authorization", bearer.as_str())).collect();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        ask(self.admin, method, path, &headers, body.as_bytes()).await
    }

    /// `GET /admin/engines`
    pub async fn engines(&self) -> Vec<Value> {
        let answer = self.admin("GET", "/admin/engines", &Value::Null).await;
        answer.json()["engines"].as_array().cloned().unwrap_or_default()
    }

    /// Health of each engine, in the order of the list.
    pub async fn states(&self) -> Vec<String> {
        let engines = self.engines().await;
        engines.iter().map(|engine| engine["state"]["health"].as_str().unwrap_or("unknown").to_owned()).collect()
    }

    /// The id under which the gateway knows the engine at this URL.
    ///
    /// # Panics
    /// When it does not know it.
    pub async fn engine_id(&self, url: &str) -> u64 {
        let engines = self.engines().await;
        let found = engines.iter().find(|engine| {
            engine["url"].as_str().is_some_and(|known| known.trim_end_matches('/') == url.trim_end_matches('/'))
        });
        match found.and_then(|engine| engine["id"].as_u64()) {
            Some(id) => id,
            None => panic!("no engine {url} in {engines:?}"),
        }
    }

    /// The decision record of a request.
    pub async fn record(&self, id: &str) -> Value {
        self.admin("GET", &format!("/debug/requests/{id}"), &Value::Null).await.json()
    }

    /// `/metrics` as text.
    pub async fn metrics(&self) -> String {
        ask(self.admin, "GET", "/metrics", &[], &[]).await.text()
    }

    /// Sum over all series of a metric whose labels hold every one of `labels`.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.metrics().await;
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (series, value) = line.rsplit_once(' ')?;
                let known = series.split('{').next()?;
                (known == name && labels.iter().all(|label| series.contains(label)))
                    .then(|| value.parse::<f64>().ok())
                    .flatten()
            })
            .sum()
    }

    /// `GET /admin/ledger`
    pub async fn ledger(&self) -> Value {
        self.admin("GET", "/admin/ledger", &Value::Null).await.json()
    }

    /// Waits until nothing is charged any more and the ledger's sums hold.
    ///
    /// # Panics
    /// When something stays charged.
    pub async fn settled(&self) {
        let zero =
            json!({"requests": 0, "uncached_prefill_tokens": 0, "reserved_kv_tokens": 0, "entries": 0, "orphans": 0});
        eventually("an empty ledger", PATIENCE, || async {
            let ledger = self.ledger().await;
            let empty = ledger["totals"] == zero && ledger["request_body_bytes"] == 0;
            if !empty || ledger["invariants"] != "hold" {
                return Err(ledger);
            }
            // What a client sent and left at once may be read only now.
            let engines = self.engines().await;
            let ranks = engines.iter().flat_map(|engine| engine["state"]["ranks"].as_array().into_iter().flatten());
            let counters = ["requests", "uncached_prefill_tokens", "reserved_kv_tokens"];
            let is_free = |rank: &Value| counters.iter().all(|counter| rank[counter].as_u64().unwrap_or(0) == 0);
            if ranks.into_iter().all(is_free) { Ok(()) } else { Err(json!(engines)) }
        })
        .await;
    }

    /// The end of every test: nothing is charged, and SIGTERM ends it cleanly.
    ///
    /// # Panics
    /// When a counter is not zero, the process does not end or says that it failed.
    pub async fn finish(mut self) {
        self.settled().await;
        self.process.signal(Signal::TERM);
        let status = self.process.ended(PATIENCE).await;
        assert!(status.success(), "plimsoll serve ended with {status}:\n{}", self.process.output());
        let output = self.process.output();
        assert!(!output.contains("panicked at"), "something panicked:\n{output}");
    }
}
