//! What operators, metrics and the simulator see of one pool.

use super::Admission;
use super::books::Totals;
use crate::fair_queue::Depth;
use crate::lease::Lease;
use crate::level::Levels;
use plimsoll_core::{Class, Nanos};
use serde::Serialize;

/// One pool's traffic as of now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// As measured last, engines and queue.
    pub measured: Levels,
    pub smooth: Levels,
    /// What quotas go by.
    pub level: Option<f64>,
    /// Tokens per second, measured under load or from the engines' rates; `None` where nothing is known.
    pub capacity_tokens_per_s: Option<f64>,
    pub engines: usize,
    /// High, medium, low.
    pub classes: [ClassSnapshot; 3],
    pub depth: Depth,
    pub totals: Totals,
    /// Requests of lower classes that keep an engine for long now, and most that may; `None`: nothing is held back.
    pub long_prefills: usize,
    pub long_prefills_most: Option<usize>,
    pub tenants: usize,
    /// This gateway's part, where others stand before the same engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
}

/// One class of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassSnapshot {
    pub class: Class,
    /// Of the capacity, for all gateways together; 1 is no limit.
    pub share: f64,
    /// This gateway's part of it; `None`: no limit.
    pub tokens_per_s: Option<f64>,
    /// Admitted against the quota and not yet run out.
    pub filled_tokens: f64,
    pub depth: Depth,
    /// How long the oldest has waited.
    pub oldest_wait: Option<Nanos>,
}

impl Admission {
    #[must_use]
    pub fn snapshot(&mut self, now: Nanos) -> Snapshot {
        let classes = Class::ALL.map(|class| {
            let share = self.share(class, now);
            let limit = self.class_limit(class, share);
            ClassSnapshot {
                class,
                share,
                tokens_per_s: limit.tokens_per_s.is_finite().then_some(limit.tokens_per_s),
                filled_tokens: self.meters[class as usize].filled_tokens(now),
                depth: self.line.depth_of(class),
                oldest_wait: self.line.oldest(class).map(|arrived| now.since(arrived)),
            }
        });
        Snapshot {
            measured: self.gauge.measured(),
            smooth: self.gauge.smooth(),
            level: self.gauge.held(),
            capacity_tokens_per_s: self.capacity_tokens_per_s(),
            engines: self.room.engines(),
            classes,
            depth: self.line.depth(),
            totals: self.books.totals(),
            long_prefills: self.books.long_prefills(),
            long_prefills_most: self.most_long_prefills(now),
            tenants: self.tenants.len(),
            lease: self.lease,
        }
    }
}
