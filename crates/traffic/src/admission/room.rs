//! How much more the engines can take now: late binding.
//!
//! What has been handed to an engine is served in the engine's order; what waits here can still be put in ours. So an engine gets
//! only what keeps it busy until it can be given more: a time of its own measured rate, never less than a few thousand tokens (a
//! batch), and always one request. An engine whose rate nobody knows has room, and so has one whose memory nobody knows: unknown is
//! not zero and no reason to make anybody wait.
//!
//! A view is a moment old. What was let go since is put on top of it here, on the engine that placement would choose: the one with
//! the shortest wait.

use super::ask::PoolView;
use super::rules::Rules;
use plimsoll_core::InstanceLoad;
use plimsoll_core::Nanos;

/// What one request takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub prefill_tokens: u64,
    pub kv_tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    load: InstanceLoad,
    /// In front of it at most, in tokens; infinite where the rate is not known.
    most_tokens: f64,
}

impl Slot {
    fn wait_s(&self) -> f64 {
        // One token a nanosecond where the rate is not known: only an order among such.
        self.load.backlog_tokens as f64 / self.load.prefill_tokens_per_s.unwrap_or(1e9)
    }

    fn can_begin(&self) -> bool {
        self.load.backlog_tokens == 0 || (self.load.backlog_tokens as f64) < self.most_tokens
    }

    /// A request that is larger than all memory does not wait for it: the engine has to say so.
    fn has_memory(&self, kv_tokens: u64) -> bool {
        self.load.kv_capacity_tokens.is_none_or(|capacity| {
            self.load.running == 0
                || kv_tokens > capacity
                || self.load.reserved_kv_tokens.saturating_add(kv_tokens) <= capacity
        })
    }
}

/// The pool, with what was let go since it was looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    slots: Vec<Slot>,
    /// [`Slot::wait_s`] of each, side by side: the search for the shortest is all that a decision does with a thousand engines.
    waits_s: Vec<f64>,
    /// Health keeps every engine out.
    all_out: bool,
    /// Sum of the known rates, tokens per second, and of how many instances.
    rate: f64,
    known: u32,
}

impl Room {
    /// Takes a view.
    pub(crate) fn see(&mut self, view: &PoolView<'_>, rules: &Rules) {
        self.slots.clear();
        self.waits_s.clear();
        (self.rate, self.known) = (0.0, 0);
        self.all_out = !view.instances.is_empty() && view.instances.iter().all(|load| load.out);
        for load in view.instances {
            let rate = load.prefill_tokens_per_s.filter(|rate| rate.is_finite() && *rate > 0.0);
            if let Some(rate) = rate {
                self.rate += rate;
                self.known += 1;
            }
            let least = rules.engine_queue_tokens as f64;
            let most_tokens = rate.map_or(f64::INFINITY, |rate| (rate * rules.engine_queue.as_secs_f64()).max(least));
            let slot = Slot { load: InstanceLoad { prefill_tokens_per_s: rate, ..*load }, most_tokens };
            self.waits_s.push(slot.wait_s());
            self.slots.push(slot);
        }
    }

    /// Puts a request that was let go on top of the view.
    pub(crate) fn take(&mut self, need: Need) {
        let at = self.shortest(|slot| slot.has_memory(need.kv_tokens)).or_else(|| self.shortest(|_| true));
        if let Some(at) = at {
            let slot = &mut self.slots[at];
            slot.load.backlog_tokens = slot.load.backlog_tokens.saturating_add(need.prefill_tokens.max(1));
            slot.load.reserved_kv_tokens = slot.load.reserved_kv_tokens.saturating_add(need.kv_tokens);
            slot.load.running = slot.load.running.saturating_add(1);
            self.waits_s[at] = slot.wait_s();
        }
    }

    /// Whether the engine that it would go to could begin it now. Another one that has less in front of it than it may, but a longer
    /// wait, does not count: placement would not take it. Where there is no engine, nothing is waited for: placement says why.
    pub(crate) fn fits(&self, need: Need) -> bool {
        let at = self.shortest(|slot| slot.has_memory(need.kv_tokens));
        at.map_or(self.slots.is_empty(), |at| self.slots[at].can_begin())
    }

    /// There are engines, and every one is out: whoever is let go now is lost to all that is known.
    pub(crate) fn all_out(&self) -> bool {
        self.all_out
    }

    /// The engine with the shortest wait.
    fn shortest(&self, of: impl Fn(&Slot) -> bool) -> Option<usize> {
        let mut best: Option<usize> = None;
        let mut least_s = f64::INFINITY;
        for (at, &wait_s) in self.waits_s.iter().enumerate() {
            if wait_s < least_s && of(&self.slots[at]) {
                (best, least_s) = (Some(at), wait_s);
            }
        }
        best
    }

    /// When each engine has done what is in front of it; one whose rate is not known has now.
    pub(crate) fn free_at(&self, now: Nanos) -> Vec<Nanos> {
        self.slots.iter().map(|slot| now + Nanos::from_secs_f64(slot.wait_s())).collect()
    }

    /// Tokens of prefill that the pool does per second. Engines whose rate is not known are taken for the mean of those
    /// whose is; `None` while nobody's is.
    pub(crate) fn tokens_per_s(&self) -> Option<f64> {
        (self.known > 0).then(|| self.rate / f64::from(self.known) * self.slots.len() as f64)
    }

    /// Of one engine.
    pub(crate) fn mean_tokens_per_s(&self) -> Option<f64> {
        (self.known > 0).then(|| self.rate / f64::from(self.known))
    }

    pub(crate) fn engines(&self) -> usize {
        self.slots.len()
    }

    /// Tokens in front of the engines.
    pub(crate) fn backlog_tokens(&self) -> u64 {
        self.slots.iter().fold(0, |sum, slot| sum.saturating_add(slot.load.backlog_tokens))
    }

    pub(crate) fn loads(&self) -> impl Iterator<Item = &InstanceLoad> {
        self.slots.iter().map(|slot| &slot.load)
    }
}
