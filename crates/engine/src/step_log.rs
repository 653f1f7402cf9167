//! What each step computed and how long it took, one JSON object a line.
//!
//! A cost model can be fitted to an engine only from the engine's own steps: a client sees them through queues, batches and
//! sockets. The step loop hands a record over and goes on; a thread of its own writes. When that falls behind, records are
//! left out and counted, because a slow disk must not slow the steps that are measured.

use plimsoll_timing::StepShape;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Records that wait for the writer.
const MOST_WAITING: usize = 4_096;
/// How long an engine that ends waits for its last lines to be written.
const MOST_AT_THE_END: Duration = Duration::from_secs(2);
/// A reader of the file is at most so far behind.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// One step of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepLine {
    /// Joint steps before this one.
    pub step: u64,
    pub rank: usize,
    /// Since the engine was started.
    pub begun_ns: u64,
    /// Of the whole turn of the step loop: taking requests in, deciding, computing, posting; of all ranks together.
    pub wall_ns: u64,
    /// Processor time of the step thread in it, which leaves out what other threads of the arithmetic take.
    pub cpu_ns: u64,
    pub decodes: u64,
    /// Sum of the contexts that they attend to.
    pub decode_tokens: u64,
    pub longest_decode_tokens: u64,
    /// New tokens and cached ones before them, by chunk of a prompt.
    pub chunks: Vec<(u64, u64)>,
    /// Rows of the language-model head.
    pub outputs: u64,
}

impl StepLine {
    /// What was computed, as the cost model is asked for it. Which chunks end their prompt is not told, only how many: to the
    /// model it is the same.
    #[must_use]
    pub fn shape(&self) -> StepShape {
        let mut shape = StepShape::default();
        shape.add_decodes(self.decodes, self.decode_tokens, self.longest_decode_tokens);
        let ends = self.outputs.saturating_sub(self.decodes);
        for (nth, (new, cached)) in self.chunks.iter().enumerate() {
            shape.add_prefill(*new, *cached, (nth as u64) < ends);
        }
        shape
    }
}

/// The step loop's end of it.
#[derive(Debug)]
pub(crate) struct StepLog {
    lines: Option<SyncSender<StepLine>>,
    writer: Option<JoinHandle<()>>,
    origin: Instant,
    /// When the turn began that is under way.
    turn: Instant,
    steps: u64,
    lost: Arc<AtomicU64>,
    /// Of the step that is not over: what each rank computes.
    shapes: Vec<(usize, StepShape)>,
}

