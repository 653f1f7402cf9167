//! A timer for the task that delivers, exact to some microseconds: the runtime's own counts milliseconds.

use std::time::Instant;

/// Rings when it is time to look for a bag.
pub(super) trait Alarm: Send + 'static {
    fn now(&self) -> Instant;

    /// In place of what was set before. False: it cannot be set.
    fn set(&mut self, at: Instant) -> bool;

    /// Returns when it has rung since it was set.
    fn rings(&mut self) -> impl Future<Output = ()> + Send;
}

#[cfg(target_os = "linux")]
pub(super) use timer::Timer;

#[cfg(target_os = "linux")]
mod timer {
    use super::Alarm;
    use rustix::fd::OwnedFd;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use std::time::{Duration, Instant};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    /// The kernel's.
    #[derive(Debug)]
    pub(in super::super) struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        /// `None` outside a runtime, or without a file descriptor for it.
        pub(in super::super) fn new() -> Option<Self> {
            tokio::runtime::Handle::try_current().ok()?;
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok()?;
            // What came in its place is unsafe, for types that may close their descriptor; this one does not while it lives.
            #[allow(deprecated)]
            let timer = AsyncFd::with_interest(timer, Interest::READABLE).ok()?;
            Some(Timer(timer))
        }
    }

    impl Alarm for Timer {
        fn now(&self) -> Instant {
            Instant::now()
        }

        fn set(&mut self, at: Instant) -> bool {
            // Nothing at all would switch it off.
            let after = at.saturating_duration_since(self.now()).max(Duration::from_nanos(1));
            let Ok(it_value) = Timespec::try_from(after) else { return false };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once).is_ok()
        }

        async fn rings(&mut self) {
            while let Ok(mut ready) = self.0.readable().await {
                // What it said of an alarm before is no longer there to be read.
                if ready.try_io(|timer| Ok(rustix::io::read(timer, &mut [0; 8])?)).is_ok() {
                    return;
                }
            }
            // The runtime ends, and the task with it.
        }
    }
}

/// Without one the task is woken for every bag.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(super) enum Timer {}

#[cfg(not(target_os = "linux"))]
impl Timer {
    pub(super) fn new() -> Option<Self> {
        None
    }
}

#[cfg(not(target_os = "linux"))]
impl Alarm for Timer {
    fn now(&self) -> Instant {
        match *self {}
    }

    fn set(&mut self, _: Instant) -> bool {
        match *self {}
    }

    async fn rings(&mut self) {
        match *self {}
    }
}
