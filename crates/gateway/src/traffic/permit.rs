//! A request's place in the books of its lane, from the moment it is admitted: given up exactly once, whatever happens.

use super::lane::Lane;
use crate::state::Shared;
use plimsoll_core::{Nanos, RequestId};
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

    /// It is over. `None` where engines do not say.
    pub(crate) fn end(mut self, prefill_tokens: Option<u64>, decode_tokens: Option<u64>) {
        if self.begun {
            self.ended = true;
            self.lane.settle(self.shared.now(), self.key, prefill_tokens, decode_tokens);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.ended {
            self.lane.cancel(&self.shared, &self.shared.traffic, self.key);
        }
    }
}
