//! What a running stream holds at its engine, reachable from outside the stream.
//!
//! A stream is pulled by its client. A client that stops pulling (an h2 stream without window on a connection that is
//! otherwise alive) would keep the engine's slot and KV for as long as it likes, because nothing of the stream is polled any
//! more, its timers included. So the engine's side lies in a slot that a sweep can empty: after
//! `streams.client_stall_timeout_ms` without a pull, or past the request's deadline.

use crate::attempt::Attempt;
use parking_lot::Mutex;
use plimsoll_core::Nanos;
use plimsoll_load::AttemptEnd;
use plimsoll_pools::http::Exchange;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// How often stalled streams are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The engine's side of one stream.
pub struct Live {
    /// `None` once it has been ended; the exchange may still be read to its end.
    pub attempt: Option<Box<Attempt>>,
    pub exchange: Exchange,
}

/// One stream's slot.
pub struct StreamSlot {
    live: Mutex<Option<Live>>,
    /// When bytes were handed to the client's connection that has not come back for more; 0 while it waits for us.
    handed_at: AtomicU64,
    deadline: Nanos,
    /// Wakes the stream when its engine's side has been taken.
    taken: Notify,
    /// Taken because the process ends.
    at_shutdown: AtomicBool,
}

impl StreamSlot {
    /// Access to the engine's side; `None` once the sweep has taken it.
    pub fn with<T>(&self, f: impl FnOnce(&mut Live) -> T) -> Option<T> {
        self.live.lock().as_mut().map(f)
    }

    /// Takes what the attempt holds, to end it.
    pub fn take_attempt(&self) -> Option<Box<Attempt>> {
        self.live.lock().as_mut().and_then(|live| live.attempt.take())
    }

    pub fn handed(&self, now: Nanos) {
        self.handed_at.store(now.0.max(1), Ordering::Relaxed);
    }

    /// Returns when the engine's side is taken.
    pub async fn taken(&self) {
        self.taken.notified().await;
    }

    /// The engine's side was taken because the process ends.
    pub fn was_shutdown(&self) -> bool {
        self.at_shutdown.load(Ordering::Relaxed)
    }

    pub fn pulled(&self) {
        self.handed_at.store(0, Ordering::Relaxed);
    }

    /// Ends the attempt, if it still runs, and wakes the stream.
    fn cut(&self, why: &str) -> bool {
        let attempt = self.live.lock().take().and_then(|live| live.attempt);
        self.taken.notify_one();
        let Some(attempt) = attempt else { return false };
        attempt.end_and_abort(AttemptEnd::Cancelled, Some(why.to_owned()));
        true
    }

    fn is_abandoned(&self, now: Nanos, patience: Nanos) -> bool {
        let handed_at = Nanos(self.handed_at.load(Ordering::Relaxed));
        handed_at != Nanos::ZERO && (now.since(handed_at) >= patience || now >= self.deadline)
    }
}

/// All running streams.
#[derive(Default)]
pub struct StreamSlots {
    slots: Mutex<Vec<Weak<StreamSlot>>>,
}

impl StreamSlots {
    /// Makes a slot and remembers it.
    pub fn open(&self, live: Live, deadline: Nanos) -> Arc<StreamSlot> {
        let slot = Arc::new(StreamSlot {
            live: Mutex::new(Some(live)),
            handed_at: AtomicU64::new(0),
            deadline,
            taken: Notify::new(),
            at_shutdown: AtomicBool::new(false),
        });
        self.slots.lock().push(Arc::downgrade(&slot));
        slot
    }

    /// Takes the engine's side from every stream whose client does not pull, and forgets those that are gone. Returns how
    /// many were cut.
    pub fn sweep(&self, now: Nanos, patience: Nanos) -> usize {
        let mut abandoned = Vec::new();
        self.slots.lock().retain(|slot| {
            let Some(slot) = slot.upgrade() else { return false };
            if slot.is_abandoned(now, patience) {
                abandoned.push(slot);
                return false;
            }
            true
        });
        abandoned.iter().filter(|slot| slot.cut("the client stopped reading")).count()
    }

    /// Takes the engine's side from every stream: the process ends. Each that is being read says so to its client.
    pub fn shut_down(&self) -> usize {
        let slots: Vec<_> = self.slots.lock().drain(..).filter_map(|slot| slot.upgrade()).collect();
        let running = slots.iter().filter(|slot| {
            slot.at_shutdown.store(true, Ordering::Relaxed);
            slot.cut("the gateway stopped")
        });
        running.count()
    }
}

/// Sweeps until the process ends.
pub(crate) async fn sweep_forever(shared: Arc<crate::state::Shared>) {
    let mut every = tokio::time::interval(SWEEP_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let patience = Nanos::from_millis(shared.settings.load().streams.client_stall_timeout_ms);
        let cut = shared.streams.sweep(shared.now(), patience);
        if cut > 0 {
            tracing::info!(cut, "streams whose client had stopped reading were cut");
        }
    }
}
