//! Who waits, in the order of their turns.
//!
//! A step must not pay for the length of the queue: what comes first, how many wait and how many tokens they bring are
//! known without a walk, and a request that its reader left is found by its number.

use crate::sequence::Sequence;
use std::collections::{BTreeMap, HashMap};

/// A place in the order: smaller first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    /// As the policy says.
    pub(crate) rank: u64,
    /// Number of arrival, unique within a scheduler.
    pub(crate) serial: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    by_turn: BTreeMap<Turn, Sequence>,
    /// Serial number to rank.
    ranks: HashMap<u64, u64>,
    tokens: usize,
    expected: usize,
    promised: usize,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.by_turn.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_turn.is_empty()
    }

    /// Tokens that all of them have to compute.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Of those tokens, the ones that neither the cache has nor somebody before will compute, as far as that was looked
    /// up when they came: under `slo`.
    pub(crate) fn expected(&self) -> usize {
        self.expected
    }

    /// Of them, those that may be refused for a deadline.
    pub(crate) fn promised(&self) -> usize {
        self.promised
    }

    /// In order of turn. Visits everybody: not for a step.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.by_turn.values()
    }

    pub(crate) fn first(&self) -> Option<&Sequence> {
        self.by_turn.first_key_value().map(|(_, sequence)| sequence)
    }

    /// Of those that were never served, whose turn comes last. Visits those that were and whose turn comes later.
    pub(crate) fn last_untouched(&self) -> Option<&Sequence> {
        self.by_turn.values().rev().find(|sequence| sequence.is_untouched())
    }

    pub(crate) fn get(&self, serial: u64) -> Option<&Sequence> {
        let rank = *self.ranks.get(&serial)?;
        self.by_turn.get(&Turn { rank, serial })
    }

    pub(crate) fn insert(&mut self, turn: Turn, sequence: Sequence) {
        debug_assert_eq!(turn.serial, sequence.serial);
        self.tokens += sequence.remaining();
        self.expected += sequence.expected_prefill();
        self.promised += usize::from(sequence.is_promised());
        self.ranks.insert(turn.serial, turn.rank);
        let before = self.by_turn.insert(turn, sequence);
        debug_assert!(before.is_none(), "{turn:?} was taken");
    }

    pub(crate) fn pop_first(&mut self) -> Option<Sequence> {
        let (turn, _) = self.by_turn.first_key_value()?;
        self.remove(turn.serial)
    }

    /// Takes out the one with this number; `None` when it does not wait.
    pub(crate) fn remove(&mut self, serial: u64) -> Option<Sequence> {
        let rank = self.ranks.remove(&serial)?;
        let sequence = self.by_turn.remove(&Turn { rank, serial })?;
        self.tokens -= sequence.remaining();
        self.expected -= sequence.expected_prefill();
        self.promised -= usize::from(sequence.is_promised());
        Some(sequence)
    }

    /// Numbers of those that `wanted` says. Visits everybody.
    pub(crate) fn find(&self, mut wanted: impl FnMut(&Sequence) -> bool) -> Vec<u64> {
        self.iter().filter(|sequence| wanted(sequence)).map(|sequence| sequence.serial).collect()
    }
}
