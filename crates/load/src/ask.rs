//! What goes into the scheduler: instances, questions, and how attempts ended.

use crate::routes::RouteSet;
use plimsoll_core::{EngineKind, InstanceId, LegRole, Nanos, RequestId, Target};

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
    /// Longest prompt plus output of one sequence. Bounds what one request can reserve here.
    pub context_tokens: Option<u64>,
    /// Takes only legs of this role.
    pub role: LegRole,
    /// [`RouteSet::ALL`] where the engine does not say.
    pub routes: RouteSet,
    /// The engine says of itself that it can serve (it may be loading weights).
    pub ready: bool,
}

/// An engine of which nothing is known yet.
impl Default for InstanceSpec {
    fn default() -> Self {
        InstanceSpec {
            models: Vec::new(),
            kind: EngineKind::Openai,
            ranks: 1,
            capacity_kv_tokens: None,
            context_tokens: None,
            role: LegRole::Unified,
            routes: RouteSet::ALL,
            ready: false,
        }
    }
}

/// What one attempt costs an instance from the moment of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Prompt tokens that are not expected to hit the cache. Released at the first token.
    pub uncached_prefill_tokens: u64,
    /// KV tokens held until the attempt ends: prompt plus predicted growth.
    pub reserved_kv_tokens: u64,
    /// Sequences that will run: prompts times samples. 0 is read as 1. None of them can outgrow the engine's context,
    /// so it bounds what is reserved.
    pub sequences: u64,
}

/// One sequence that costs nothing.
impl Default for Charge {
    fn default() -> Self {
        Charge { uncached_prefill_tokens: 0, reserved_kv_tokens: 0, sequences: 1 }
    }
}

impl Charge {
    /// Largest count that is booked. A client may ask for any number of tokens; sums must not saturate, or they
    /// could not be taken apart again. No engine holds as many.
    pub const MAX_TOKENS: u64 = 1 << 40;

    pub(crate) fn bounded(self) -> Self {
        Charge {
            uncached_prefill_tokens: self.uncached_prefill_tokens.min(Self::MAX_TOKENS),
            reserved_kv_tokens: self.reserved_kv_tokens.min(Self::MAX_TOKENS),
            sequences: self.sequences.clamp(1, Self::MAX_TOKENS),
        }
    }
}

/// A prompt's leading tokens that a target need not compute, by where their KV lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldTokens {
    /// Ready in the accelerator's memory.
    pub device_tokens: u64,
    /// Behind those; loaded from host memory first.
    pub host_tokens: u64,
    /// Part of `device_tokens` that requests which run there hold anyway: they take no further room.
    pub shared_tokens: u64,
}

impl HeldTokens {
    #[must_use]
    pub const fn on_device(tokens: u64) -> Self {
        HeldTokens { device_tokens: tokens, host_tokens: 0, shared_tokens: 0 }
    }

    #[must_use]
    pub const fn tokens(self) -> u64 {
        self.device_tokens.saturating_add(self.host_tokens)
    }

    /// Tokens of prefill that it saves: what lies in host memory has to be loaded, which takes as long as computing fewer tokens.
    #[must_use]
    pub fn worth_tokens(self, prefill_tokens_per_s: f64, kv_load_tokens_per_s: f64) -> u64 {
        let saved = (1.0 - prefill_tokens_per_s / kv_load_tokens_per_s.max(1.0)).clamp(0.0, 1.0);
        self.device_tokens.saturating_add((self.host_tokens as f64 * saved) as u64)
    }

    /// Of a prompt of so many tokens.
    #[must_use]
    pub(crate) fn within(self, prompt_tokens: u64) -> Self {
        let device_tokens = self.device_tokens.min(prompt_tokens);
        HeldTokens {
            device_tokens,
            host_tokens: self.host_tokens.min(prompt_tokens - device_tokens),
            shared_tokens: self.shared_tokens.min(device_tokens),
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
    /// The route it came by; [`RouteSet::NONE`]: any engine will do.
    pub route: RouteSet,
    /// Its first token will be seen. Of any other request the prefill tokens count only for as long as they should take.
    pub streams: bool,
    /// With `uncached_prefill_tokens` as if nothing were cached; what `hits` says is taken off per target.
    pub charge: Charge,
    /// What targets are believed to hold of the prompt already, by target in ascending order. Of nobody else anything is
    /// known, so nobody else gets credit.
    pub hits: &'a [(Target, HeldTokens)],
    /// Instances that this request has already failed on.
    pub exclude: &'a [InstanceId],
}

/// A plain stream for the only model there is.
impl Default for Ask<'_> {
    fn default() -> Self {
        Ask {
            request: RequestId(0),
            attempt: 0,
            leg: 0,
            role: LegRole::Unified,
            model: None,
            kinds: None,
            route: RouteSet::NONE,
            streams: true,
            charge: Charge::default(),
            hits: &[],
            exclude: &[],
        }
    }
}

impl Ask<'_> {
    /// Prompt tokens that a target need not compute.
    #[must_use]
    pub fn hit_tokens(&self, target: Target) -> u64 {
        self.held(target).tokens()
    }

    /// The part of the prompt that a target holds, never more than there is.
    pub(crate) fn held(&self, target: Target) -> HeldTokens {
        let found = self.hits.binary_search_by_key(&target, |(target, _)| *target);
        found.map_or(HeldTokens::default(), |at| self.hits[at].1.within(self.charge.uncached_prefill_tokens))
    }

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
