//! What gateways before the same engines tell each other, so that each can work out its part of what all may admit.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// One gateway process, drawn at its start: one that was restarted is another one, so that nothing of the old one is taken for its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatewayId(pub u64);

impl fmt::Display for GatewayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for GatewayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for GatewayId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What clients of one gateway ask of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ModelDemand {
    /// Tokens per second asked for of late, as they are charged, whether they were let in or not: high, medium, low.
    pub asked_tokens_per_s: [f64; 3],
    /// The part of what the high class asks for that is uncached prompt.
    pub high_prefill_tokens_per_s: f64,
    /// Uncached prompt tokens that wait at the gateway.
    pub waiting_prefill_tokens: f64,
    /// Mean length of the long prefills of lower classes that engines do for it now; 0: none.
    pub long_prefill_tokens: f64,
}

impl ModelDemand {
    /// More than any fleet does; what is beyond is no measurement.
    pub const MOST: f64 = 1e12;

    /// Every number is one that can have been measured.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let rest = [self.high_prefill_tokens_per_s, self.waiting_prefill_tokens, self.long_prefill_tokens];
        self.asked_tokens_per_s.iter().chain(&rest).all(|number| (0.0..=Self::MOST).contains(number))
    }
}

/// One gateway's word.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GatewayReport {
    pub gateway: GatewayId,
    /// Grows from report to report: an older one that comes late changes nothing.
    pub sequence: u64,
    /// It stops, and admits nothing from now on.
    pub leaving: bool,
    /// By model. One that is not named is not asked for.
    pub models: BTreeMap<String, ModelDemand>,
}
