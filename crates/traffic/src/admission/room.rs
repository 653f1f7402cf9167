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
use crate::level::Levels;
use plimsoll_core::InstanceLoad;
use plimsoll_core::Nanos;

/// What one request takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub prefill_tokens: u64,
    pub kv_tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Slot {
    load: InstanceLoad,
    /// In front of it at most, in tokens; infinite where the rate is not known.
    most_tokens: f64,
}

impl Slot {
    fn of(load: &InstanceLoad, rules: &Rules) -> Slot {
        let rate = load.prefill_tokens_per_s.filter(|rate| rate.is_finite() && *rate > 0.0);
        let least = rules.engine_queue_tokens as f64;
        let most_tokens = rate.map_or(f64::INFINITY, |rate| (rate * rules.engine_queue.as_secs_f64()).max(least));
        Slot { load: InstanceLoad { prefill_tokens_per_s: rate, ..*load }, most_tokens }
    }

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
///
/// Of a thousand engines few change between two looks. So what each engine adds to sums and searches lies side by side in [`Flat`], and a look computes again
/// only what is new.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    /// As the view had them.
    seen: Vec<InstanceLoad>,
    /// With what was let go since.
    slots: Vec<Slot>,
    flat: Flat,
    /// Slots that something was put on top of.
    touched: Vec<usize>,
    /// The engine with the shortest wait, if it was looked for since anything changed.
    shortest: Option<usize>,
    /// Under which the slots were made: time and tokens that an engine may have in front of it.
    made_for: Option<(Nanos, u64)>,
    /// Health keeps every engine out.
    all_out: bool,
    /// Sum of the known rates, tokens per second, and of how many instances.
    rate: f64,
    known: u32,
    /// Sum of the known memory.
    kv_tokens: f64,
    /// These sums are to be made again.
    rates_changed: bool,
}

/// One number of each engine, side by side.
#[derive(Clone, Debug, Default)]
struct Flat {
    /// [`Slot::wait_s`].
    waits_s: Vec<f64>,
    backlog_tokens: Vec<f64>,
    /// Zero where it is not known.
    tokens_per_s: Vec<f64>,
    reserved_kv_tokens: Vec<f64>,
    /// Zero where it is not known.
    kv_tokens: Vec<f64>,
}

impl Flat {
    fn resize(&mut self, len: usize) {
        let all = [
            &mut self.waits_s,
            &mut self.backlog_tokens,
            &mut self.tokens_per_s,
            &mut self.reserved_kv_tokens,
            &mut self.kv_tokens,
        ];
        all.into_iter().for_each(|list| list.resize(len, 0.0));
    }

    fn put(&mut self, at: usize, slot: &Slot) {
        self.waits_s[at] = slot.wait_s();
        self.backlog_tokens[at] = slot.load.backlog_tokens as f64;
        self.tokens_per_s[at] = slot.load.prefill_tokens_per_s.unwrap_or(0.0);
        self.reserved_kv_tokens[at] = slot.load.reserved_kv_tokens as f64;
        self.kv_tokens[at] = slot.load.kv_capacity_tokens.unwrap_or(0) as f64;
    }
}

impl Room {
    /// Takes a view.
    pub(crate) fn see(&mut self, view: &PoolView<'_>, rules: &Rules) {
        let made_for = Some((rules.engine_queue, rules.engine_queue_tokens));
        if self.made_for != made_for || self.seen.len() != view.instances.len() {
            self.made_for = made_for;
            self.seen.clear();
            self.slots.clear();
            self.flat.resize(view.instances.len());
            self.touched.clear();
            self.rates_changed = true;
            for (at, load) in view.instances.iter().enumerate() {
                self.seen.push(*load);
                self.slots.push(Slot::of(load, rules));
                self.flat.put(at, &self.slots[at]);
            }
        } else {
            for at in std::mem::take(&mut self.touched) {
                self.renew(at, &view.instances[at], rules);
            }
            for (at, load) in view.instances.iter().enumerate() {
                if !same(&self.seen[at], load) {
                    self.renew(at, load, rules);
                }
            }
        }
        self.shortest = None;
        self.all_out = !view.instances.is_empty() && view.instances.iter().all(|load| load.out);
        if std::mem::take(&mut self.rates_changed) {
            self.rate = self.flat.tokens_per_s.iter().sum();
            self.known = self.flat.tokens_per_s.iter().filter(|rate| **rate > 0.0).count() as u32;
            self.kv_tokens = self.flat.kv_tokens.iter().sum();
        }
    }

