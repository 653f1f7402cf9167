//! A fake engine: SGLang, vLLM or any OpenAI server as a gateway meets them, with their traps and with faults on demand.
//!
//! Why: most promises of the gateway are about what engines do *wrong* (abort inside a 200 stream, notice a lost client
//! seconds late, answer `/health` slower than a probe waits, close a pooled connection under a request). No real engine
//! does these on command. The wire forms follow the recordings and readings in `reference/sglang.md` §1 and
//! `reference/engines.md` §2; the faults follow the complaints in `reference/gateways.md` §5.
//!
//! It is HTTP/1.1 on raw tokio sockets, since half of the faults are broken HTTP that no HTTP library will write. It
//! serves in a test's own process ([`FakeEngine::start`]) or as the program `fake-engine`, for tests that freeze or kill
//! it. Faults and timings are changed while it runs with `POST /_ctl` ([`Control`]), counters read with `GET /_ctl`
//! ([`Snapshot`]).
//!
//! Everything is bounded: connections, heads, bodies, logs of ids, and each endless fault ends after a fixed size.

pub mod behaviour;
pub mod fault;
pub mod snapshot;

mod answer;
mod ask;
mod connection;
mod control;
mod frames;
mod generate;
mod http1;
mod info;
mod outbound;
mod server;
mod slot;
mod state;

pub use behaviour::{Control, Dialect, Options};
pub use fault::Fault;
pub use server::FakeEngine;
pub use snapshot::Snapshot;
