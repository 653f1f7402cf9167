//! The step loop's time, so that a test can make it up.

use std::fmt::Debug;
use std::time::Instant;

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
