//! Faults that can be switched on at run time, so that what stands in front of the engine can be tested.

use serde::Serialize;
use std::time::Duration;
use tokio::sync::watch;

/// The faults in force. The default is a healthy engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// Accept and never answer; streams stop where they are. Like a frozen process.
    pub no_respond: bool,
    /// Cut a stream after this many tokens, without finish reason and `[DONE]`.
    pub torn_stream_after_tokens: Option<usize>,
    /// End the torn stream as a well-formed HTTP body instead of cutting the connection.
    pub torn_stream_clean: bool,
    /// Overrides the configured step delay.
    pub step_delay_us: Option<u64>,
    /// Answer generation requests with this status.
    pub http_status: Option<u16>,
}

/// Shared switch.
#[derive(Clone, Debug)]
pub struct FaultSwitch(watch::Sender<Faults>);

impl Default for FaultSwitch {
    fn default() -> Self {
        FaultSwitch(watch::Sender::new(Faults::default()))
    }
}

impl FaultSwitch {
    #[must_use]
    pub fn current(&self) -> Faults {
        self.0.borrow().clone()
    }

    pub fn set(&self, faults: Faults) {
        self.0.send_replace(faults);
    }

    /// Returns at once unless `no_respond` is on, then when it goes off.
    pub async fn responsive(&self) {
        // Fails only when the sender is gone, and `self` holds it.
        let _ = self.0.subscribe().wait_for(|faults| !faults.no_respond).await;
    }

    pub(crate) fn frozen(&self) -> bool {
        self.0.borrow().no_respond
    }

    pub(crate) fn step_delay(&self) -> Option<Duration> {
        self.0.borrow().step_delay_us.map(Duration::from_micros)
    }
}
