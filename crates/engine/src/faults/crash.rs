//! The end without a last word: the process aborts, sockets break where they are, nothing is cleaned up.

use super::{CrashAfter, FaultSwitch, Faults};
use crate::stats::Stats;
use std::time::Duration;
use tokio::sync::watch;

#[cfg(test)]
mod tests;

/// Counts tokens and steps from the moment the fault is switched on.
#[derive(Debug, Default)]
pub(crate) struct CrashWatch {
    armed: Option<Armed>,
}

#[derive(Debug)]
struct Armed {
    fault: CrashAfter,
    tokens: u64,
    steps: u64,
}

impl CrashWatch {
    /// Aborts the process when it is time. To be called before and after each step.
    pub(crate) fn look(&mut self, faults: &FaultSwitch, ranks: impl Iterator<Item = Stats>) {
        // Ranks step together; one that has nothing to do does not count.
        let (tokens, steps) =
            ranks.fold((0, 0), |(tokens, steps), rank| (tokens + rank.generated_tokens, rank.steps.max(steps)));
        if self.is_due(faults.crash_after(), tokens, steps) {
            now();
        }
    }

    /// Given the fault in force and what was counted since the engine started.
    fn is_due(&mut self, fault: Option<CrashAfter>, tokens: u64, steps: u64) -> bool {
        let Some(fault) = fault else {
            self.armed = None;
            return false;
        };
        if self.armed.as_ref().is_none_or(|armed| armed.fault != fault) {
            self.armed = Some(Armed { fault, tokens, steps });
        }
        let Some(armed) = &self.armed else { return false };
        match fault {
            CrashAfter::Tokens(limit) => tokens - armed.tokens >= limit,
            CrashAfter::Steps(limit) => steps - armed.steps >= limit,
            // Has a thread of its own: it is due while no step runs, too.
            CrashAfter::Seconds(_) => false,
        }
    }
}

/// Aborts after `seconds`, unless the fault is changed or the engine is gone before.
pub(super) fn in_seconds(seconds: u64, faults: watch::Receiver<Faults>) {
    let wait = move || {
        std::thread::sleep(Duration::from_secs(seconds));
        let unchanged = faults.borrow().crash_after == Some(CrashAfter::Seconds(seconds));
        if unchanged && faults.has_changed().is_ok() {
            now();
        }
    };
    if let Err(error) = std::thread::Builder::new().name("fault-crash".to_owned()).spawn(wait) {
        tracing::error!(%error, "cannot start the thread that would crash the engine");
    }
}

fn now() -> ! {
    tracing::error!("the fault crash_after is due: aborting");
    std::process::abort()
}
