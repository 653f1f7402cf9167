//! How a request ended. One word per request, in the decision record, in metrics and in the ledger.

use serde::Serialize;
use std::fmt;

/// The way a request left the system. Exactly one per request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Finished with a finish reason (`stop`, `length`, ...), or a complete non-generation answer.
    Completed,
    /// The client went away.
    Cancelled,
    /// Refused here: bad input, auth, unknown model, no capacity.
    Refused,
    /// The engine answered 4xx: the client's fault, never the engine's.
    EngineRejected,
    /// The engine answered 429 or 503, or aborted for lack of room.
    EngineOverloaded,
    /// Connect failure, reset, 5xx, garbage.
    EngineFailed,
    /// The engine aborted the request inside a 200 stream.
    Aborted,
    /// The stream ended without a finish reason.
    Truncated,
    /// No byte within the idle time-out.
    Stalled,
    /// A deadline passed.
    DeadlineExceeded,
}

impl Outcome {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::Cancelled => "cancelled",
            Outcome::Refused => "refused",
            Outcome::EngineRejected => "engine_rejected",
            Outcome::EngineOverloaded => "engine_overloaded",
            Outcome::EngineFailed => "engine_failed",
            Outcome::Aborted => "aborted",
            Outcome::Truncated => "truncated",
            Outcome::Stalled => "stalled",
            Outcome::DeadlineExceeded => "deadline_exceeded",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
