//! How much of a hurry a request is in, as its sender says it.

use std::time::Duration;

/// What a request asks of the scheduler. The default asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Urgency {
    /// From arrival to the first token.
    pub ttft: Option<Duration>,
    /// Between tokens.
    pub tpot: Option<Duration>,
    /// Counts under the policy `priority` only. Which end comes first is the engine's setting; no value comes last.
    pub priority: Option<i64>,
}

impl Urgency {
    /// It may be refused because it would be late.
    #[must_use]
    pub fn has_goal(&self) -> bool {
        self.ttft.is_some() || self.tpot.is_some()
    }
}
