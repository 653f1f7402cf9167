//! Built-in engines as processes of their own, alone or as a pair of which one prefills and the other decodes.

use crate::client::{Answer, ask};
use crate::process::Process;
use crate::{PATIENCE, binaries, wait};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A running `plimsoll engine`.
pub struct EngineProcess {
    pub process: Process,
    pub addr: SocketAddr,
}

impl EngineProcess {
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(args: &[&str]) -> EngineProcess {
        EngineProcess::start_at("127.0.0.1:0", args)
    }

    /// At a given address, as after a restart.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_at(listen: &str, args: &[&str]) -> EngineProcess {
        let mut command = Command::new(binaries::plimsoll());
        command.args(["engine", "--listen", listen, "--faults"]).args(args);
        let mut process = match Process::start("plimsoll engine", &mut command) {
            Ok(process) => process,
            Err(error) => panic!("{error:#}"),
        };
        let line = process.wait_line("plimsoll engine: listening on ");
        match line.rsplit("://").next().map(str::parse) {
            Some(Ok(addr)) => EngineProcess { process, addr },
            _ => panic!("cannot read the address from: {line}"),
        }
    }

    /// A POST with a JSON body, or a GET for `null`.
    ///
    /// # Panics
    /// When there is no whole answer.
    pub async fn ask(&self, path: &str, body: &Value) -> Answer {
        match body {
            Value::Null => ask(self.addr, "GET", path, &[], &[]).await,
            body => ask(self.addr, "POST", path, &[], body.to_string().as_bytes()).await,
        }
    }

    /// The first rank's entry of `/v1/loads`.
    ///
    /// # Panics
    /// When it does not answer.
    pub async fn load(&self) -> Value {
        self.ask("/v1/loads", &Value::Null).await.json()["loads"][0].clone()
    }

    /// Waits until `/v1/loads` shows something.
    ///
    /// # Panics
    /// When it never does.
    pub async fn until(&self, what: &str, seen: impl Fn(&Value) -> bool) -> Value {
        wait::eventually(what, PATIENCE, || async {
            let load = self.load().await;
            if seen(&load) { Ok(load) } else { Err(load) }
        })
        .await
    }

    /// Waits until nothing runs, waits, is on its way, or holds KV.
    ///
    /// # Panics
    /// When something stays.
    pub async fn empty(&self) {
        self.until("an engine that holds nothing", |load| {
            let zero = |value: &Value| value.as_u64() == Some(0);
            let legs = load["disaggregation"].as_object().into_iter().flatten();
            let mut queues = legs.filter(|(name, _)| name.ends_with("_queue_reqs"));
            ["num_running_reqs", "num_waiting_reqs", "num_used_tokens"].iter().all(|name| zero(&load[*name]))
                && queues.all(|(_, value)| zero(value))
        })
        .await;
    }
}

/// A prefill and a decode engine. [`Self::both`] does what SGLang's router does.
pub struct PrefillDecode {
    pub prefill: EngineProcess,
    pub decode: EngineProcess,
    /// Where decode engines call.
    pub bootstrap_port: u64,
}

impl PrefillDecode {
    /// Both get `args`; on the prefill engine `prefill_args` come last.
    ///
    /// # Panics
    /// When one does not start.
    pub async fn start(args: &[&str], prefill_args: &[&str]) -> PrefillDecode {
        let role = |role: &'static str, more: &[&'static str]| [&["--role", role], more].concat();
        let prefill = [&role("prefill", &["--disaggregation-bootstrap-port", "0"])[..], args, prefill_args].concat();
        let prefill = EngineProcess::start(&prefill);
        let decode = EngineProcess::start(&[&role("decode", &[])[..], args].concat());
        let info = prefill.ask("/server_info", &Value::Null).await.json();
        let Some(bootstrap_port) = info["disaggregation_bootstrap_port"].as_u64() else {
            panic!("no bootstrap port in {info}")
        };
        PrefillDecode { prefill, decode, bootstrap_port }
    }

    /// The body for both legs, in a fresh room.
    ///
    /// # Panics
    /// When the body is no object.
    #[must_use]
    pub fn body(&self, body: &Value) -> Value {
        static ROOM: AtomicU64 = AtomicU64::new(1);
        let mut body = body.clone();
        body["bootstrap_host"] = json!("127.0.0.1");
        body["bootstrap_port"] = json!(self.bootstrap_port);
        body["bootstrap_room"] = json!(ROOM.fetch_add(1, Ordering::Relaxed));
        body
    }

    /// Sends both legs at once; the answers of prefill and decode.
    ///
    /// # Panics
    /// When one does not answer.
    pub async fn both(&self, path: &str, body: &Value) -> (Answer, Answer) {
        let body = self.body(body);
        tokio::join!(self.prefill.ask(path, &body), self.decode.ask(path, &body))
    }

    /// Waits until decode takes in pages of one request, and says how long that may last: as long as prefill computes.
    ///
    /// # Panics
    /// When it never does.
    pub async fn in_transfer(&self) {
        self.decode.until("pages on their way", |load| load["disaggregation"]["decode_transfer_queue_reqs"] == 1).await;
        self.prefill.until("a prompt being computed", |load| load["num_running_reqs"] == 1).await;
    }
}

/// Longer than any of these engines' own deadlines, far below SGLang's 300 s.
pub const SOON: Duration = Duration::from_secs(15);
