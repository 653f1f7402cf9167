//! Traffic scheduling: how urgent a request is, and how much repetition the fleet can bear.
//!
//! Pure: no IO, no clock, no randomness. So far the class rule, the retry budget and the SLO rule, which the built-in
//! engine's step scheduler uses too; water level, quota and queue join them here.

pub mod class;
pub mod retry_budget;
pub mod slo;

pub use class::{ClassRules, ClassVerdict, classify};
pub use retry_budget::RetryBudget;