impl StepLog {
    /// # Errors
    /// When the writer's thread cannot start.
    pub(crate) fn new(file: File) -> std::io::Result<StepLog> {
        let (lines, received) = sync_channel(MOST_WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let writer = std::thread::Builder::new().name("engine-step-log".to_owned()).spawn({
            let lost = Arc::clone(&lost);
            move || write(file, &received, &lost)
        })?;
        let now = Instant::now();
        Ok(StepLog {
            lines: Some(lines),
            writer: Some(writer),
            origin: now,
            turn: now,
            steps: 0,
            lost,
            shapes: Vec::new(),
        })
    }

    /// A pause is over: it is no part of the next turn.
    pub(crate) fn resume(&mut self) {
        self.turn = Instant::now();
    }

    /// What a rank computes in this step.
    pub(crate) fn computes(&mut self, rank: usize, shape: StepShape) {
        self.shapes.push((rank, shape));
    }

    /// The turn is over, with or without a step in it.
    pub(crate) fn end(&mut self, cpu: Duration) {
        let now = Instant::now();
        let begun = std::mem::replace(&mut self.turn, now);
        if self.shapes.is_empty() {
            return;
        }
        let ns = |time: Duration| time.as_nanos() as u64;
        for (rank, shape) in self.shapes.drain(..) {
            let line = StepLine {
                step: self.steps,
                rank,
                begun_ns: ns(begun.saturating_duration_since(self.origin)),
                wall_ns: ns(now.saturating_duration_since(begun)),
                cpu_ns: ns(cpu),
                decodes: shape.decodes(),
                decode_tokens: shape.decode_tokens(),
                longest_decode_tokens: shape.longest_decode_tokens(),
                chunks: shape.chunks().iter().map(|chunk| (chunk.new_tokens, chunk.cached_tokens)).collect(),
                outputs: shape.outputs(),
            };
            if self.lines.as_ref().is_none_or(|lines| lines.try_send(line).is_err()) {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.steps += 1;
    }
}

impl Drop for StepLog {
    fn drop(&mut self) {
        // The writer ends when nobody can send any more, unless its file takes nothing: then it is left to the process's end.
        self.lines = None;
        let until = Instant::now() + MOST_AT_THE_END;
        while self.writer.as_ref().is_some_and(|writer| !writer.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn write(file: File, lines: &Receiver<StepLine>, lost: &AtomicU64) {
    let mut file = BufWriter::new(file);
    let mut flushed = Instant::now();
    let mut told = 0;
    loop {
        let written = match lines.recv_timeout(FLUSH_EVERY) {
            Ok(line) => {
                serde_json::to_writer(&mut file, &line).map_err(Into::into).and_then(|()| file.write_all(b"\n"))
            }
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let written = written.and_then(|()| {
            if flushed.elapsed() < FLUSH_EVERY {
                Ok(())
            } else {
                flushed = Instant::now();
                file.flush()
            }
        });
        if let Err(error) = written {
            tracing::error!(%error, "the step log cannot be written: steps go on without it");
            return;
        }
        let lost = lost.load(Ordering::Relaxed);
        if lost > told {
            tracing::warn!(steps = lost - told, "steps are missing in the step log: its file is too slow");
            told = lost;
        }
    }
    let _ = file.flush();
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_step_is_a_line_and_a_pause_is_none() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut log = StepLog::new(File::create(path.path()).unwrap()).unwrap();
        for step in 0..3 {
            let mut shape = StepShape::default();
            shape.add_decode(100 + step);
            shape.add_prefill(8, 16, true);
            std::thread::sleep(Duration::from_millis(30));
            log.resume();
            log.computes(0, shape.clone());
            log.computes(1, shape);
            log.end(Duration::from_micros(step + 1));
            // Nothing was computed.
            log.end(Duration::ZERO);
        }
        drop(log);
        let text = std::fs::read_to_string(path.path()).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 6);
        for (nth, line) in lines.iter().enumerate() {
            let step = nth as u64 / 2;
            let of = |name: &str| line[name].as_u64().unwrap();
            assert_eq!((of("step"), of("rank"), of("cpu_ns")), (step, nth as u64 % 2, (step + 1) * 1_000));
            assert_eq!((of("decodes"), of("decode_tokens"), of("outputs")), (1, 100 + step, 2));
            assert_eq!(line["chunks"], serde_json::json!([[8, 16]]));
            assert!(of("wall_ns") < 25_000_000 && of("begun_ns") >= 30_000_000 * (step + 1), "{line}");
        }
    }

    #[test]
    fn a_writer_that_is_behind_loses_steps_and_delays_none() {
        // A pipe that nobody reads is full after 64 KiB.
        let (reader, writer) = std::io::pipe().unwrap();
        let mut log = StepLog::new(File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
        let begun = Instant::now();
        for _ in 0..MOST_WAITING * 3 {
            let mut shape = StepShape::default();
            shape.add_decode(1);
            log.computes(0, shape);
            log.end(Duration::ZERO);
        }
        assert!(log.lost.load(Ordering::Relaxed) > 0 && begun.elapsed() < Duration::from_secs(5));
        let begun = Instant::now();
        drop(log);
        assert!(begun.elapsed() < MOST_AT_THE_END * 3);
        drop(reader);
    }
}
