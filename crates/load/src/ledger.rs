//! The one ledger: what is in flight where, keyed by ticket.
//!
//! Peers keep bare counters with manual increments and decrements; an abort before the headers leaks one for ever, a
//! retry underflows (`gateways.md` §5, cases 2 and 3; `llmd.md`, R#2382). Here each charge is an entry and counters are
//! only ever changed together with their entry, so they are sums of live entries by construction, and settling twice
//! finds no entry. [`Ledger::mismatches`] counts the subtractions that would have gone below zero: it stays 0, and
//! [`crate::Scheduler::check_invariants`] says so when it does not.
//!
//! The end of a prefill shows in the first token of a stream. Of an answer that comes whole nothing is seen before its
//! end, minutes later, so such an entry carries the time by which its prefill should be over and is released then
//! ([`Ledger::pop_due`]); charged to the end it would keep everybody off an engine that has only to decode.

#[cfg(test)]
mod tests;

use crate::ask::{Charge, Ticket};
use crate::health::Stamp;
use plimsoll_core::{Nanos, Target};
use std::collections::{BTreeMap, BTreeSet};

/// In flight on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub requests: u32,
    /// Prefill that is charged and has not produced its first token.
    pub uncached_prefill_tokens: u64,
    /// The part of it whose end is not seen but assumed at a time.
    pub unseen_prefill_tokens: u64,
    pub reserved_kv_tokens: u64,
}

/// One charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub target: Target,
    pub charge: Charge,
    /// Of its prompt, not charged: believed to be cached.
    pub hit_tokens: u64,
    /// The prefill tokens are still counted.
    pub prefilling: bool,
    /// When they stop to count at the latest. `None`: at the first token, which will be seen.
    pub prefill_until: Option<Nanos>,
    pub first_token_seen: bool,
    /// Its instance was removed; no counter holds it any more.
    pub orphan: bool,
    pub placed_at: Nanos,
    /// The rank's total of served prefill tokens at the choice, to know what was served while this one waited.
    pub served_before: u64,
    /// Prefill tokens that were in front of it at the choice and whose end is not seen: foreign ones, and those of our
    /// own unseen entries. Taken from then and not from what was released since: a release by time follows the rate,
    /// and a rate learnt from it would confirm itself.
    pub unseen_before: u64,
    /// Set by the first token: how long it took, and the tokens charged to others that were served meanwhile.
    pub waited: Option<(Nanos, u64)>,
    /// Set by the first token of a stream: requests and KV tokens on its rank then, itself included.
    pub beside: Option<(u32, u64)>,
    /// Health of the instance at the choice.
    pub stamp: Stamp,
}

impl Entry {
    /// What this entry contributes to its rank's counters.
    pub(crate) fn held(&self) -> Counters {
        Counters { requests: 1, reserved_kv_tokens: self.charge.reserved_kv_tokens, ..self.held_prefill() }
    }

    /// The prefill part of it.
    fn held_prefill(&self) -> Counters {
        let tokens = if self.prefilling { self.charge.uncached_prefill_tokens } else { 0 };
        Counters {
            uncached_prefill_tokens: tokens,
            unseen_prefill_tokens: if self.prefill_until.is_some() { tokens } else { 0 },
            ..Counters::default()
        }
    }

    /// When it is to be released by time.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.prefill_until.filter(|_| self.prefilling && !self.orphan)
    }
}

/// All entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    entries: BTreeMap<Ticket, Entry>,
    /// [`Entry::due`] of every entry that has one.
    due: BTreeSet<(Nanos, Ticket)>,
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

    /// Everything that waits for its time, earliest first.
    pub(crate) fn due(&self) -> &BTreeSet<(Nanos, Ticket)> {
        &self.due
    }

    /// The next entry whose prefill should be over by `now`; the caller ends it with [`Ledger::end_prefill`].
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<(Ticket, Target)> {
        while self.due.first().is_some_and(|&(at, _)| at <= now) {
            let (_, ticket) = self.due.pop_first()?;
            if let Some(entry) = self.entries.get(&ticket) {
                return Some((ticket, entry.target));
            }
            self.mismatches += 1;
        }
        None
    }

    /// Writes an entry and charges its rank. The caller has checked that the ticket is free.
    pub(crate) fn charge(&mut self, ticket: Ticket, entry: Entry, counters: &mut Counters) {
        let held = entry.held();
        debug_assert!(!self.entries.contains_key(&ticket));
        self.due.extend(entry.due().map(|at| (at, ticket)));
        if self.entries.insert(ticket, entry).is_some() {
            self.mismatches += 1;
        }
        counters.requests = counters.requests.saturating_add(held.requests);
        counters.uncached_prefill_tokens =
            counters.uncached_prefill_tokens.saturating_add(held.uncached_prefill_tokens);
        counters.unseen_prefill_tokens = counters.unseen_prefill_tokens.saturating_add(held.unseen_prefill_tokens);
        counters.reserved_kv_tokens = counters.reserved_kv_tokens.saturating_add(held.reserved_kv_tokens);
    }

    /// Notes the first token, and for the rate how long it took and what others had served meanwhile.
    pub(crate) fn note_first_token(&mut self, ticket: Ticket, waited: Option<(Nanos, u64)>, beside: (u32, u64)) {
        if let Some(entry) = self.entries.get_mut(&ticket) {
            entry.first_token_seen = true;
            entry.waited = waited;
            // Of an answer that comes whole the first token is the last.
            entry.beside = waited.is_some().then_some(beside);
        }
    }

    /// Releases the prefill part. False when it was released before or the ticket is not charged.
    pub(crate) fn end_prefill(&mut self, ticket: Ticket, counters: &mut Counters) -> bool {
        let Some(entry) = self.entries.get_mut(&ticket) else { return false };
        if !entry.prefilling || entry.orphan {
            return false;
        }
        if let Some(at) = entry.due() {
            self.due.remove(&(at, ticket));
        }
        let held = entry.held_prefill();
        entry.prefilling = false;
        self.subtract(counters, held);
        true
    }

    /// Takes an entry out. `counters` is its rank's, or `None` for an orphan.
    pub(crate) fn remove(&mut self, ticket: Ticket, counters: Option<&mut Counters>) -> Option<Entry> {
        let entry = self.entries.remove(&ticket)?;
        if let Some(at) = entry.due() {
            self.due.remove(&(at, ticket));
        }
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
        for (&ticket, entry) in &mut self.entries {
            if entry.orphan || entry.target.instance != instance {
                continue;
            }
            if let Some(at) = entry.due() {
                self.due.remove(&(at, ticket));
            }
            entry.orphan = true;
            count += 1;
        }
        self.orphans += count;
        count
    }

    fn subtract(&mut self, from: &mut Counters, what: Counters) {
        let short = from.requests < what.requests
            || from.uncached_prefill_tokens < what.uncached_prefill_tokens
            || from.unseen_prefill_tokens < what.unseen_prefill_tokens
            || from.reserved_kv_tokens < what.reserved_kv_tokens;
        debug_assert!(!short, "ledger below zero: {from:?} - {what:?}");
        self.mismatches += u64::from(short);
        from.requests = from.requests.saturating_sub(what.requests);
        from.uncached_prefill_tokens = from.uncached_prefill_tokens.saturating_sub(what.uncached_prefill_tokens);
        from.unseen_prefill_tokens = from.unseen_prefill_tokens.saturating_sub(what.unseen_prefill_tokens);
        from.reserved_kv_tokens = from.reserved_kv_tokens.saturating_sub(what.reserved_kv_tokens);
    }
}
