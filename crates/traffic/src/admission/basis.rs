//! What a refusal's numbers follow from, and whether they do (design rule 7).
//!
//! A record is checked as it stands, without the requests before it: the level gives the share, the share and the capacity give the
//! quota, the quota's meter held too much for the request's cost, the predicted first token is behind the allowed one. What the
//! meters held and what others asked for is taken from the record.

use super::{PARTS, Rule, leftover};
use crate::quota::between;
use plimsoll_core::Nanos;
use serde::{Deserialize, Serialize};

/// Beside level and share, all that a refusal's arithmetic needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Basis {
    /// No other class asked of late, so the share is all of it.
    pub alone: bool,
    /// The two points `(level, share)` of the class's curve between which the level lies.
    pub curve: [(f64, f64); 2],
    /// Tokens per second; `None` where no rate is known.
    pub capacity_tokens_per_s: Option<f64>,
    /// What the classes above ask for.
    pub above_tokens_per_s: f64,
    /// Of the class's quota, what is this gateway's.
    pub part: f64,
    /// What may be admitted at once, in time of the rate.
    pub burst_s: f64,
    /// What the request would have been charged.
    pub cost_tokens: u64,
    /// What its class had admitted that had not run out.
    pub class_filled_tokens: f64,
    /// The tenant's, where its part or its rate refused.
    pub tenant: Option<TenantBasis>,
    /// How long it might have waited at most, where it was in the queue.
    pub may_wait_ns: Option<u64>,
}

/// A tenant's part of its class, and its own rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantBasis {
    /// Its weight, and those of all tenants that ask for the class.
    pub weight: u32,
    pub asking: u64,
    pub filled_tokens: f64,
    /// Where it has one: tokens per second and at once, and what it had of it.
    pub rate: Option<(f64, u64, f64)>,
}

/// A refusal as it is recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recorded {
    pub rule: Rule,
    pub level: Option<f64>,
    pub share: f64,
    pub waited: Nanos,
    pub predicted: Option<Nanos>,
    pub allowed: Option<Nanos>,
    pub basis: Basis,
}

/// How far two ways of the same sum may be apart.
const SAME: f64 = 1e-9;
/// A record's times are rounded so far.
const ROUNDED: Nanos = Nanos(1_000);

impl Recorded {
    /// Whether the rule follows; false where it depends on what stood in the queue, which no record has.
    ///
    /// # Errors
    /// Says what does not follow.
    pub fn check(&self) -> Result<bool, String> {
        let Basis { alone, capacity_tokens_per_s, above_tokens_per_s, .. } = self.basis;
        let curve = self.of_curve()?;
        let left = capacity_tokens_per_s.map_or(0.0, |capacity| (1.0 - above_tokens_per_s / capacity).clamp(0.0, 1.0));
        let share = if alone { 1.0 } else { curve.max(left * self.level.map_or(1.0, leftover)) };
        if (share - self.share).abs() > SAME {
            return Err(format!("a share of {}; its level and what is asked give {share}", self.share));
        }
        match self.rule {
            Rule::QuotaClass => self.over_class().map(|()| true),
            Rule::QuotaTenant => self.over_class().and_then(|()| self.over_part(left)).map(|()| true),
            Rule::TenantRate => {
                let rate = self.basis.tenant.and_then(|tenant| tenant.rate);
                let (_, burst, filled) = rate.ok_or("refused for its rate, and has none")?;
                self.over("its tenant's rate", burst, filled).map(|()| true)
            }
            Rule::SloUnattainable => match (self.predicted, self.allowed) {
                (Some(predicted), Some(allowed)) if predicted + ROUNDED >= allowed => Ok(true),
                (Some(predicted), Some(allowed)) => Err(format!(
                    "refused for a first token after {:.3} s of {:.3} s that were allowed",
                    predicted.as_secs_f64(),
                    allowed.as_secs_f64()
                )),
                _ => Err("refused for a late first token, and none is predicted".to_owned()),
            },
            Rule::WaitBudget | Rule::Deadline => {
                let may_wait = Nanos(self.basis.may_wait_ns.unwrap_or(0));
                if self.waited + ROUNDED < may_wait {
                    let (waited, may_wait) = (self.waited.as_secs_f64(), may_wait.as_secs_f64());
                    return Err(format!("refused after {waited:.3} s of {may_wait:.3} s that it might wait"));
                }
                Ok(true)
            }
            Rule::RetryBudget | Rule::QueueFull | Rule::Displaced => Ok(false),
        }
    }

    fn of_curve(&self) -> Result<f64, String> {
        let [before, after] = self.basis.curve;
        let Some(level) = self.level else { return Ok(1.0) };
        if before.0 < after.0 && !(before.0..=after.0).contains(&level) {
            return Err(format!("a level of {level}; its curve's points are at {} and {}", before.0, after.0));
        }
        Ok(between(before, after, level))
    }

    /// Tokens per second of a share of the capacity, for this gateway.
    fn rate(&self, share: f64) -> Result<f64, String> {
        let capacity = self.basis.capacity_tokens_per_s.filter(|_| share < 1.0);
        capacity
            .map(|capacity| capacity * (share * self.basis.part))
            .ok_or_else(|| "refused, and nothing limits it".to_owned())
    }

    fn over_class(&self) -> Result<(), String> {
        let burst = (self.rate(self.share)? * self.basis.burst_s) as u64;
        self.over("its class's quota", burst, self.basis.class_filled_tokens)
    }

    fn over_part(&self, left: f64) -> Result<(), String> {
        let tenant = self.basis.tenant.ok_or("refused for its tenant's part, and none is recorded")?;
        let whole = (self.rate(self.share.max(left * PARTS))? * self.basis.burst_s) as u64;
        let burst = (whole as f64 * (f64::from(tenant.weight) / tenant.asking.max(1) as f64)) as u64;
        self.over("its tenant's part", burst, tenant.filled_tokens)
    }

    fn over(&self, what: &str, burst: u64, filled: f64) -> Result<(), String> {
        let cost = self.basis.cost_tokens;
        let brim = burst.max(cost) as f64;
        if filled + cost as f64 > brim - SAME * brim {
            return Ok(());
        }
        Err(format!("{cost} tokens fit into {what}: {filled:.0} of {burst} were taken"))
    }
}
