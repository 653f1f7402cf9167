//! The one ledger: what is in flight where, keyed by ticket.
//!
//! Peers keep bare counters with manual increments and decrements; an abort before the headers leaks one for ever, a
//! retry underflows (`gateways.md` §5, cases 2 and 3; `llmd.md`, R#2382). Here each charge is an entry and counters are
//! only ever changed together with their entry, so they are sums of live entries by construction, and settling twice
//! finds no entry. [`Ledger::mismatches`] counts the subtractions that would have gone below zero: it stays 0, and
//! [`crate::Scheduler::check_invariants`] says so when it does not.

#[cfg(test)]
mod tests;

use crate::ask::{Charge, Ticket};
use crate::health::Stamp;
use plimsoll_core::{Nanos, Target};
use std::collections::BTreeMap;

/// In flight on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub requests: u32,
    /// Prefill that is charged and has not produced its first token.
    pub uncached_prefill_tokens: u64,
    pub reserved_kv_tokens: u64,
}

/// One charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub target: Target,
    pub charge: Charge,
    /// The first token has not come yet, so the prefill tokens are still counted.
    pub prefilling: bool,
    /// Its instance was removed; no counter holds it any more.
    pub orphan: bool,
    pub placed_at: Nanos,
    /// The rank's total of served prefill tokens at the choice, to know what was served while this one waited.
    pub served_before: u64,
    /// Foreign prefill tokens that were in front of it at the choice.
    pub foreign_before: u64,
    /// Set by the first token: how long it took, and the tokens charged to others that were served meanwhile.
    pub waited: Option<(Nanos, u64)>,
    /// Health of the instance at the choice.
    pub stamp: Stamp,
}

impl Entry {
    /// What this entry contributes to its rank's counters.
    pub(crate) fn held(&self) -> Counters {
        Counters {
            requests: 1,
            uncached_prefill_tokens: if self.prefilling { self.charge.uncached_prefill_tokens } else { 0 },
            reserved_kv_tokens: self.charge.reserved_kv_tokens,
        }
    }
}

/// All entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    entries: BTreeMap<Ticket, Entry>,
    orphans: usize,
    mismatches: u64,
}

impl Ledger {
    pub(crate) fn contains(&self, ticket: Ticket) -> bool {
        self.entries.contains_key(&ticket)
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&Entry> {
        self.entries.get(&ticket)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn orphans(&self) -> usize {
        self.orphans
    }

    pub(crate) fn mismatches(&self) -> u64 {
        self.mismatches
    }

    /// Entries in ticket order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Ticket, &Entry)> {
        self.entries.iter()
    }

    /// Writes an entry and charges its rank. The caller has checked that the ticket is free.
    pub(crate) fn charge(&mut self, ticket: Ticket, entry: Entry, counters: &mut Counters) {
        let held = entry.held();
        debug_assert!(!self.entries.contains_key(&ticket));
        if self.entries.insert(ticket, entry).is_some() {
            self.mismatches += 1;
        }
        counters.requests = counters.requests.saturating_add(held.requests);
        counters.uncached_prefill_tokens =
            counters.uncached_prefill_tokens.saturating_add(held.uncached_prefill_tokens);
        counters.reserved_kv_tokens = counters.reserved_kv_tokens.saturating_add(held.reserved_kv_tokens);
    }

    /// Notes what was seen at the first token, for the rate.
    pub(crate) fn note_wait(&mut self, ticket: Ticket, elapsed: Nanos, others_tokens: u64) {
        if let Some(entry) = self.entries.get_mut(&ticket) {
            entry.waited = Some((elapsed, others_tokens));
        }
    }

    /// Releases the prefill part. False when it was released before or the ticket is not charged.
    pub(crate) fn end_prefill(&mut self, ticket: Ticket, counters: &mut Counters) -> bool {
        let Some(entry) = self.entries.get_mut(&ticket) else { return false };
        if !entry.prefilling || entry.orphan {
            return false;
        }
        entry.prefilling = false;
        let tokens = entry.charge.uncached_prefill_tokens;
        self.subtract(counters, Counters { uncached_prefill_tokens: tokens, ..Counters::default() });
        true
    }

    /// Takes an entry out. `counters` is its rank's, or `None` for an orphan.
    pub(crate) fn remove(&mut self, ticket: Ticket, counters: Option<&mut Counters>) -> Option<Entry> {
        let entry = self.entries.remove(&ticket)?;
        if entry.orphan {
            self.orphans = self.orphans.saturating_sub(1);
        } else if let Some(counters) = counters {
            self.subtract(counters, entry.held());
        } else {
            self.mismatches += 1;
        }
        Some(entry)
    }

    /// Marks every entry of an instance as orphaned. The counters go with the instance.
    pub(crate) fn orphan(&mut self, instance: plimsoll_core::InstanceId) -> usize {
        let mut count = 0;
        for entry in self.entries.values_mut().filter(|e| !e.orphan && e.target.instance == instance) {
            entry.orphan = true;
            count += 1;
        }
        self.orphans += count;
        count
    }

    fn subtract(&mut self, from: &mut Counters, what: Counters) {
        let short = from.requests < what.requests
            || from.uncached_prefill_tokens < what.uncached_prefill_tokens
            || from.reserved_kv_tokens < what.reserved_kv_tokens;
        debug_assert!(!short, "ledger below zero: {from:?} - {what:?}");
        self.mismatches += u64::from(short);
        from.requests = from.requests.saturating_sub(what.requests);
        from.uncached_prefill_tokens = from.uncached_prefill_tokens.saturating_sub(what.uncached_prefill_tokens);
        from.reserved_kv_tokens = from.reserved_kv_tokens.saturating_sub(what.reserved_kv_tokens);
    }
}
