//! The gateway's clock: the one place that turns the machine's time into [`Nanos`] for the decisions.

use plimsoll_core::Nanos;
use std::time::{Duration, Instant};

/// Monotonic time since the gateway started.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    #[must_use]
    pub fn start() -> Self {
        Clock { start: Instant::now() }
    }

    #[must_use]
    pub fn now(&self) -> Nanos {
        nanos(self.start.elapsed())
    }
}

/// Saturating conversion.
#[must_use]
pub fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

#[must_use]
pub fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
