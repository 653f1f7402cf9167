//! Workloads: what is sent, when, and which prefixes it shares.
//!
//! A balancer that keeps KV caches warm can only be judged under traffic whose prefixes repeat as real traffic does.
//! Three sources give the same [`Session`]s: the two public traces of `shared/traces` ([`traces`]) and a seeded
//! generator of agent sessions ([`SessionGenerator`]) calibrated to them. A prompt is a list of block ids; [`Synth`]
//! turns ids into words so that two prompts share exactly the leading words whose blocks they share.
//!
//! Nothing here reads a clock, opens a socket or draws unseeded randomness; only the trace readers touch files. The
//! demo, the benchmark client and the simulator drive the same sessions.

mod ids;
mod mix;
mod plan;
mod quantiles;
mod scale;
mod sessions;
mod text;
mod timeline;
pub mod traces;

pub use ids::BlockIds;
pub use plan::{After, Call, Prompt, Run, Session, Tail};
pub use quantiles::Quantiles;
pub use scale::Scale;
pub use sessions::{SessionGenerator, Shape};
pub use text::Synth;
pub use timeline::{Moment, Spread, timeline};
