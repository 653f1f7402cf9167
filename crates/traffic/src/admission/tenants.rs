//! What each tenant has had: its part of its class's quota, its own rate, its repetitions.
//!
//! A tenant's part of a class is its weight among the tenants that ask for that class now. It is a right and no limit: while the class
//! has something left, anybody may have it; once the class has not, whoever is below his part is still admitted. So a tenant that sends
//! ten times as much takes what the others leave, and never what is theirs.

use super::basis::TenantBasis;
use super::books::Flight;
use super::rules::Rules;
use crate::meter::{Limit, Meter, Refused, UNLIMITED};
use crate::retry_budget::RetryBudget;
use plimsoll_core::{Class, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tenant that has not asked for a class for this long leaves its part of it to the others.
const ASKS: Nanos = Nanos::from_secs(10);
/// And one that has not asked for anything is forgotten.
const FORGET: Nanos = Nanos::from_secs(60);
/// Tenants looked at per call: a decision must stay cheap with any number of them.
const SWEEP: usize = 8;

#[derive(Debug)]
struct Tenant {
    weight: u32,
    meters: [Meter; 3],
    /// When it last asked for a class.
    asked: [Option<Nanos>; 3],
    rate: Option<Meter>,
    retries: RetryBudget,
    seen: Nanos,
}

/// All tenants that asked of late.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    known: BTreeMap<Arc<str>, Tenant>,
    /// Weights of those that ask for a class.
    asking: [u64; 3],
    swept: Option<Arc<str>>,
}

impl Tenants {
    /// It asks for a class.
    pub(crate) fn asks(&mut self, name: &Arc<str>, class: Class, now: Nanos, rules: &Rules) {
        self.sweep(now);
        if !self.known.contains_key(name) {
            let tenant = rules.tenant(name);
            let new = Tenant {
                weight: tenant.weight.max(1),
                meters: [Meter::new(UNLIMITED, now); 3],
                asked: [None; 3],
                rate: tenant.tokens_per_s.map(|rate| Meter::new(limit(rate, rules), now)),
                retries: RetryBudget::new(rules.retry_fraction, rules.retry_burst),
                seen: now,
            };
            self.known.insert(name.clone(), new);
        }
        if let Some(tenant) = self.known.get_mut(name) {
            tenant.seen = now;
            if tenant.asked[class as usize].replace(now).is_none() {
                self.asking[class as usize] += u64::from(tenant.weight);
            }
        }
    }

    /// Its own rate allows it.
    pub(crate) fn check_rate(&mut self, name: &str, tokens: u64, now: Nanos) -> Result<(), Refused> {
        let meter = self.known.get_mut(name).and_then(|tenant| tenant.rate.as_mut());
        meter.map_or(Ok(()), |meter| meter.check(tokens, now))
    }

    /// Gives it its part of a class that may admit `class_limit`.
    pub(crate) fn set_part(&mut self, name: &str, class: Class, class_limit: Limit, now: Nanos) {
        let all = self.asking[class as usize].max(1) as f64;
        let Some(tenant) = self.known.get_mut(name) else { return };
        let part = f64::from(tenant.weight) / all;
        let burst_tokens = (class_limit.burst_tokens as f64 * part) as u64;
        let limit = Limit { tokens_per_s: class_limit.tokens_per_s * part, burst_tokens };
        tenant.meters[class as usize].set_limit(limit, now);
    }

    /// Whether it is below its part of a class, as it was set last.
    pub(crate) fn check_part(&mut self, name: &str, class: Class, tokens: u64, now: Nanos) -> Result<(), Refused> {
        self.known.get_mut(name).map_or(Ok(()), |tenant| tenant.meters[class as usize].check(tokens, now))
    }

    /// Others ask for this class too.
    pub(crate) fn has_others(&self, name: &str, class: Class) -> bool {
        let own = self.known.get(name).map_or(0, |tenant| u64::from(tenant.weight));
        self.asking[class as usize] > own
    }