    fn renew(&mut self, at: usize, load: &InstanceLoad, rules: &Rules) {
        self.seen[at] = *load;
        self.slots[at] = Slot::of(load, rules);
        let before = (self.flat.tokens_per_s[at], self.flat.kv_tokens[at]);
        self.flat.put(at, &self.slots[at]);
        self.rates_changed |= before != (self.flat.tokens_per_s[at], self.flat.kv_tokens[at]);
    }

    /// Puts a request that was let go on top of the view.
    pub(crate) fn take(&mut self, need: Need) {
        let at = self.shortest_with(need.kv_tokens).or_else(|| self.shortest());
        if let Some(at) = at {
            let slot = &mut self.slots[at];
            slot.load.backlog_tokens = slot.load.backlog_tokens.saturating_add(need.prefill_tokens.max(1));
            slot.load.reserved_kv_tokens = slot.load.reserved_kv_tokens.saturating_add(need.kv_tokens);
            slot.load.running = slot.load.running.saturating_add(1);
            self.flat.put(at, slot);
            self.touched.push(at);
            // Waits only grow: another one stays the shortest.
            self.shortest = self.shortest.filter(|shortest| *shortest != at);
            self.shortest = self.shortest();
        }
    }

    /// Whether the engine that it would go to could begin it now. Another one that has less in front of it than it may, but a longer
    /// wait, does not count: placement would not take it. Where there is no engine, nothing is waited for: placement says why.
    pub(crate) fn fits(&self, need: Need) -> bool {
        let at = self.shortest_with(need.kv_tokens);
        at.map_or(self.slots.is_empty(), |at| self.slots[at].can_begin())
    }

    /// There are engines, and every one is out: whoever is let go now is lost to all that is known.
    pub(crate) fn all_out(&self) -> bool {
        self.all_out
    }

    /// The engine with the shortest wait; of equals the first.
    fn shortest(&self) -> Option<usize> {
        self.shortest.or_else(|| self.search(|_| true))
    }

    /// Among those that have so much memory.
    fn shortest_with(&self, kv_tokens: u64) -> Option<usize> {
        let at = self.shortest()?;
        if self.slots[at].has_memory(kv_tokens) { Some(at) } else { self.search(|slot| slot.has_memory(kv_tokens)) }
    }

    fn search(&self, of: impl Fn(&Slot) -> bool) -> Option<usize> {
        let mut best: Option<usize> = None;
        let mut least_s = f64::INFINITY;
        for (at, &wait_s) in self.flat.waits_s.iter().enumerate() {
            if wait_s < least_s && of(&self.slots[at]) {
                (best, least_s) = (Some(at), wait_s);
            }
        }
        best
    }

    /// When each engine has done what is in front of it; one whose rate is not known has now.
    pub(crate) fn free_at(&self, now: Nanos) -> Vec<Nanos> {
        self.flat.waits_s.iter().map(|wait_s| now + Nanos::from_secs_f64(*wait_s)).collect()
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
        // Saturates, which is right.
        self.flat.backlog_tokens.iter().sum::<f64>() as u64
    }

    /// As [`crate::level::pool_levels`], and in one go over plain numbers.
    pub(crate) fn levels(&self, target_wait: Nanos) -> Levels {
        let wait_s = target_wait.as_secs_f64();
        let part = |used: f64, room: f64| (room > 0.0).then(|| (used / room).clamp(0.0, 1.0));
        let Flat { backlog_tokens, tokens_per_s, reserved_kv_tokens, kv_tokens, .. } = &self.flat;
        // No time to wait is no room: everything known is full.
        let busy = if wait_s > 0.0 { sum_of_lesser(backlog_tokens, 1.0 / wait_s, tokens_per_s) } else { self.rate };
        Levels {
            prefill: part(busy, self.rate),
            decode: part(sum_of_lesser(reserved_kv_tokens, 1.0, kv_tokens), self.kv_tokens),
        }
    }
}

/// The sum of `a x times` or `b`, whichever is less, place by place. Eight sums side by side, since one alone waits for itself.
fn sum_of_lesser(a: &[f64], times: f64, b: &[f64]) -> f64 {
    const LANES: usize = 8;
    let lesser = |a: f64, b: f64| if a * times < b { a * times } else { b };
    let mut sums = [0.0; LANES];
    let (a_lanes, b_lanes) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_lanes.remainder().iter().zip(b_lanes.remainder());
    let rest: f64 = rest.map(|(a, b)| lesser(*a, *b)).sum();
    for (a, b) in a_lanes.zip(b_lanes) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += lesser(a[lane], b[lane]);
        }
    }
    sums.iter().sum::<f64>() + rest
}

