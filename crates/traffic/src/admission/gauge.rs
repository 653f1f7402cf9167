//! The water level that quotas go by: engines and queue together, smoothed, held.

use super::room::Room;
use super::rules::Rules;
use crate::level::{HeldLevel, Levels, SmoothLevel};
use plimsoll_core::{Class, Nanos};

/// Both stages of one pool.
#[derive(Debug)]
pub(crate) struct Gauge {
    measured: Levels,
    prefill: SmoothLevel,
    decode: SmoothLevel,
    held: HeldLevel,
}

impl Gauge {
    pub(crate) fn new(rules: &Rules) -> Self {
        Gauge {
            measured: Levels::default(),
            prefill: SmoothLevel::new(rules.rise, rules.fall),
            decode: SmoothLevel::new(rules.rise, rules.fall),
            held: HeldLevel::new(rules.hysteresis),
        }
    }

    /// Measures. What waits here is work in front of the engines too: with late binding most of it is here.
    pub(crate) fn update(&mut self, now: Nanos, room: &Room, queued_tokens: f64, target_wait: Nanos) {
        let mut levels = room.levels(target_wait);
        if let (Some(prefill), Some(rate)) = (levels.prefill, room.tokens_per_s()) {
            let queued = queued_tokens / (rate * target_wait.as_secs_f64());
            levels.prefill = Some(if queued.is_finite() { (prefill + queued).min(1.0) } else { prefill });
        }
        self.measured = levels;
        let smooth = Levels {
            prefill: self.prefill.update(now, levels.prefill),
            decode: self.decode.update(now, levels.decode),
        };
        self.held.update(smooth.highest());
    }

    /// As measured last.
    pub(crate) fn measured(&self) -> Levels {
        self.measured
    }

    pub(crate) fn smooth(&self) -> Levels {
        Levels { prefill: self.prefill.value(), decode: self.decode.value() }
    }

    /// What quotas go by.
    pub(crate) fn held(&self) -> Option<f64> {
        self.held.value()
    }

    /// Nothing that is measured now speaks against a request of this class.
    pub(crate) fn is_calm(&self, class: Class, rules: &Rules) -> bool {
        rules.quotas.share(class, self.measured.highest()) >= 1.0
    }
}