    /// What it had, for the record of a refusal.
    pub(crate) fn basis(&mut self, name: &str, class: Class, now: Nanos) -> Option<TenantBasis> {
        let asking = self.asking[class as usize];
        let tenant = self.known.get_mut(name)?;
        let of = |meter: &mut Meter| (meter.limit().tokens_per_s, meter.limit().burst_tokens, meter.filled_tokens(now));
        Some(TenantBasis {
            weight: tenant.weight,
            asking,
            filled_tokens: tenant.meters[class as usize].filled_tokens(now),
            rate: tenant.rate.as_mut().map(of),
        })
    }

    pub(crate) fn charge(&mut self, name: &str, class: Class, tokens: u64, now: Nanos) {
        if let Some(tenant) = self.known.get_mut(name) {
            tenant.meters[class as usize].charge(tokens, now);
            if let Some(rate) = &mut tenant.rate {
                rate.charge(tokens, now);
            }
        }
    }

    pub(crate) fn refund(&mut self, flight: &Flight, tokens: u64, now: Nanos) {
        if let Some(tenant) = self.known.get_mut(&flight.tenant) {
            if flight.quota_charged {
                tenant.meters[flight.class as usize].refund(tokens, now);
            }
            if let Some(rate) = &mut tenant.rate {
                rate.refund(tokens, now);
            }
        }
    }

    /// A fresh request pays for repetitions.
    pub(crate) fn fresh(&mut self, name: &str) {
        if let Some(tenant) = self.known.get_mut(name) {
            tenant.retries.on_request();
        }
    }

    /// Takes a repetition out of the budget.
    pub(crate) fn try_retry(&mut self, name: &str) -> bool {
        self.known.get_mut(name).is_none_or(|tenant| tenant.retries.try_retry())
    }

    pub(crate) fn reconfigure(&mut self, now: Nanos, rules: &Rules) {
        self.asking = [0; 3];
        for (name, tenant) in &mut self.known {
            let wanted = rules.tenant(name);
            tenant.weight = wanted.weight.max(1);
            tenant.retries.reconfigure(rules.retry_fraction, rules.retry_burst);
            tenant.rate = wanted.tokens_per_s.map(|rate| match tenant.rate.take() {
                Some(mut meter) => {
                    meter.set_limit(limit(rate, rules), now);
                    meter
                }
                None => Meter::new(limit(rate, rules), now),
            });
            for (sum, asked) in self.asking.iter_mut().zip(tenant.asked) {
                *sum += if asked.is_some() { u64::from(tenant.weight) } else { 0 };
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Forgets a few of those that ask no more.
    fn sweep(&mut self, now: Nanos) {
        for _ in 0..SWEEP {
            let next = match &self.swept {
                Some(last) => self
                    .known
                    .range_mut::<Arc<str>, _>((std::ops::Bound::Excluded(last.clone()), std::ops::Bound::Unbounded)),
                None => self.known.range_mut::<Arc<str>, _>(..),
            }
            .next();
            let Some((name, tenant)) = next else {
                self.swept = None;
                return;
            };
            let name = name.clone();
            for (sum, asked) in self.asking.iter_mut().zip(&mut tenant.asked) {
                if asked.is_some_and(|at| now.since(at) > ASKS) {
                    *asked = None;
                    *sum -= u64::from(tenant.weight);
                }
            }
            let owes = tenant.meters.iter_mut().chain(&mut tenant.rate).any(|meter| !meter.is_empty(now));
            if now.since(tenant.seen) > FORGET && !owes {
                self.known.remove(&name);
            }
            self.swept = Some(name);
        }
    }
}

fn limit(tokens_per_s: f64, rules: &Rules) -> Limit {
    Limit { tokens_per_s, burst_tokens: (tokens_per_s * rules.burst.as_secs_f64()) as u64 }
}
