//! Water level: how full an engine and a pool are, per stage (`design/traffic.md`, Water level).
//!
//! | level | of one instance |
//! |---|---|
//! | prefill | uncached tokens that wait / (prefill rate x wait that is wanted at most) |
//! | decode | KV tokens reserved (held and promised) / KV tokens in all |
//!
//! each from 0 to 1. A pool's level is the mean over the instances that a class may use, weighted with their capacity: one
//! full engine among eight is an eighth of the pool, because placement goes round it. Unknown is not zero: an instance whose
//! rate or capacity nobody knows is left out of the mean, and a pool of unknowns has no level.

use plimsoll_core::{InstanceLoad, Nanos};
use serde::Serialize;

#[cfg(test)]
mod tests;

/// A level per stage, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Levels {
    pub prefill: Option<f64>,
    pub decode: Option<f64>,
}

impl Levels {
    /// The stage that is nearer to its limit.
    #[must_use]
    pub fn highest(&self) -> Option<f64> {
        match (self.prefill, self.decode) {
            (Some(prefill), Some(decode)) => Some(prefill.max(decode)),
            (one, other) => one.or(other),
        }
    }
}

/// Levels of one instance; `target_wait` is how long a prompt may wait for its prefill at most.
#[must_use]
pub fn instance_levels(load: &InstanceLoad, target_wait: Nanos) -> Levels {
    let per_wait = load.prefill_tokens_per_s.map(|rate| rate * target_wait.as_secs_f64());
    Levels {
        prefill: per_wait.and_then(|room| ratio(load.backlog_tokens as f64, room)),
        decode: load.kv_capacity_tokens.and_then(|room| ratio(load.reserved_kv_tokens as f64, room as f64)),
    }
}

/// Levels of a pool: the mean of its instances, weighted with what they can do.
#[must_use]
pub fn pool_levels<'a>(instances: impl IntoIterator<Item = &'a InstanceLoad>, target_wait: Nanos) -> Levels {
    let (mut prefill, mut decode) = (Mean::default(), Mean::default());
    for load in instances {
        let levels = instance_levels(load, target_wait);
        prefill.add(levels.prefill, load.prefill_tokens_per_s);
        decode.add(levels.decode, load.kv_capacity_tokens.map(|tokens| tokens as f64));
    }
    Levels { prefill: prefill.value(), decode: decode.value() }
}

/// Nothing fits into no room, so what has no room is full; without a sensible size there is no level.
fn ratio(used: f64, room: f64) -> Option<f64> {
    if room > 0.0 { Some((used / room).min(1.0)) } else { (room == 0.0).then_some(1.0) }
}

#[derive(Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, value: Option<f64>, weight: Option<f64>) {
        if let (Some(value), Some(weight)) = (value, weight)
            && weight > 0.0
        {
            self.sum += value * weight;
            self.weight += weight;
        }
    }

    fn value(&self) -> Option<f64> {
        // Rounding must not lift a full pool over its brim.
        (self.weight > 0.0).then(|| (self.sum / self.weight).clamp(0.0, 1.0))
    }
}

/// A level that rises quickly and falls slowly, so that a gap between two bursts does not open the gates.
///
/// Each update moves it by `dt / (dt + time constant)` of the difference (backward Euler of the first-order lag: never
/// overshoots, whatever `dt`, and needs no `exp`, whose last bit differs between machines).
#[derive(Clone, Copy, Debug)]
pub struct SmoothLevel {
    rise: Nanos,
    fall: Nanos,
    value: Option<f64>,
    at: Nanos,
}

impl SmoothLevel {
    /// `rise` and `fall` are time constants.
    #[must_use]
    pub fn new(rise: Nanos, fall: Nanos) -> Self {
        SmoothLevel { rise, fall, value: None, at: Nanos::ZERO }
    }

    /// Takes a measurement. One that is unknown leaves the value as it is: what was known a moment ago is a better guess
    /// than nothing.
    pub fn update(&mut self, now: Nanos, measured: Option<f64>) -> Option<f64> {
        let Some(measured) = measured.filter(|level| level.is_finite()) else { return self.value };
        let dt = now.since(self.at).as_secs_f64();
        self.value = Some(match self.value {
            None => measured,
            Some(value) => {
                let constant = if measured > value { self.rise } else { self.fall }.as_secs_f64();
                let whole = dt + constant;
                if whole > 0.0 { value + (measured - value) * (dt / whole) } else { value }
            }
        });
        self.at = now;
        self.value
    }

    #[must_use]
    pub fn value(&self) -> Option<f64> {
        self.value
    }
}

/// A level that follows at once when it rises, and when it falls only once it has fallen by a share of itself: a quota
/// that moves with every request makes clients repeat for nothing.
#[derive(Clone, Copy, Debug)]
pub struct HeldLevel {
    keep: f64,
    value: Option<f64>,
}

impl HeldLevel {
    /// `hysteresis` is the share by which it must fall: 0.15 by default of the design.
    #[must_use]
    pub fn new(hysteresis: f64) -> Self {
        HeldLevel { keep: 1.0 - hysteresis.clamp(0.0, 0.99), value: None }
    }

    /// Unknown changes nothing.
    pub fn update(&mut self, level: Option<f64>) -> Option<f64> {
        if let Some(level) = level {
            let held = self.value.unwrap_or(level);
            self.value = Some(if level > held { level } else { held.min(level / self.keep) });
        }
        self.value
    }

    #[must_use]
    pub fn value(&self) -> Option<f64> {
        self.value
    }
}

/// On above one level, off below a lower one: what flips with every request is no decision.
#[derive(Clone, Copy, Debug)]
pub struct Latch {
    on_at: f64,
    off_at: f64,
    on: bool,
}

impl Latch {
    /// `hysteresis` is the share of `on_at` by which the level must fall again: 0.15 by default of the design.
    #[must_use]
    pub fn new(on_at: f64, hysteresis: f64) -> Self {
        Latch { on_at, off_at: on_at * (1.0 - hysteresis.clamp(0.0, 1.0)), on: false }
    }

    /// Unknown changes nothing.
    pub fn update(&mut self, level: Option<f64>) -> bool {
        if let Some(level) = level {
            self.on = if self.on { level > self.off_at } else { level >= self.on_at };
        }
        self.on
    }
}
