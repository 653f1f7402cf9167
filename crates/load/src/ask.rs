//! What goes into the scheduler: instances, questions, and how attempts ended.

use plimsoll_core::{EngineKind, InstanceId, LegRole, Nanos, RequestId};

/// What is known about an instance. Probing refines it (`update_instance`).
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceSpec {
    /// Model names it serves. Empty: not known yet.
    pub models: Vec<String>,
    pub kind: EngineKind,
    /// Data-parallel ranks; 0 is read as 1.
    pub ranks: u16,
    /// KV tokens the whole instance can hold, split evenly over its ranks. A rank's own report wins over it.
    pub capacity_kv_tokens: Option<u64>,
    /// The engine says of itself that it can serve (it may be loading weights).
    pub ready: bool,
}

/// What one attempt costs an instance from the moment of the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Prompt tokens that are not expected to hit the cache. Released at the first token.
    pub uncached_prefill_tokens: u64,
    /// KV tokens held until the attempt ends: prompt plus predicted growth.
    pub reserved_kv_tokens: u64,
}

impl Charge {
    /// Largest count that is booked. A client may ask for any number of tokens; sums must not saturate, or they
    /// could not be taken apart again. No engine holds as many.
    pub const MAX_TOKENS: u64 = 1 << 40;

    pub(crate) fn bounded(self) -> Self {
        Charge {
            uncached_prefill_tokens: self.uncached_prefill_tokens.min(Self::MAX_TOKENS),
            reserved_kv_tokens: self.reserved_kv_tokens.min(Self::MAX_TOKENS),
        }
    }
}

/// Where should this attempt run?
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub request: RequestId,
    pub attempt: u8,
    pub leg: u8,
    pub role: LegRole,
    /// `None`: the only model there is.
    pub model: Option<&'a str>,
    /// Restrict to these engine families (`/generate` is SGLang only).
    pub kinds: Option<&'a [EngineKind]>,
    pub charge: Charge,
    /// Instances that this request has already failed on.
    pub exclude: &'a [InstanceId],
}

impl Ask<'_> {
    #[must_use]
    pub const fn ticket(&self) -> Ticket {
        Ticket { request: self.request, leg: self.leg, attempt: self.attempt }
    }
}

/// Names one charge in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    pub request: RequestId,
    pub leg: u8,
    pub attempt: u8,
}

/// How an attempt ended, as far as the instance is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    Ok,
    /// 4xx: the client's fault, and a sign that the engine lives.
    ClientFault,
    /// The client went away, or another leg failed.
    Cancelled,
    /// The engine answered 429 or 503. Says nothing about its health.
    Refused {
        /// The engine's `Retry-After`.
        retry_after: Option<Nanos>,
    },
    ConnectFailed,
    /// 5xx, reset, garbage.
    Failed,
    /// Nothing came within the idle time-out.
    Stalled,
}
