//! Cache decisions: what a prefix is called, and later who holds it.
//!
//! Pure (design rule 1): no clock, no IO, no threads. Engine, gateway and simulator use the same code, so that a block
//! has one name everywhere.

pub mod block_hash;
pub mod chain;
pub mod fingerprint_map;
pub mod funnel;
pub mod index;
pub mod session;
pub mod stream;
pub mod view;
pub mod vllm_hash;

pub use block_hash::{Chain, Digest, EventHash};
