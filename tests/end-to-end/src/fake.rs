//! A fake engine as a process of its own, for what cannot be done to a task: freeze, kill, restart.

use crate::client::ask;
use crate::process::Process;
use crate::{binaries, wait};
use plimsoll_fakes::{Control, Dialect, Snapshot};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

/// A running `fake-engine`.
pub struct FakeProcess {
    pub process: Process,
    pub addr: SocketAddr,
}

impl FakeProcess {
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(dialect: Dialect, args: &[&str]) -> FakeProcess {
        FakeProcess::start_at("127.0.0.1:0", dialect, args)
    }

    /// At a given address, as after a restart.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_at(listen: &str, dialect: Dialect, args: &[&str]) -> FakeProcess {
        let dialect = format!("{dialect:?}").to_lowercase();
        let mut command = Command::new(binaries::fake_engine());
        command.args(["--listen", listen, "--dialect", &dialect]).args(args);
        let mut process = match Process::start("fake-engine", &mut command) {
            Ok(process) => process,
            Err(error) => panic!("{error:#}"),
        };
        let line = process.wait_line("fake-engine: listening on ");
        match line.rsplit("://").next().map(str::parse) {
            Some(Ok(addr)) => FakeProcess { process, addr },
            _ => panic!("cannot read the address from: {line}"),
        }
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// # Panics
    /// When it does not answer.
    pub async fn snapshot(&self) -> Snapshot {
        let answer = ask(self.addr, "GET", "/_ctl", &[], &[]).await;
        match serde_json::from_slice(&answer.body) {
            Ok(snapshot) => snapshot,
            Err(error) => panic!("not a snapshot: {error}: {}", answer.text()),
        }
    }

    /// # Panics
    /// When it does not take it.
    pub async fn control(&self, control: &Control) {
        let body = serde_json::json!(control).to_string();
        let answer = ask(self.addr, "POST", "/_ctl", &[], body.as_bytes()).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }

    /// Waits for something to be seen.
    ///
    /// # Panics
    /// When it is not within `within`.
    pub async fn until(&self, what: &str, within: Duration, seen: impl Fn(&Snapshot) -> bool) -> Snapshot {
        wait::eventually(what, within, || async {
            let snapshot = self.snapshot().await;
            if seen(&snapshot) { Ok(snapshot) } else { Err(snapshot) }
        })
        .await
    }
}
