//! One child process: started, watched, its log kept, ended.

use super::stdin_guard;
use crate::Failure;
use std::collections::VecDeque;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, Command};
use tokio::sync::oneshot;

/// The first start on a slow machine draws the model's weights.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a process may take to finish what it is doing before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// A child that logs without end fills no disk.
const LOG_LIMIT_BYTES: u64 = 16 << 20;
const LAST_LINES: usize = 12;

pub(crate) struct Process {
    pub(crate) name: String,
    /// What follows `listening on `.
    pub(crate) listening: String,
    child: Child,
    ended: bool,
    /// Closing it asks the child to end.
    stdin: Option<ChildStdin>,
    log: PathBuf,
    last_lines: Arc<Mutex<VecDeque<String>>>,
}

impl Process {
    /// Starts this program with `args` and waits until it says that it listens.
    pub(crate) async fn start(
        name: &str,
        args: &[String],
        env: &[(&str, &str)],
        folder: &Path,
    ) -> Result<Process, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::failed(format!("cannot find the program's own file: {error}")))?;
        let mut command = Command::new(program);
        command.args(args).arg(stdin_guard::FLAG).envs(env.iter().copied());
        // A process group of its own: Ctrl-C reaches the demo alone, which then ends its children in order.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Failure::failed(format!("cannot start {name}: {error}")))?;
        let log = folder.join(format!("{}.log", name.replace(' ', "-")));
        let last_lines = Arc::new(Mutex::new(VecDeque::new()));
        let (announce, announced) = oneshot::channel();
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(drain(stderr, log.clone(), Arc::clone(&last_lines), announce));
        }
        let stdin = child.stdin.take();
        let mut process =
            Process { name: name.to_owned(), listening: String::new(), child, ended: false, stdin, log, last_lines };
        process.listening = match tokio::time::timeout(START_LIMIT, announced).await {
            Ok(Ok(listening)) => listening,
            Ok(Err(_)) => return Err(Failure::failed(process.how_it_died().await)),
            Err(_) => {
                return Err(Failure::failed(format!(
                    "{name} did not say within {} s that it listens; its last lines:\n{}",
                    START_LIMIT.as_secs(),
                    process.last_lines()
                )));
            }
        };
        Ok(process)
    }

    /// True once, after the process ended without being asked to.
    pub(crate) fn has_just_ended(&mut self) -> bool {
        let ended = !self.ended && matches!(self.child.try_wait(), Ok(Some(_)));
        self.ended |= ended;
        ended
    }

    /// Completes when the process ends, with what to tell the user.
    pub(crate) async fn how_it_died(&mut self) -> String {
        let status = match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        // Its last words may still be in the pipe.
        tokio::time::sleep(Duration::from_millis(50)).await;
        format!("{} ended by itself ({status}); its last lines:\n{}", self.name, self.last_lines())
    }

    /// Asks the process to end, kills it when it does not, reaps it.
    pub(crate) async fn stop(mut self) {
        drop(self.stdin.take());
        if tokio::time::timeout(STOP_LIMIT, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }

    fn last_lines(&self) -> String {
        let lines = self.last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<String> = lines.iter().map(|line| format!("  {line}")).collect();
        format!("{}\n  (all of them: {})", lines.join("\n"), self.log.display())
    }
}

/// Reads the child's stderr to its end, so that the child never blocks on a full pipe.
async fn drain(
    stderr: ChildStderr,
    log: PathBuf,
    last_lines: Arc<Mutex<VecDeque<String>>>,
    announce: oneshot::Sender<String>,
) {
    let mut file = std::fs::File::create(&log).ok();
    let mut reader = BufReader::new(stderr);
    let (mut announce, mut written) = (Some(announce), 0u64);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(64 << 10).read_until(b'\n', &mut line).await {
            Ok(1..) => {}
            _ => return,
        }
        if let Some(file) = file.as_mut().filter(|_| written < LOG_LIMIT_BYTES) {
            written += line.len() as u64;
            let _ = file.write_all(&line);
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if let Some((_, listening)) = text.split_once("listening on ")
            && let Some(announce) = announce.take()
        {
            let _ = announce.send(listening.to_owned());
        }
        let mut last = last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(text);
    }
}
