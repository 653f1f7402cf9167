//! What the operator can set about admission. The settings tree holds the documented defaults of the program; those here are the
//! same values, for tests and the simulator.

use crate::class::basis;
use crate::fair_queue::{Bounds, Weights};
use crate::quota::Quotas;
use plimsoll_core::{Class, Nanos};
use serde::Serialize;
use std::collections::BTreeMap;

/// All rules of one [`super::Admission`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rules {
    /// How long a prompt may wait for its prefill at most: at so much work in front the prefill level is 1.
    pub target_wait: Nanos,
    /// Time constants of the level.
    pub rise: Nanos,
    pub fall: Nanos,
    /// Share by which the level must fall before quotas follow it.
    pub hysteresis: f64,
    pub quotas: Quotas,
    /// A class or tenant may admit at once what it may admit in this time.
    pub burst: Nanos,
    /// A class keeps to its quota only while another one had a request within this time: nobody is served better for refusing
    /// the only one who asks.
    pub demand_memory: Nanos,
    pub weights: Weights,
    pub bounds: Bounds,
    /// What an engine has in front of it at most, in time of its own rate; everything else waits here, where it can still be
    /// put in order. Keep it above the time that a request takes to reach the engine.
    pub engine_queue: Nanos,
    /// And at least this, or a slow start would teach a slow rate.
    pub engine_queue_tokens: u64,
    /// A request of a lower class that keeps an engine for longer than this is long: at most a part of the engines, set by
    /// what the high class has asked for of late, prefills those at once.
    pub long_prefill: Nanos,
    /// Longest wait for an engine.
    pub max_wait: Nanos,
    /// A class of which nothing was admitted for so long gets one request past its quota.
    pub aging: Nanos,
    pub slo: SloRules,
    /// Repetitions as a fraction of a tenant's fresh requests, and at once.
    pub retry_fraction: f64,
    pub retry_burst: u32,
    /// What one token of output costs, in tokens of prefill.
    pub decode_token_cost: f64,
    /// Tenants that differ from [`Rules::tenant_default`].
    pub tenants: BTreeMap<String, TenantRules>,
    pub tenant_default: TenantRules,
    /// Seed of the jitter.
    pub seed: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            target_wait: Nanos::from_secs(2),
            rise: Nanos::from_millis(500),
            fall: Nanos::from_secs(5),
            hysteresis: 0.15,
            quotas: Quotas::default(),
            burst: Nanos::from_secs(2),
            demand_memory: Nanos::from_secs(30),
            weights: Weights::default(),
            bounds: Bounds { requests: 8_192, bytes: 1 << 30, tokens: 256 << 20 },
            engine_queue: Nanos::from_secs(1),
            engine_queue_tokens: 4_096,
            long_prefill: Nanos::from_secs(1),
            max_wait: Nanos::from_secs(600),
            aging: Nanos::from_secs(15),
            slo: SloRules::default(),
            retry_fraction: 0.1,
            retry_burst: 16,
            decode_token_cost: 1.0,
            tenants: BTreeMap::new(),
            tenant_default: TenantRules::default(),
            seed: 0,
        }
    }
}

impl Rules {
    #[must_use]
    pub fn tenant(&self, name: &str) -> &TenantRules {
        self.tenants.get(name).unwrap_or(&self.tenant_default)
    }
}

/// What a tenant may.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantRules {
    /// Its share against other tenants.
    pub weight: u32,
    /// Tokens per second that it may have admitted, whatever the level.
    pub tokens_per_s: Option<f64>,
    /// Classes that its requests go down from what their work says; up where negative.
    pub shift: i8,
    /// No request of it is of a higher class than this.
    pub highest: Class,
    /// And none of a lower one.
    pub lowest: Class,
    /// Time from arrival to first token that it is promised, where a request does not say.
    pub first_token: Option<Nanos>,
    pub on_slo_miss: OnSloMiss,
}

impl Default for TenantRules {
    fn default() -> Self {
        TenantRules {
            weight: 1,
            tokens_per_s: None,
            shift: 0,
            highest: Class::High,
            lowest: Class::Low,
            first_token: None,
            on_slo_miss: OnSloMiss::Refuse,
        }
    }
}

impl TenantRules {
    /// What they say of a request's class; `named`: they were set for this tenant by name.
    #[must_use]
    pub fn bounds(&self, named: bool) -> basis::Bounds {
        basis::Bounds { named, shift: self.shift, highest: self.highest, lowest: self.lowest }
    }
}

/// What happens to a request that cannot be served in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnSloMiss {
    /// It is refused at once.
    Refuse,
    /// It goes on waiting, as the last of class low.
    BestEffort,
}

/// What is promised where nobody says anything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SloRules {
    /// Prompts of at most so many tokens have their first token within so long, in rising order; longer ones as the last.
    pub base: Vec<(u64, Nanos)>,
    /// Times this, by class.
    pub high: f64,
    pub medium: f64,
    pub low: f64,
    /// Requests that cannot keep this promise are treated as if they had asked for it.
    pub enforced: bool,
}

impl Default for SloRules {
    fn default() -> Self {
        SloRules {
            base: vec![
                (1_024, Nanos::from_secs(2)),
                (4_096, Nanos::from_secs(4)),
                (16_384, Nanos::from_secs(8)),
                (65_536, Nanos::from_secs(20)),
                (262_144, Nanos::from_secs(60)),
            ],
            high: 1.0,
            medium: 1.5,
            low: 3.0,
            enforced: false,
        }
    }
}

impl SloRules {
    /// Time from arrival to first token.
    #[must_use]
    pub fn promise(&self, prompt_tokens: u64, class: Class) -> Nanos {
        let at = self.base.partition_point(|(tokens, _)| *tokens < prompt_tokens);
        let base = self.base.get(at).or(self.base.last()).map_or(Nanos::MAX, |(_, time)| *time);
        let times = match class {
            Class::High => self.high,
            Class::Medium => self.medium,
            Class::Low => self.low,
        };
        if base == Nanos::MAX { base } else { Nanos::from_secs_f64(base.as_secs_f64() * times) }
    }
}
