//! The gateway: one request path, from a client's bytes to an engine and back.
//!
//! The way of a request through this crate: [`server`] (connection) -> [`accept`] (who, what, how large) -> [`begin`]
//! (let go by [`traffic`], choose and charge, send, wait, try elsewhere while that is safe) -> [`relay`] (the stream, at the client's pace) ->
//! [`flow`] (its one end: record, metrics, trace). [`attempt`] guards what an engine and the ledger hold for it.
//!
//! The decisions themselves are not here: `plimsoll-load` and `plimsoll-traffic` make them, from the time and the facts
//! that this crate hands in.

pub mod accept;
pub mod admin;
mod admit;
pub mod api_error;
pub mod attempt;
pub mod auth;
pub mod begin;
pub mod body;
pub mod body_budget;
pub mod cache_plan;
pub mod clock;
mod engine_priority;
mod first_event;
pub mod fleet;
pub mod flow;
pub mod funnel;
pub mod headers;
pub mod idempotency;
mod kv_follow;
pub mod kv_view;
pub mod leases;
pub mod listing;
pub mod membership;
pub mod metrics;
pub mod model_text;
mod no_engine;
mod open_requests;
mod outbound;
mod owned;
mod pending;
pub mod prober;
mod read_body;
pub mod record;
pub mod relay;
mod run;
pub mod server;
pub mod spans;
mod stall_guard;
pub mod state;
mod stream_slots;
pub mod stream_watch;
mod tls;
pub mod token_estimate;
pub mod trace_context;
pub mod traffic;

pub use run::{GatewayError, Reload, Start, run};
