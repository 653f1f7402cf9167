//! The harness of the end-to-end tests: the real `plimsoll` process, fake engines, and a client that can misbehave.
//!
//! Rules. Every wait has a deadline, every child is ended and reaped when its handle is dropped, and a test ends with
//! [`Gateway::finish`], which fails unless every counter of the ledger is back at zero. A machine may be slow: tests
//! judge by counts, ratios and the gateway's own records, not by the clock, and where a promise is a time the deadline
//! says which slack it allows.
//!
//! Programs: `PLIMSOLL_BIN` and `FAKE_ENGINE_BIN` name ready ones; otherwise they are built once per run.

pub mod binaries;
pub mod client;
pub mod engine;
pub mod fake;
pub mod gateway;
pub mod nats;
pub mod plan;
pub mod process;
pub mod sse;
pub mod wait;

pub use client::{Answer, Connection, ask, post_head};
pub use fake::FakeProcess;
pub use gateway::Gateway;
pub use nats::NatsServer;
pub use plan::Plan;
pub use process::Process;
pub use wait::{PATIENCE, eventually, patient};
