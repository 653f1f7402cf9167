//! The step logs of engines without timing mode, as samples for a fit and as a word on the machine.

use crate::Failure;
use plimsoll_engine::StepLine;
use plimsoll_timing::fit::Sample;
use serde::Serialize;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A log is written so late at most.
pub(super) const LOG_LAG: Duration = Duration::from_millis(600);

/// What engines did in a while.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    /// Processor time of the step thread.
    pub(super) samples: Vec<Sample>,
    wall_ns: u64,
    cpu_ns: u64,
}

/// Of steps, for people.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Pace {
    pub(super) steps: u64,
    /// Mean, by the clock.
    pub(super) step_ms: f64,
    /// By the clock over the step thread's processor time: 1 where nobody else wanted the machine.
    pub(super) wall_over_cpu: f64,
}

impl Steps {
    pub(super) fn pace(&self) -> Pace {
        let steps = self.samples.len() as u64;
        Pace {
            steps,
            step_ms: self.wall_ns as f64 / 1e6 / steps.max(1) as f64,
            wall_over_cpu: self.wall_ns as f64 / self.cpu_ns.max(1) as f64,
        }
    }
}

/// Logs that are still being written, read piece by piece.
pub(super) struct Logs(Vec<(PathBuf, u64)>);

impl Logs {
    /// Of so many engines with their logs in this folder.
    pub(super) fn new(folder: &Path, engines: u32) -> Logs {
        Logs((0..engines).map(|engine| (folder.join(name(&engine.to_string())), 0)).collect())
    }

    /// All lines since the last time that are whole.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub(super) fn read(&mut self) -> Result<Steps, Failure> {
        let mut steps = Steps::default();
        for (path, from) in &mut self.0 {
            let fails = |what: &dyn std::fmt::Display| Failure::failed(format!("{}: {what}", path.display()));
            let mut file = std::fs::File::open(&path).map_err(|error| fails(&error))?;
            file.seek(SeekFrom::Start(*from)).map_err(|error| fails(&error))?;
            let (mut file, mut text) = (BufReader::new(file), String::new());
            loop {
                text.clear();
                let read = file.read_line(&mut text).map_err(|error| fails(&error))?;
                if read == 0 || !text.ends_with('\n') {
                    break;
                }
                *from += read as u64;
                let line: StepLine = serde_json::from_str(&text).map_err(|error| fails(&error))?;
                steps.samples.push(Sample { shape: line.shape(), us: line.cpu_ns as f64 / 1e3 });
                steps.wall_ns += line.wall_ns;
                steps.cpu_ns += line.cpu_ns;
            }
        }
        Ok(steps)
    }
}

/// Of an engine's log; `{n}` stands for its number where engines are started.
pub(super) fn name(engine: &str) -> String {
    format!("steps-{engine}.jsonl")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn logs_are_read_piece_by_piece_and_whole_lines_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = std::fs::File::create(folder.path().join(name("0"))).unwrap();
        let line = |cpu: u64| {
            format!(
                "{{\"step\":1,\"rank\":0,\"begun_ns\":5,\"wall_ns\":3000,\"cpu_ns\":{cpu},\"decodes\":2,\"decode_tokens\":30,\
                 \"longest_decode_tokens\":20,\"chunks\":[[8,16],[4,0]],\"outputs\":3}}\n"
            )
        };
        write!(file, "{}{}", line(1_000), &line(2_000)[..40]).unwrap();
        let mut logs = Logs::new(folder.path(), 1);
        let first = logs.read().unwrap();
        assert_eq!(first.samples.len(), 1);
        let shape = &first.samples[0].shape;
        assert_eq!((shape.decodes(), shape.decode_tokens(), shape.longest_decode_tokens()), (2, 30, 20));
        assert_eq!((shape.outputs(), shape.new_tokens(), first.samples[0].us), (3, 14, 1.0));
        assert_eq!(first.pace().wall_over_cpu, 3.0);
        write!(file, "{}", &line(2_000)[40..]).unwrap();
        let second = logs.read().unwrap();
        assert_eq!((second.samples.len(), second.samples[0].us), (1, 2.0));
        assert!(logs.read().unwrap().samples.is_empty());
    }
}
