//! A request's place in the books of its lane, from the moment it is admitted: given up exactly once, whatever happens.

use super::lane::Lane;
use crate::state::Shared;
use plimsoll_core::{Nanos, Outcome, RequestId};
use plimsoll_pools::chunk::Usage;
use std::sync::Arc;

/// Held by a request that was admitted. Dropped unended, everything it was charged is given back.
pub(crate) struct Permit {
    shared: Arc<Shared>,
    lane: Arc<Lane>,
    key: RequestId,
    /// An engine has, or may have, done something for it.
    begun: bool,
    ended: bool,
}

impl Permit {
    /// For a request that is in the lane's books, waiting or let go.
    pub(crate) fn new(shared: &Arc<Shared>, lane: &Arc<Lane>, key: RequestId) -> Self {
        Permit { shared: shared.clone(), lane: lane.clone(), key, begun: false, ended: false }
    }

    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// The ledger has taken it over.
    pub(crate) fn begun(&mut self, prefill_until: Option<Nanos>) {
        self.begun = true;
        self.lane.begun(self.key, prefill_until);
    }

    /// It is over. What nobody did for it is given back.
    pub(crate) fn end(mut self, taken: Taken) {
        if let Taken::Tokens { prefill, decode } = taken
            && self.begun
        {
            self.ended = true;
            self.lane.settle(self.shared.now(), self.key, prefill, decode);
        }
    }
}

/// What engines did for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Nothing that is known: no engine took it to an answer.
    Nothing,
    /// So much; `None` where engines do not say.
    Tokens { prefill: Option<u64>, decode: Option<u64> },
}

/// What a request took that ended so. One that engines refused or failed before any output took nothing, as far as anybody knows: charging it would
/// make its tenant pay for a broken engine, and count what was not served as what the pool can do.
pub(crate) fn taken(outcome: Outcome, usage: Option<Usage>, streams: bool, pieces: u64) -> Taken {
    if let Some(usage) = usage {
        let prefill = usage.cached_tokens.map(|cached| usage.prompt_tokens.saturating_sub(cached));
        return Taken::Tokens { prefill, decode: Some(usage.completion_tokens) };
    }
    if pieces > 0 {
        // Where the stream was cut no usage came; its pieces are near enough.
        return Taken::Tokens { prefill: None, decode: streams.then_some(pieces) };
    }
    match outcome {
        Outcome::Refused | Outcome::EngineRejected | Outcome::EngineOverloaded | Outcome::EngineFailed => {
            Taken::Nothing
        }
        // Its prefill may have run; of a stream no token came.
        Outcome::Cancelled if streams => Taken::Tokens { prefill: None, decode: Some(0) },
        _ => Taken::Tokens { prefill: None, decode: None },
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.ended {
            self.lane.cancel(&self.shared, &self.shared.traffic, self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_engines_refused_or_failed_before_any_output_is_charged_to_nobody() {
        for outcome in [Outcome::Refused, Outcome::EngineRejected, Outcome::EngineOverloaded, Outcome::EngineFailed] {
            assert_eq!(taken(outcome, None, true, 0), Taken::Nothing);
            assert_eq!(taken(outcome, None, false, 0), Taken::Nothing);
            assert_eq!(taken(outcome, None, true, 3), Taken::Tokens { prefill: None, decode: Some(3) });
        }
    }

    #[test]
    fn a_stream_whose_client_left_before_its_first_token_is_charged_no_output() {
        assert_eq!(taken(Outcome::Cancelled, None, true, 0), Taken::Tokens { prefill: None, decode: Some(0) });
        assert_eq!(taken(Outcome::Cancelled, None, false, 0), Taken::Tokens { prefill: None, decode: None });
    }
}
