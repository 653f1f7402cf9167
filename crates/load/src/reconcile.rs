//! What an engine reports, held against what the ledger knows.
//!
//! A report is a second opinion and old at once: peers that let the polled number replace the local one herd every
//! arrival between two polls onto one side (`gateways.md` §1.1, §5 case 5). So a report only ever *adds*: the part of
//! it that exceeds our own ledger at that moment is load of others (other gateways, direct clients), believed fully
//! when fresh and linearly less until `report_stale`; then the ledger alone speaks. A field the engine does not give is
//! unknown and adds nothing.

#[cfg(test)]
mod tests;

use crate::ledger::Counters;
use plimsoll_core::{LoadReport, Nanos};

/// Load of others on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Foreign {
    pub requests: Option<f64>,
    pub prefill_tokens: Option<f64>,
    pub kv_tokens: Option<f64>,
}

/// The last report of one rank, already reduced to what exceeds the ledger.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reported {
    received: Option<Nanos>,
    requests: Option<f64>,
    prefill_tokens: Option<f64>,
    kv_tokens: Option<f64>,
    /// Kept from the newest report that named it: a capacity does not age.
    pub capacity_kv_tokens: Option<u64>,
}

impl Reported {
    /// Takes a report; one that is older than the last is ignored. A reception time ahead of `now` is read as `now`.
    pub(crate) fn take(&mut self, report: &LoadReport, own: &Counters, now: Nanos) {
        let received = report.received.min(now);
        if self.received.is_some_and(|last| received < last) {
            return;
        }
        let beyond = |reported: Option<u64>, own: u64| reported.map(|r| r.saturating_sub(own) as f64);
        let requests = match (report.running_requests, report.waiting_requests) {
            (None, None) => None,
            (running, waiting) => Some(running.unwrap_or(0).saturating_add(waiting.unwrap_or(0))),
        };
        self.received = Some(received);
        self.requests = beyond(requests, u64::from(own.requests));
        self.prefill_tokens = beyond(report.waiting_uncached_tokens, own.uncached_prefill_tokens);
        self.kv_tokens = beyond(report.used_kv_tokens, own.reserved_kv_tokens);
        self.capacity_kv_tokens = report.capacity_kv_tokens.filter(|&c| c > 0).or(self.capacity_kv_tokens);
    }

    /// Weight of the report at `now`: 1 when just received, 0 from `stale` on or without a report.
    pub(crate) fn trust(&self, now: Nanos, stale: Nanos) -> f64 {
        let Some(received) = self.received else { return 0.0 };
        if stale == Nanos::ZERO {
            return 0.0;
        }
        (1.0 - now.since(received).0 as f64 / stale.0 as f64).max(0.0)
    }

    /// Trusted foreign load at `now`. Without a trusted report every field is unknown.
    pub(crate) fn foreign(&self, now: Nanos, stale: Nanos) -> Foreign {
        let trust = self.trust(now, stale);
        if trust <= 0.0 {
            return Foreign::default();
        }
        Foreign {
            requests: self.requests.map(|x| x * trust),
            prefill_tokens: self.prefill_tokens.map(|x| x * trust),
            kv_tokens: self.kv_tokens.map(|x| x * trust),
        }
    }

    pub(crate) fn age(&self, now: Nanos) -> Option<Nanos> {
        self.received.map(|r| now.since(r))
    }
}
