//! Traffic scheduling: who may go now, who waits, who is refused.

use plimsoll_core::Class;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Traffic scheduling. Nothing of it acts while there is room: a request then goes at once, whatever its class. Can be changed at run time
/// through the admin API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Traffic {
    /// Off, every request is placed as it comes and waits in the engine's own queue.
    pub enabled: bool,
    /// How long a prompt may wait for its prefill at most, in milliseconds: with so much work in front of the engines the water level is 1.
    pub target_wait_ms: u64,
    /// Time constant with which the level follows when it rises, in milliseconds.
    pub level_rise_ms: u64,
    /// And when it falls.
    pub level_fall_ms: u64,
    /// Share by which the level must fall before quotas follow it down.
    pub hysteresis: f64,
    /// What a class may have of the capacity, by water level.
    pub quota: Quota,
    /// A class, or a tenant, may have at once what its quota gives it in this time, in milliseconds.
    pub burst_ms: u64,
    /// A class keeps to its quota only while another one had a request within this time, in milliseconds.
    pub demand_memory_ms: u64,
    /// Shares of the classes in what is served while they wait.
    pub weights: Weights,
    /// Most that may wait.
    pub queue: Queue,
    /// What an engine has in front of it at most, in milliseconds of its own measured rate. Everything else waits here, where it can still
    /// be put in order.
    pub engine_queue_ms: u64,
    /// And at least this many tokens.
    pub engine_queue_tokens: u64,
    /// A request of class medium or low that keeps an engine for longer than this, in milliseconds, is long. Only as many engines prefill long
    /// ones at once as the high class leaves by its recent demand, and always one.
    pub long_prefill_ms: u64,
    /// Longest wait for an engine, in milliseconds; a request's own deadline comes before it.
    pub max_wait_ms: u64,
    /// A class of which nothing was admitted for this long, in milliseconds, gets one request past its quota.
    pub aging_ms: u64,
    /// What a token of output costs against one of prefill, in quotas and shares.
    pub decode_token_cost: f64,
    /// Repetitions that a tenant may send while the fleet is busy, as a fraction of its other requests. A request says that it is
    /// one by `x-stainless-retry-count`, as OpenAI's SDKs do.
    pub retry_fraction: f64,
    /// Repetitions allowed at once after a quiet time.
    pub retry_burst: u32,
    /// Times to the first token.
    pub slo: Slo,
    /// Tenants with rules of their own.
    pub tenants: Vec<TenantTraffic>,
}

impl Default for Traffic {
    fn default() -> Self {
        Traffic {
            enabled: true,
            target_wait_ms: 2_000,
            level_rise_ms: 500,
            level_fall_ms: 5_000,
            hysteresis: 0.15,
            quota: Quota::default(),
            burst_ms: 2_000,
            demand_memory_ms: 30_000,
            weights: Weights::default(),
            queue: Queue::default(),
            engine_queue_ms: 1_000,
            engine_queue_tokens: 4_096,
            long_prefill_ms: 1_000,
            max_wait_ms: 600_000,
            aging_ms: 15_000,
            decode_token_cost: 1.0,
            retry_fraction: 0.1,
            retry_burst: 16,
            slo: Slo::default(),
            tenants: Vec::new(),
        }
    }
}

/// Curves of the three classes: points by rising level, straight between them and flat outside. A share never rises with the level, and a
/// higher class never has less than a lower one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Of class high.
    pub high: Vec<QuotaPoint>,
    /// Of class medium.
    pub medium: Vec<QuotaPoint>,
    /// Of class low.
    pub low: Vec<QuotaPoint>,
}

impl Default for Quota {
    fn default() -> Self {
        let curve = |points: &[(f64, f64)]| points.iter().map(|&(level, share)| QuotaPoint { level, share }).collect();
        Quota {
            high: curve(&[(0.70, 1.0), (0.85, 1.0), (0.95, 1.0), (1.0, 0.9)]),
            medium: curve(&[(0.70, 1.0), (0.85, 1.0), (0.95, 0.6), (1.0, 0.2)]),
            low: curve(&[(0.70, 1.0), (0.85, 0.7), (0.95, 0.25), (1.0, 0.02)]),
        }
    }
}

/// One point of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaPoint {
    /// Water level, 0 to 1.
    pub level: f64,
    /// Share of the capacity, 0 to 1.
    pub share: f64,
}

/// Weights of the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// Of class high.
    pub high: u32,
    /// Of class medium.
    pub medium: u32,
    /// Of class low.
    pub low: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Weights { high: 8, medium: 4, low: 1 }
    }
}

/// Bounds of a model's queue. When it is full, the newest of the lowest class gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Tokens they cost.
    pub tokens: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { requests: 8_192, bytes: 1 << 30, tokens: 256 << 20 }
    }
}

/// Times to the first token that requests are promised which name none themselves. They order the queue; whether they refuse is said by
/// `traffic.slo.enforced`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Slo {
    /// By length of the prompt, rising; longer prompts than the last have its time.
    pub base: Vec<SloPoint>,
    /// Times this for class high.
    pub high: f64,
    /// Times this for class medium.
    pub medium: f64,
    /// Times this for class low.
    pub low: f64,
    /// Requests that wait and cannot keep the promise are treated as if they had asked for it: refused at once. Off, only times that the client
    /// or its tenant's rules name refuse.
    pub enforced: bool,
}

impl Default for Slo {
    fn default() -> Self {
        let base = [(1_024, 2_000), (4_096, 4_000), (16_384, 8_000), (65_536, 20_000), (262_144, 60_000)];
        let base = base.map(|(prompt_tokens, first_token_ms)| SloPoint { prompt_tokens, first_token_ms });
        Slo { base: base.to_vec(), high: 1.0, medium: 1.5, low: 3.0, enforced: false }
    }
}

/// The promise for prompts of at most so many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SloPoint {
    /// Longest prompt.
    pub prompt_tokens: u64,
    /// From arrival to first token, in milliseconds.
    pub first_token_ms: u64,
}

/// Rules of one tenant, as named in `auth.keys`; `default` is the one without keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantTraffic {
    /// The tenant.
    pub name: String,
    /// Its share against other tenants, of what is served while they wait and of quotas.
    #[serde(default = "one")]
    pub weight: u32,
    /// Tokens per second that it may have at any level; no limit when left out.
    #[serde(default)]
    pub tokens_per_s: Option<f64>,
    /// Its requests get the next lower or higher class than their work says, before the bounds below.
    #[serde(default)]
    pub class_shift: ClassShift,
    /// Its requests may ask for this class and get no higher one; those of other tenants may not ask for more than they get by themselves.
    #[serde(default = "high")]
    pub highest_class: Class,
    /// Its requests get no lower class than this.
    #[serde(default = "low")]
    pub lowest_class: Class,
    /// Time to the first token that its requests are promised which name none, in milliseconds. Unlike `traffic.slo.base` it refuses.
    #[serde(default)]
    pub first_token_ms: Option<u64>,
    /// What becomes of a request that waits and cannot be served in time.
    #[serde(default)]
    pub on_slo_miss: OnSloMiss,
}

/// Where a tenant's requests go from the class that their work says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClassShift {
    #[default]
    None,
    /// High becomes medium, medium low.
    Lower,
    /// Low becomes medium, medium high.
    Higher,
}

fn one() -> u32 {
    1
}

fn high() -> Class {
    Class::High
}

fn low() -> Class {
    Class::Low
}

/// What becomes of a request that waits and cannot be served in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnSloMiss {
    /// It is refused at once, with the time that was predicted.
    #[default]
    Refuse,
    /// It goes on waiting, as the last of class low.
    BestEffort,
}
