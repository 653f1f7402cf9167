//! Is what a stream of KV events says still the whole truth?
//!
//! Publishers number their messages from 0 and keep the last ones for replay; nothing else tells a subscriber that it missed one. A missed
//! removal is worse than a missed store: the index would send requests to KV that is gone. So a gap holds the stream until the
//! replay has filled it, and where it cannot be filled the view is dropped and learnt anew. Number and time tell the rest apart: an
//! old number with an old time is a duplicate, an old number with a new time is a publisher that has restarted. A publisher that died is
//! known before its successor speaks: nobody listens at its address.

use plimsoll_core::Nanos;
use std::collections::VecDeque;

/// Messages held back while a gap is being filled; beyond, the gap is given up.
pub const MOST_HELD: usize = 4_096;

/// Bytes of them, as their owner weighs them.
pub const MOST_HELD_BYTES: usize = 64 << 20;

/// Old messages in a row that are taken for repeated ones.
pub const MOST_REPEATED: u32 = 8;

/// Longest wait for a replay.
pub const REPLAY_TIMEOUT: Nanos = Nanos::from_secs(3);

/// What to do with a message, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<B> {
    /// Forget everything of this publisher.
    Reset(Why),
    /// Ask for a replay from this number on.
    Replay { from: u64 },
    /// Apply these events.
    Apply(B),
}

/// Why a view is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The publisher counts from the start again, or its process has ended.
    Restarted,
    /// Messages are missing and could not be had again.
    Gap,
}

impl Why {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Why::Restarted => "restarted",
            Why::Gap => "gap",
        }
    }
}

/// How far the view of a publisher can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Nothing has been heard yet.
    Silent,
    /// Everything since the publisher's start is known.
    Whole,
    /// What is known is right; there may be more than that: the stream was joined late.
    Partial,
    /// Messages are missing: nothing may be credited until they are there.
    Gap,
}

#[derive(Clone, Debug)]
struct Held<B> {
    seq: u64,
    bytes: usize,
    batch: B,
}

impl Trust {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Trust::Silent => "silent",
            Trust::Whole => "whole",
            Trust::Partial => "partial",
            Trust::Gap => "gap",
        }
    }
}

/// The state of one publisher's stream; `B` is the message.
#[derive(Clone, Debug)]
pub struct Stream<B> {
    /// Number of the next message.
    next: Option<u64>,
    newest_unix_s: f64,
    whole: bool,
    gap: Option<Gap<B>>,
    duplicates: u64,
    gaps: u64,
    /// Messages in a row, one number after the other, that were taken for repeated ones, and the number after the last.
    old_row: (u32, u64),
}

#[derive(Clone, Debug)]
struct Gap<B> {
    since: Nanos,
    /// Of what is held.
    bytes: usize,
    /// In order of their numbers.
    held: VecDeque<Held<B>>,
}

impl<B> Default for Stream<B> {
    fn default() -> Self {
        Stream {
            next: None,
            newest_unix_s: f64::NEG_INFINITY,
            whole: false,
            gap: None,
            duplicates: 0,
            gaps: 0,
            old_row: (0, 0),
        }
    }
}

impl<B> Stream<B> {
    #[must_use]
    pub fn trust(&self) -> Trust {
        match (self.next, &self.gap) {
            (_, Some(_)) => Trust::Gap,
            (None, None) => Trust::Silent,
            (Some(_), None) if self.whole => Trust::Whole,
            _ => Trust::Partial,
        }
    }

