//! The engine over real sockets.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod bodies;
mod client;
mod crash;
mod disagg;
mod errors;
mod faults;
mod independent;
mod kv_events;
mod lifecycle;
mod logprobs;
mod migration;
mod offload;
mod ranks;
mod slo;
mod streams;
mod text;
mod timing;
