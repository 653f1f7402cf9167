//! Faults that can be switched on at run time, so that what stands in front of the engine can be tested.
//!
//! Here is what they are; `server/faults.rs` has their table and reads them from `/admin/faults`.

use crate::kv_events::faults::{DropEvents, WrongSeq};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

pub(crate) mod crash;

/// The faults in force. The default is a healthy engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Faults {
    /// Accept and never answer; streams stop where they are. Like a frozen process.
    pub no_respond: bool,
    /// Cut a stream after this many tokens, without finish reason and `[DONE]`.
    pub torn_stream_after_tokens: Option<usize>,
    /// End the torn stream as a well-formed HTTP body instead of cutting the connection.
    pub torn_stream_clean: bool,
    /// Overrides the configured step delay.
    pub step_delay_us: Option<u64>,
    /// Steps take longer than they do.
    pub slow_step: Option<SlowStep>,
    /// Share of the KV pages that nobody can have, 0 to 1. What requests hold is not taken from them.
    pub kv_pressure: f32,
    /// Answer generation requests with this status.
    pub http_status: Option<u16>,
    /// Abort the process when so much more has happened.
    pub crash_after: Option<CrashAfter>,
    /// Added to every point in time that the engine reports. May be negative.
    pub clock_skew_ms: i64,
    /// Drop batches of KV events.
    pub drop_events: Option<DropEvents>,
    /// Give the next batch of KV events a false number.
    pub wrong_seq: Option<WrongSeq>,
    /// Cut the connection of a KV transfer that this engine sends.
    pub transfer_error: Option<TransferCut>,
    /// Flip a bit of a KV page that comes back from the offload tier.
    pub corrupt_block: Option<CorruptBlock>,
}

/// Which transfer breaks, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TransferCut {
    /// Of those that begin from the moment the fault is switched on, from 1. `None`: every one.
    pub nth: Option<u64>,
    /// Pages that still arrive; the next one is torn.
    pub after_pages: u64,
}

/// Which page that is read from the offload tier is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CorruptBlock {
    /// Of those that are read from the moment the fault is switched on, from 1. `None`: every one.
    pub nth: Option<u64>,
}

/// Counted from the moment the fault is switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CrashAfter {
    /// Generated tokens of all requests.
    Tokens(u64),
    Steps(u64),
    Seconds(u64),
}

/// How much longer a step takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SlowStep {
    /// So many times as long, at least 1.
    Factor(f32),
    /// So many microseconds more.
    Us(u64),
}

impl SlowStep {
    pub(crate) fn stretch(self, took: Duration) -> Duration {
        match self {
            SlowStep::Factor(factor) => took.mul_f32(factor.max(1.0)),
            SlowStep::Us(us) => took + Duration::from_micros(us),
        }
    }
}

/// Shared switch.
#[derive(Clone, Debug)]
pub struct FaultSwitch {
    faults: watch::Sender<Faults>,
    /// Transfers begun since `transfer_error` was switched on.
    transfers: Arc<AtomicU64>,
    /// Pages read since `corrupt_block` was switched on.
    blocks: Arc<AtomicU64>,
}

impl Default for FaultSwitch {
    fn default() -> Self {
        FaultSwitch { faults: watch::Sender::new(Faults::default()), transfers: Arc::default(), blocks: Arc::default() }
    }
}

impl FaultSwitch {
    #[must_use]
    pub fn current(&self) -> Faults {
        self.faults.borrow().clone()
    }

    pub fn set(&self, faults: Faults) {
        let crash = faults.crash_after;
        if faults.transfer_error != self.faults.borrow().transfer_error {
            self.transfers.store(0, Ordering::Relaxed);
        }
        if faults.corrupt_block != self.faults.borrow().corrupt_block {
            self.blocks.store(0, Ordering::Relaxed);
        }
        let before = self.faults.send_replace(faults).crash_after;
        if let Some(CrashAfter::Seconds(seconds)) = crash
            && crash != before
        {
            crash::in_seconds(seconds, self.faults.subscribe());
        }
    }

    /// Returns at once unless `no_respond` is on, then when it goes off.
    pub async fn responsive(&self) {
        // Fails only when the sender is gone, and `self` holds it.
        let _ = self.faults.subscribe().wait_for(|faults| !faults.no_respond).await;
    }

    /// Seconds since 1970 as this engine reports them: the clock and its skew.
    #[must_use]
    pub fn wall_clock_s(&self) -> f64 {
        let skew_s = self.faults.borrow().clock_skew_ms as f64 / 1e3;
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()) + skew_s
    }

    pub(crate) fn frozen(&self) -> bool {
        self.faults.borrow().no_respond
    }

    pub(crate) fn kv_events(&self) -> (Option<DropEvents>, Option<WrongSeq>) {
        let faults = self.faults.borrow();
        (faults.drop_events, faults.wrong_seq)
    }

    pub(crate) fn step_delay(&self) -> Option<Duration> {
        self.faults.borrow().step_delay_us.map(Duration::from_micros)
    }

    /// Counts a transfer that begins; says after how many pages it is to be cut.
    pub(crate) fn next_transfer(&self) -> Option<u64> {
        let cut = self.faults.borrow().transfer_error?;
        let number = self.transfers.fetch_add(1, Ordering::Relaxed) + 1;
        cut.nth.is_none_or(|nth| nth == number).then_some(cut.after_pages)
    }

    /// Counts a page that is read from the offload tier; says whether it is to be damaged.
    pub(crate) fn corrupts_next_block(&self) -> bool {
        let Some(corrupt) = self.faults.borrow().corrupt_block else { return false };
        let number = self.blocks.fetch_add(1, Ordering::Relaxed) + 1;
        corrupt.nth.is_none_or(|nth| nth == number)
    }

    pub(crate) fn slow_step(&self) -> Option<SlowStep> {
        self.faults.borrow().slow_step
    }

    pub(crate) fn kv_pressure(&self) -> f32 {
        self.faults.borrow().kv_pressure
    }

    pub(crate) fn crash_after(&self) -> Option<CrashAfter> {
        self.faults.borrow().crash_after
    }
}
