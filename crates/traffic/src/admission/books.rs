//! What was admitted and what became of it, in tokens: every token that is admitted is settled or given back, once.

use super::room::Need;
use plimsoll_core::{Class, Nanos, RequestId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How far an admitted request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waiting,
    /// It may go; the ledger of the pool does not know of it yet.
    Granted,
    /// It is in the ledger.
    Begun,
    /// Its prefill is over.
    Decoding,
}

/// An admitted request.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub tenant: Arc<str>,
    /// The class whose quota it was charged to, whatever becomes of it later.
    pub class: Class,
    /// What it was charged, in tokens of prefill and as many for its output.
    pub prefill_tokens: u64,
    pub decode_cost: u64,
    pub need: Need,
    /// It keeps an engine from others for long.
    pub long: bool,
    pub stage: Stage,
    /// It was charged to the quotas of its class and tenant, which were limited then.
    pub quota_charged: bool,
    /// When its prefill is taken to be over.
    pub due: Option<Nanos>,
    /// When its first token was asked for or promised.
    pub first_token_by: Nanos,
}

impl Flight {
    pub(crate) fn cost(&self) -> u64 {
        self.prefill_tokens.saturating_add(self.decode_cost)
    }

    /// It keeps an engine from others for long, now.
    pub(crate) fn is_long_prefill(&self) -> bool {
        self.long && matches!(self.stage, Stage::Granted | Stage::Begun)
    }
}

/// Sums since the start, in tokens. `admitted = settled + refunded + in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    pub admitted_tokens: u64,
    pub settled_tokens: u64,
    /// Admitted and not run: cancelled, refused while it waited, failed, or shorter than expected.
    pub refunded_tokens: u64,
    pub in_flight_tokens: u64,
    /// Admitted requests that are not settled, those that wait among them.
    pub in_flight_requests: u64,
}

/// All admitted requests that have not ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Books {
    flights: BTreeMap<RequestId, Flight>,
    /// Those that may go and that the pool's ledger does not know of yet: few at a time.
    granted: BTreeMap<RequestId, Need>,
    /// By [`Flight::due`].
    due: BTreeSet<(Nanos, RequestId)>,
    totals: Totals,
    long_prefills: Long,
}

/// So many long requests of so many tokens together.
#[derive(Clone, Copy, Debug, Default)]
struct Long {
    requests: usize,
    tokens: u64,
}

impl Long {
    fn add(&mut self, flight: &Flight) {
        self.requests += 1;
        self.tokens += flight.prefill_tokens;
    }

    fn sub(&mut self, flight: &Flight) {
        self.requests -= 1;
        self.tokens -= flight.prefill_tokens;
    }
}

impl Books {
    pub(crate) fn contains(&self, key: RequestId) -> bool {
        self.flights.contains_key(&key)
    }

    pub(crate) fn get(&self, key: RequestId) -> Option<&Flight> {
        self.flights.get(&key)
    }

    pub(crate) fn admit(&mut self, key: RequestId, flight: Flight) {
        self.totals.admitted_tokens = self.totals.admitted_tokens.saturating_add(flight.cost());
        self.totals.in_flight_tokens = self.totals.in_flight_tokens.saturating_add(flight.cost());
        self.totals.in_flight_requests += 1;
        if flight.is_long_prefill() {
            self.long_prefills.add(&flight);
        }
        if flight.stage == Stage::Granted {
            self.granted.insert(key, flight.need);
        }
        self.flights.insert(key, flight);
    }

    /// Moves a request on. `None` where it is not known or has come further already.
    pub(crate) fn advance(&mut self, key: RequestId, stage: Stage) -> Option<&Flight> {
        let flight = self.flights.get_mut(&key).filter(|flight| (flight.stage as u8) < stage as u8)?;
        if flight.is_long_prefill() {
            self.long_prefills.sub(flight);
        }
        flight.stage = stage;
        if flight.is_long_prefill() {
            self.long_prefills.add(flight);
        }
        if stage == Stage::Granted {
            self.granted.insert(key, flight.need);
        } else {
            self.granted.remove(&key);
        }
        Some(flight)
    }

    /// Its first token will not be seen; its prefill is over at `at`.
    pub(crate) fn set_due(&mut self, key: RequestId, at: Nanos) {
        if let Some(flight) = self.flights.get_mut(&key).filter(|flight| flight.stage == Stage::Begun) {
            if let Some(before) = flight.due.replace(at) {
                self.due.remove(&(before, key));
            }
            self.due.insert((at, key));
        }
    }

    /// One whose prefill is over by `now`.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<RequestId> {
        let (_, key) = *self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        Some(key)
    }

    /// Takes a request out, of which `served` tokens were run; the rest is refunded. Returns it and the rest.
    pub(crate) fn close(&mut self, key: RequestId, served: u64) -> Option<(Flight, u64)> {
        let flight = self.flights.remove(&key)?;
        self.granted.remove(&key);
        if let Some(due) = flight.due {
            self.due.remove(&(due, key));
        }
        if flight.is_long_prefill() {
            self.long_prefills.sub(&flight);
        }
        let settled = served.min(flight.cost());
        let refunded = flight.cost() - settled;
        self.totals.settled_tokens = self.totals.settled_tokens.saturating_add(settled);
        self.totals.refunded_tokens = self.totals.refunded_tokens.saturating_add(refunded);
        self.totals.in_flight_tokens -= flight.cost();
        self.totals.in_flight_requests -= 1;
        Some((flight, refunded))
    }

    /// Granted requests that the pool's ledger does not know of.
    pub(crate) fn granted(&self) -> impl Iterator<Item = &Need> {
        self.granted.values()
    }

    /// Long requests whose prefill runs or is about to.
    pub(crate) fn long_prefills(&self) -> usize {
        self.long_prefills.requests
    }

    /// What such a prefill takes, in tokens; `None` while there is none.
    pub(crate) fn mean_long_tokens(&self) -> Option<f64> {
        let Long { requests, tokens } = self.long_prefills;
        (requests > 0).then(|| tokens as f64 / requests as f64)
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }
}
