//! Traffic scheduling: how urgent a request is, and how much repetition the fleet can bear.
//!
//! Pure: no IO, no clock, no randomness. The class rule, the retry budget and the SLO rule, which the built-in engine's step
//! scheduler uses too, are in use; water level, quota curves, token meter and fair queue are not in the request path yet.

pub mod class;
pub mod fair_queue;
pub mod level;
pub mod meter;
pub mod quota;
pub mod retry_budget;
pub mod slo;

pub use class::{ClassRules, ClassVerdict, classify};
pub use retry_budget::RetryBudget;
