//! How far a run is: a bar with what is left, where somebody looks at it; and the log of requests.

use crate::Failure;
use crate::commands::outputs::Output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll_sim::{Finished, Question, Status, Watcher};
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

pub(super) struct Progress {
    bar: ProgressBar,
    log: Option<Output>,
    failed: Option<String>,
}

impl Progress {
    pub(super) fn new(question: &Question, log: Option<Output>) -> Self {
        let bar = ProgressBar::no_length();
        if std::io::stderr().is_terminal() {
            // Only for somebody who looks is the trace read twice.
            let sessions = can_be_read_twice(question).then(|| question.sessions().ok()).flatten();
            let calls = sessions
                .map(|sessions| sessions.source.map_while(Result::ok).map(|session| session.calls.len() as u64).sum());
            bar.set_length(calls.unwrap_or(0));
            let template = "{bar:30} {pos}/{len} requests, {per_sec}, {eta} left, {msg}";
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(200));
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Progress { bar, log, failed: None }
    }

    /// Nothing more comes; the log of requests, to be kept if all went well.
    pub(super) fn end(self) -> Result<Option<Output>, Failure> {
        self.bar.finish_and_clear();
        match self.failed {
            None => Ok(self.log),
            Some(why) => Err(Failure::failed(format!("the log of requests cannot be written: {why}"))),
        }
    }
}

/// A pipe is empty the second time.
pub(super) fn can_be_read_twice(question: &Question) -> bool {
    std::iter::once(&question.trace).chain(question.also.iter().map(|(path, _)| path)).all(|path| path.is_file())
}

impl Watcher for Progress {
    fn status(&mut self, status: &Status) -> bool {
        self.bar.set_position(status.ended);
        self.bar.set_message(format!("at {:.0} s, {} in flight", status.now.as_secs_f64(), status.in_flight));
        self.failed.is_none()
    }

    fn finished(&mut self, one: &Finished) {
        if let Some(log) = &mut self.log {
            let line = serde_json::to_string(one).unwrap_or_default();
            if let Err(error) = writeln!(log, "{line}") {
                self.failed = Some(error.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_sim::baselines::Policy;
    use std::path::Path;

    #[test]
    fn only_files_are_read_twice() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut question = Question::new(file.path(), "h100-llama3-8b", 1, Policy::Random);
        assert!(can_be_read_twice(&question));
        question.also = vec![(Path::new("/dev/null").to_owned(), 1.0)];
        assert!(!can_be_read_twice(&question));
    }
}