    /// Messages that came twice.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Gaps seen.
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.gaps
    }

    /// A message from the live socket. `at_unix_s` is the publisher's own time in it, `bytes` what it takes to hold it back.
    pub fn live(&mut self, now: Nanos, seq: u64, at_unix_s: f64, bytes: usize, batch: B) -> Vec<Step<B>> {
        let mut steps = Vec::new();
        if seq == u64::MAX {
            // No publisher gets there; in a replay it is the sign of the end.
            self.duplicates += 1;
            return steps;
        }
        if let Some(next) = self.next
            && seq < next
        {
            // Reordered or repeated messages carry the time they were made at.
            if at_unix_s <= self.newest_unix_s && !self.tells_on(seq) {
                self.duplicates += 1;
                return steps;
            }
            *self = Stream { duplicates: self.duplicates, gaps: self.gaps, ..Stream::default() };
            steps.push(Step::Reset(Why::Restarted));
        }
        self.old_row = (0, 0);
        self.newest_unix_s = self.newest_unix_s.max(at_unix_s);
        match self.next {
            Some(next) if next == seq && self.gap.is_none() => {
                self.next = Some(seq + 1);
                steps.push(Step::Apply(batch));
            }
            None if seq == 0 => {
                (self.next, self.whole) = (Some(1), true);
                steps.push(Step::Apply(batch));
            }
            None => {
                // Joined late: what went before may still be in the publisher's buffer.
                self.next = Some(0);
                self.open_gap(now, seq, bytes, batch);
                steps.push(Step::Replay { from: 0 });
            }
            Some(next) => {
                let first = self.gap.is_none();
                if first {
                    self.gaps += 1;
                }
                self.open_gap(now, seq, bytes, batch);
                if first {
                    steps.push(Step::Replay { from: next });
                }
                let full = |gap: &Gap<B>| gap.held.len() > MOST_HELD || gap.bytes > MOST_HELD_BYTES;
                if self.gap.as_ref().is_some_and(full) {
                    steps.extend(self.give_up());
                }
            }
        }
        steps
    }

    /// So many old messages in a row that somebody is telling on: a publisher that has restarted, and whose clock was ahead before. To
    /// take repeated messages for that costs a replay; never to see it would cost every event until the clock has caught up.
    fn tells_on(&mut self, seq: u64) -> bool {
        let (count, next) = self.old_row;
        self.old_row = if seq == next && count > 0 { (count + 1, seq + 1) } else { (1, seq + 1) };
        self.old_row.0 > MOST_REPEATED
    }

    fn open_gap(&mut self, now: Nanos, seq: u64, bytes: usize, batch: B) {
        let gap = self.gap.get_or_insert_with(|| Gap { since: now, bytes: 0, held: VecDeque::new() });
        let at = gap.held.partition_point(|held| held.seq < seq);
        if gap.held.get(at).is_some_and(|held| held.seq == seq) {
            self.duplicates += 1;
            return;
        }
        gap.bytes += bytes;
        gap.held.insert(at, Held { seq, bytes, batch });
    }

    /// The publisher's process has ended. Whoever publishes there next begins anew.
    pub fn gone(&mut self) -> Vec<Step<B>> {
        if self.next.is_none() {
            return Vec::new();
        }
        *self = Stream { duplicates: self.duplicates, gaps: self.gaps, ..Stream::default() };
        vec![Step::Reset(Why::Restarted)]
    }

    /// A message of the replay.
    pub fn replayed(&mut self, seq: u64, batch: B) -> Vec<Step<B>> {
        if self.gap.is_none() {
            self.duplicates += 1;
            return Vec::new();
        }
        match self.next {
            Some(next) if seq == next => {
                if next == 0 {
                    self.whole = true;
                }
                self.next = Some(seq + 1);
                let mut steps = vec![Step::Apply(batch)];
                steps.extend(self.catch_up());
                steps
            }
            // The buffer begins later than what was asked for.
            Some(0) if !self.whole => {
                self.next = Some(seq + 1);
                let mut steps = vec![Step::Apply(batch)];
                steps.extend(self.catch_up());
                steps
            }
            Some(next) if seq < next => {
                self.duplicates += 1;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// The replay has ended, or its socket has failed.
    pub fn replay_ended(&mut self) -> Vec<Step<B>> {
        let mut steps = self.catch_up();
        if self.gap.is_some() {
            steps.extend(self.give_up());
        }
        steps
    }

    /// Called now and then: a replay that does not come is not waited for.
    pub fn tick(&mut self, now: Nanos) -> Vec<Step<B>> {
        if self.gap.as_ref().is_some_and(|gap| now.since(gap.since) > REPLAY_TIMEOUT) {
            self.give_up()
        } else {
            Vec::new()
        }
    }

    /// Applies what was held back, as far as it follows.
    fn catch_up(&mut self) -> Vec<Step<B>> {
        let mut steps = Vec::new();
        let Some(gap) = &mut self.gap else { return steps };
        while let Some(held) = gap.held.front() {
            match self.next {
                Some(next) if held.seq == next => self.next = Some(next + 1),
                Some(next) if held.seq < next => {
                    gap.bytes -= gap.held.pop_front().map_or(0, |held| held.bytes);
                    self.duplicates += 1;
                    continue;
                }
                _ => return steps,
            }
            if let Some(held) = gap.held.pop_front() {
                gap.bytes -= held.bytes;
                steps.push(Step::Apply(held.batch));
            }
        }
        self.gap = None;
        steps
    }

    /// The missing messages will not come: what was believed may be gone, so it is forgotten; what was held back stands
    /// by itself.
    fn give_up(&mut self) -> Vec<Step<B>> {
        let Some(gap) = self.gap.take() else { return Vec::new() };
        // Joined late, nothing was believed yet: nothing to forget.
        let mut steps = if self.next == Some(0) { Vec::new() } else { vec![Step::Reset(Why::Gap)] };
        self.whole = false;
        // Within what was held back there may be further holes: only what follows the last one is sure.
        let mut sure: Vec<Step<B>> = Vec::new();
        let mut expected = None;
        for held in gap.held {
            if expected.is_some_and(|expected| expected != held.seq) {
                sure.clear();
            }
            expected = Some(held.seq + 1);
            sure.push(Step::Apply(held.batch));
        }
        self.next = expected.or(self.next);
        steps.append(&mut sure);
        steps
    }
}

#[cfg(test)]
mod tests;
