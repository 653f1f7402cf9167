//! What admission is told of a request, and of the pool.

use plimsoll_core::{Class, InstanceLoad, Nanos, RequestId};
use std::sync::Arc;

/// A request that wants to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Unique. Ties are broken by it, the smaller first, so make it grow with arrival.
    pub key: RequestId,
    pub tenant: Arc<str>,
    /// As classified, and already within what its tenant may ([`crate::class::basis::Basis`]).
    pub class: Class,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Those of them that have to be computed at the best place there is.
    pub prefill_tokens: u64,
    /// Output expected.
    pub decode_tokens: u64,
    /// Memory it holds while it waits.
    pub bytes: u64,
    /// How long one engine that does nothing else takes to its first token, where a model of the engines knows it. `None`:
    /// `prefill_tokens` at the pool's rate.
    pub service: Option<Nanos>,
    /// When its first token must be there, where client, upstream or tenant say so. `None`: the rules' own promise
    /// ([`super::SloRules`]), which orders but, unless they say otherwise, refuses nobody.
    pub first_token_by: Option<Nanos>,
    /// When it must be answered at the latest, whatever the answer.
    pub answer_by: Nanos,
    /// The client repeats a request that failed.
    pub retry: bool,
}

/// The pool as it is at `taken_at`, one entry per rank that may be chosen. A view with the same `taken_at` as the one before is
/// taken to be the same and is not read again.
#[derive(Clone, Copy, Debug)]
pub struct PoolView<'a> {
    pub taken_at: Nanos,
    pub instances: &'a [InstanceLoad],
}
