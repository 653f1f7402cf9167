//! The step loop's time, so that a test can make it up.

use rustix::time::{ClockId, clock_gettime};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Processor time of this thread so far.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Monotonic time, and waiting for it.
pub(crate) trait Clock: Debug + Send {
    fn now(&self) -> Instant;

    /// Returns at `at` or a little later; at once when it has passed.
    fn sleep_until(&self, at: Instant);
}

/// The machine's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep_until(&self, at: Instant) {
        let rest = at.saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
}
