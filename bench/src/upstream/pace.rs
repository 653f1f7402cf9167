//! Waiting to the microsecond. tokio's timer has steps of a millisecond and rounds up: an engine paced by it would
//! swallow 0.3 ms that a router adds, because both direct and routed requests would be rounded to the same tick.
//! A timerfd has no such steps.

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::os::fd::OwnedFd;
use std::time::Instant;
use tokio::io::unix::AsyncFd;

pub struct Pace {
    timer: AsyncFd<OwnedFd>,
}

impl Pace {
    pub fn new() -> anyhow::Result<Pace> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(deprecated, reason = "its replacement is unsafe; it asks that the fd stays the same, and ours does")]
        let timer = AsyncFd::new(timer)?;
        Ok(Pace { timer })
    }

    /// Returns when `due` has come; at once where it lies in the past.
    pub async fn until(&self, due: Instant) -> anyhow::Result<()> {
        let wait = due.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: i64::try_from(wait.as_secs())?, tv_nsec: i64::from(wait.subsec_nanos()) };
        let once = Itimerspec { it_interval: zero, it_value: value };
        rustix::time::timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.timer.readable().await?;
            let mut expirations = [0u8; 8];
            match ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut expirations)?)) {
                Ok(read) => return Ok(read.map(drop)?),
                Err(_not_yet) => {}
            }
        }
    }
}
