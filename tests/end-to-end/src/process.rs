//! A child process that cannot outlive its test.

use crate::wait::PATIENCE;
use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines of stderr that are kept.
const KEPT_LINES: usize = 4_000;

#[derive(Default)]
struct Said {
    lines: Mutex<VecDeque<String>>,
    more: Condvar,
}

/// A running child. Dropping it kills and reaps it; a failing test gets its last lines.
pub struct Process {
    child: Child,
    name: String,
    said: Arc<Said>,
}

impl Process {
    /// Starts a program; its stdout and stderr are kept line by line.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(name: &str, command: &mut Command) -> anyhow::Result<Process> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let said = Arc::new(Said::default());
        if let Some(stderr) = child.stderr.take() {
            listen(stderr, said.clone());
        }
        if let Some(stdout) = child.stdout.take() {
            listen(stdout, said.clone());
        }
        Ok(Process { child, name: name.to_owned(), said })
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a line holds `text` and answers it.
    ///
    /// # Panics
    /// When none comes or the child ends first.
    pub fn wait_line(&mut self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let lines = self.said.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(line) = lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            drop(self.said.more.wait_timeout(lines, Duration::from_millis(20)));
            let ended = self.child.try_wait().ok().flatten();
            assert!(ended.is_none(), "{} ended with {ended:?} before it said `{text}`:\n{}", self.name, self.output());
            assert!(Instant::now() < end, "{} never said `{text}`:\n{}", self.name, self.output());
        }
    }

    /// Everything it said, stdout and stderr mixed.
    #[must_use]
    pub fn output(&self) -> String {
        let lines = self.said.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().cloned().collect::<Vec<_>>().join("\n")
    }

    /// Sends a signal to this child and to nothing else.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// SIGSTOP: accepts connections (the kernel does), answers nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGKILL, and reaps it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end within `within`.
    pub async fn ended(&mut self, within: Duration) -> ExitStatus {
        let end = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().ok().flatten() {
                return status;
            }
            assert!(Instant::now() < end, "{} did not end within {within:?}:\n{}", self.name, self.output());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Resident memory in bytes, from `/proc`.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1_024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let output = self.output();
            let tail: Vec<&str> = output.lines().rev().take(60).collect();
            eprintln!("--- last lines of {}", self.name);
            for line in tail.iter().rev() {
                eprintln!("{line}");
            }
        }
    }
}

fn listen(from: impl Read + Send + 'static, said: Arc<Said>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut lines = said.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == KEPT_LINES {
                lines.pop_front();
            }
            lines.push_back(line);
            said.more.notify_all();
        }
    });
}
