//! The built-in engine: a small, real inference engine on the CPU.
//!
//! So that everything in front of it can be run, tested and shown without a GPU, on true KV and not on a mock: a
//! transformer in f32, paged KV with prefix reuse, continuous batching with chunked prefill, preemption and
//! cancellation, behind SGLang's and OpenAI's HTTP faces. Exactness is its point: the greedy answer to a prompt has the
//! same tokens whatever shares the batch and however its prefill was chunked, cached or recomputed.
//!
//! Split as in nano-vllm: [`mod@request`] and `sequence`, [`block_manager`], `scheduler`, `core` (the runner of one rank) and
//! [`model`]; `lockstep` steps the ranks together, `driver` gives them a thread, [`server`] its HTTP faces.

pub mod block_manager;
mod clock;
pub mod config;
mod core;
pub mod disagg;
mod driver;
pub mod faults;
pub mod kernels;
pub mod kv_events;
mod lockstep;
mod mailbox;
pub mod migration;
pub mod model;
pub mod namespace;
pub mod offload;
pub mod refusal;
pub mod request;
pub mod sampling;
mod scheduler;
mod sequence;
pub mod server;
pub mod stats;
mod step_log;
pub mod team;
pub mod text;
pub mod timing;
pub mod tokenizer;
pub mod transfer;
pub mod urgency;
pub mod words;

pub use config::{EngineConfig, EngineError};
pub use driver::{Engine, EngineHandle, Size, SubmitError, TooManyAborts};
pub use faults::{FaultSwitch, Faults};
pub use mailbox::{Ticket, Update};
pub use refusal::Refusal;
pub use scheduler::policy::{Order, SchedulePolicy};
pub use server::{serve, serve_and_tell};
pub use step_log::StepLine;
pub use urgency::Urgency;
pub use words::{WORD_COUNT, WORDS, word};
