//! Traffic scheduling: how urgent a request is, and how much repetition the fleet can bear.
//!
//! Pure: no IO, no clock, no randomness. This first form has the class rule and the retry budget; water level, quota and
//! queue join it here.

pub mod class;
pub mod retry_budget;

pub use class::{ClassRules, ClassVerdict, classify};
pub use retry_budget::RetryBudget;
