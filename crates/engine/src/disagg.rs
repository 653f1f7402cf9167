//! Prefill and decode in processes of their own.
//!
//! A prefill engine computes a prompt and its first token, a decode engine goes on from there; the prompt's KV moves between
//! them ([`crate::transfer`]). The wire is SGLang's, so whatever drives a pair of SGLang engines drives a pair of these:
//! the same body goes to both at once, with `bootstrap_host` and `bootstrap_port` of the prefill engine and a fresh
//! `bootstrap_room`. The decode engine calls the prefill engine there and asks for the room.
//!
//! ```text
//! prefill                                             decode
//!   request waits in its room            <── call ──    request asks for the room
//!                                        ── paired ─►   waits for pages and a place
//!   queue, prefill in chunks             <── ready ──   (how many pages its cache already has)
//!     pages go out as they are computed  ── pages ──►   writes them between its steps
//!   first token                          ─ first, end ► checks count and chain, goes on with the second token
//!   answers, with one token              <── landed ──
//! ```
//!
//! SGLang's two legs cannot tell each other that one of them failed, and pin slots for minutes. Here the connection is
//! the life line: a leg that ends in any way ends it, and the other leg ends at once; a peer that is frozen is noticed
//! within [`DisaggConfig::deadline`], because both sides give a sign of life several times in that. And KV is held for a
//! peer only while it is known to be there: decode takes no pages before its partner has come, prefill computes nothing
//! before decode has pages, and lets its own go as soon as they are copied out.
//!
//! In here: what belongs to the step loop is in `leg` and `core::legs`; `prefill` and `decode` are the tasks that talk to the
//! other engine; `bootstrap` is the prefill engine's port, `rooms` who waits in it.

mod bootstrap;
mod config;
mod decode;
pub(crate) mod failure;
pub(crate) mod leg;
pub(crate) mod notes;
mod prefill;
mod rooms;
mod service;
pub(crate) mod stats;

pub use config::{DisaggConfig, Role};
pub(crate) use leg::Leg;
pub(crate) use service::Service;

/// Where a request's two legs meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// The prefill engine.
    pub host: String,
    pub port: u16,
    /// 0 to 2^63 - 1, another one for every request in flight.
    pub room: u64,
}

/// SGLang's sign for a request that shall run without a partner, such as a health check.
pub(crate) const FAKE_HOST: &str = "2.2.2.2";
