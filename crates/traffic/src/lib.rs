//! Traffic scheduling: how urgent a request is, and how much repetition the fleet can bear.
//!
//! Pure: no IO, no clock, no unseeded randomness. [`Admission`] puts the parts together, one object per pool; the gateway and the simulator drive
//! it as it is. The SLO rule is used by the built-in engine's step scheduler too.

pub mod admission;
pub mod class;
pub mod fair_queue;
pub mod lease;
pub mod level;
pub mod meter;
pub mod quota;
pub mod retry_budget;
pub mod slo;

pub use admission::Admission;
pub use class::{ClassRules, ClassVerdict, classify};
pub use lease::{Lease, LeaseRules, Leases};
pub use retry_budget::RetryBudget;
