//! What an engine reports, held against what the ledger knows.
//!
//! A report is a second opinion and old at once: peers that let the polled number replace the local one herd every
//! arrival between two polls onto one side (`gateways.md` §1.1, §5 case 5). So a report only ever *adds*: the part of
//! it that exceeds our own ledger at that moment is load of others (other gateways, direct clients), believed fully
//! when fresh and linearly less until `report_stale`; then the ledger alone speaks. A field the engine does not give is
//! unknown and adds nothing.
//!
//! An engine samples itself before we read it. Requests of ours that end in between are in the sample and no longer in
//! the ledger, and would pass for load of others. So only what *two reports in a row* show counts: a phantom is gone by
//! the next one, other clients are not.

#[cfg(test)]
mod tests;

use crate::ledger::Counters;
use plimsoll_core::{LoadReport, Nanos};

/// Load of others on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Foreign {
    pub requests: f64,
    pub prefill_tokens: f64,
    pub kv_tokens: f64,
}

impl Foreign {
    const NONE: Foreign = Foreign { requests: 0.0, prefill_tokens: 0.0, kv_tokens: 0.0 };

    fn least(&self, other: &Foreign) -> Foreign {
        Foreign {
            requests: self.requests.min(other.requests),
            prefill_tokens: self.prefill_tokens.min(other.prefill_tokens),
            kv_tokens: self.kv_tokens.min(other.kv_tokens),
        }
    }
}

/// Which fields of [`Foreign`] the engine gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub requests: bool,
    pub prefill_tokens: bool,
    pub kv_tokens: bool,
}

/// Load of others as it was reported, and when. What of it counts depends on the time it is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ForeignLoad {
    received_ns: f64,
    /// Zero where not known: nothing is added then. The lesser of the newest report's and the one before.
    beyond: Foreign,
}

impl ForeignLoad {
    /// Weighted with trust: 1 for a report just received, falling to 0 at the age whose inverse is given. All zero
    /// without a report.
    #[inline(always)]
    pub(crate) fn at(&self, clock: &TrustClock) -> Foreign {
        let age_ns = (clock.now_ns - self.received_ns).max(0.0);
        let trust = (1.0 - age_ns * clock.per_stale_ns).max(0.0);
        Foreign {
            requests: self.beyond.requests * trust,
            prefill_tokens: self.beyond.prefill_tokens * trust,
            kv_tokens: self.beyond.kv_tokens * trust,
        }
    }
}

/// The last report of one rank, already reduced to what exceeds the ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reported {
    received: Option<Nanos>,
    load: ForeignLoad,
    /// What the newest report shows beyond the ledger.
    latest: Foreign,
    known: Known,
    /// As the newest report said.
    used_kv_tokens: Option<u64>,
    /// Kept from the newest report that named it: a capacity does not age.
    capacity_kv_tokens: Option<u64>,
}

impl Reported {
    pub(crate) const NONE: Reported = Reported {
        received: None,
        load: ForeignLoad { received_ns: 0.0, beyond: Foreign::NONE },
        latest: Foreign::NONE,
        known: Known { requests: false, prefill_tokens: false, kv_tokens: false },
        used_kv_tokens: None,
        capacity_kv_tokens: None,
    };

    /// Takes a report; one that is older than the last is ignored. A reception time ahead of `now` is read as `now`.
    pub(crate) fn take(&mut self, report: &LoadReport, own: &Counters, now: Nanos) {
        let received = report.received.min(now);
        if self.received.is_some_and(|last| received < last) {
            return;
        }
        let beyond = |reported: Option<u64>, own: u64| reported.unwrap_or(0).saturating_sub(own) as f64;
        let requests = match (report.running_requests, report.waiting_requests) {
            (None, None) => None,
            (running, waiting) => Some(running.unwrap_or(0).saturating_add(waiting.unwrap_or(0))),
        };
        self.received = Some(received);
        let latest = Foreign {
            requests: beyond(requests, u64::from(own.requests)),
            prefill_tokens: beyond(report.waiting_uncached_tokens, own.uncached_prefill_tokens),
            kv_tokens: beyond(report.used_kv_tokens, own.reserved_kv_tokens),
        };
        self.load = ForeignLoad { received_ns: received.0 as f64, beyond: latest.least(&self.latest) };
        self.latest = latest;
        self.known = Known {
            requests: requests.is_some(),
            prefill_tokens: report.waiting_uncached_tokens.is_some(),
            kv_tokens: report.used_kv_tokens.is_some(),
        };
        self.used_kv_tokens = report.used_kv_tokens;
        self.capacity_kv_tokens = report.capacity_kv_tokens.filter(|&c| c > 0).or(self.capacity_kv_tokens);
    }

    pub(crate) fn load(&self) -> ForeignLoad {
        self.load
    }

    pub(crate) fn foreign(&self, clock: &TrustClock) -> Foreign {
        self.load.at(clock)
    }

    /// Which fields are known at `now`: given by a report that is not stale.
    pub(crate) fn known(&self, now: Nanos, stale: Nanos) -> Known {
        if self.age(now).is_some_and(|age| age < stale) { self.known } else { Known::default() }
    }

    pub(crate) fn age(&self, now: Nanos) -> Option<Nanos> {
        self.received.map(|r| now.since(r))
    }

    /// KV tokens in use as the newest report said, while it is not stale.
    pub(crate) fn used_kv_tokens(&self, now: Nanos, stale: Nanos) -> Option<u64> {
        self.used_kv_tokens.filter(|_| self.age(now).is_some_and(|age| age < stale))
    }

    pub(crate) fn capacity_kv_tokens(&self) -> Option<u64> {
        self.capacity_kv_tokens
    }
}

/// What trust depends on, computed once per choice. Floats, because a choice weighs a thousand reports in a few
/// microseconds; their error stays under a microsecond for decades.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrustClock {
    now_ns: f64,
    per_stale_ns: f64,
}

impl TrustClock {
    /// With a `stale` of zero nothing is ever believed.
    pub(crate) fn new(now: Nanos, stale: Nanos) -> Self {
        TrustClock { now_ns: now.0 as f64, per_stale_ns: 1.0 / stale.0 as f64 }
    }
}