/// Whether two are the same to the last bit; without a branch, as this is asked of every engine at every look.
fn same(a: &InstanceLoad, b: &InstanceLoad) -> bool {
    let rate = |load: &InstanceLoad| load.prefill_tokens_per_s.map_or(u64::MAX, f64::to_bits);
    let memory = |load: &InstanceLoad| (load.kv_capacity_tokens.is_some(), load.kv_capacity_tokens.unwrap_or(0));
    (a.backlog_tokens == b.backlog_tokens)
        & (rate(a) == rate(b))
        & (a.reserved_kv_tokens == b.reserved_kv_tokens)
        & (memory(a) == memory(b))
        & (a.running == b.running)
        & (a.out == b.out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::pool_levels;
    use proptest::prelude::*;

    fn load() -> impl Strategy<Value = InstanceLoad> {
        let rate = prop::option::of(prop_oneof![Just(0.0), Just(f64::NAN), 1.0..20_000.0f64]);
        (0u64..50_000, rate, 0u64..2_000, prop::option::of(0u64..1_000), 0u32..4).prop_map(
            |(backlog_tokens, prefill_tokens_per_s, reserved_kv_tokens, kv_capacity_tokens, running)| InstanceLoad {
                backlog_tokens,
                prefill_tokens_per_s,
                reserved_kv_tokens,
                kv_capacity_tokens,
                running,
                out: false,
            },
        )
    }

    /// Everything that a room answers, of this one and of one that has just been made.
    fn answers(room: &Room, wait: Nanos) -> (Vec<bool>, Vec<Nanos>, Levels, Option<f64>, u64) {
        let needs = [(0, 0), (100, 50), (5_000, 500), (100_000, 5_000)];
        let need = |(prefill_tokens, kv_tokens)| Need { prefill_tokens, kv_tokens };
        let fits = needs.map(|one| room.fits(need(one))).to_vec();
        (fits, room.free_at(Nanos(7)), room.levels(wait), room.tokens_per_s(), room.backlog_tokens())
    }

    proptest! {
        /// What is kept from look to look gives the answers of a fresh look, whatever changed and was taken between.
        #[test]
        fn what_is_kept_is_what_a_fresh_look_would_find(
            views in prop::collection::vec((prop::collection::vec(load(), 3), 0u64..4), 1..8),
            takes in prop::collection::vec((0u64..5_000, 0u64..600), 0..5),
            wait_ms in 0u64..5_000,
        ) {
            let (rules, wait) = (Rules::default(), Nanos::from_millis(wait_ms));
            let mut kept = Room::default();
            let mut last: Vec<InstanceLoad> = Vec::new();
            for (loads, keep) in views {
                // Some engines stay as they were.
                let same = |at: usize| keep >> at & 1 == 1 && at < last.len();
                let loads: Vec<_> = loads.iter().enumerate().map(|(at, one)| if same(at) { last[at] } else { *one }).collect();
                let mut fresh = Room::default();
                let view = PoolView { taken_at: Nanos::ZERO, instances: &loads };
                kept.see(&view, &rules);
                fresh.see(&view, &rules);
                let of_loads = pool_levels(fresh.slots.iter().map(|slot| &slot.load), wait);
                let near = |a: Option<f64>, b: Option<f64>| match (a, b) {
                    (Some(a), Some(b)) => (a - b).abs() < 1e-9,
                    (a, b) => a == b,
                };
                let levels = kept.levels(wait);
                prop_assert!(near(levels.prefill, of_loads.prefill), "{levels:?} {of_loads:?}");
                prop_assert!(near(levels.decode, of_loads.decode), "{levels:?} {of_loads:?}");
                for (prefill_tokens, kv_tokens) in &takes {
                    prop_assert_eq!(answers(&kept, wait), answers(&fresh, wait));
                    let need = Need { prefill_tokens: *prefill_tokens, kv_tokens: *kv_tokens };
                    kept.take(need);
                    fresh.take(need);
                }
                prop_assert_eq!(answers(&kept, wait), answers(&fresh, wait));
                last = loads;
            }
        }
    }
}
