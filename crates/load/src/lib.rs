//! Load scheduling: which engine gets a request, and what is in flight where.
//!
//! Peers count load in several places at different moments and herd, leak or underflow (`gateways.md` §5, cases 1-12).
//! Here one object, [`Scheduler`], holds the ledger, the health states and the placement policy. A choice and its
//! charge happen in the same call, so a burst of equal requests spreads; every charge is settled exactly once.
//!
//! Pure: no IO, no clock, no unseeded randomness. The gateway keeps one [`Scheduler`] behind a mutex and hands in its
//! monotonic time; the simulator drives the same object with virtual time.

pub mod ask;
pub mod config;
mod gate;
mod glance;
pub mod health;
mod instance;
mod invariants;
pub mod latency;
pub mod ledger;
pub mod place;
mod pool;
pub mod prefill_rate;
pub mod reconcile;
pub mod replay;
mod roster;
pub mod routes;
pub mod scheduler;
pub mod verdict;

pub use ask::{Ask, AttemptEnd, Charge, HeldTokens, InstanceSpec, Ticket};
pub use config::{HealthConfig, PolicyKind, SchedulerConfig};
pub use health::{HealthChange, HealthState};
pub use latency::{Coefficients, LatencyModel};
pub use ledger::Counters;
pub use place::{Candidate, Choice, Load, Loads, Placement, Reason, View};
pub use replay::Basis;
pub use routes::RouteSet;
pub use scheduler::predict::LatencyView;
pub use scheduler::{PoolLoad, Scheduler};
pub use verdict::{InstanceView, ModelStatus, PlaceError, Placed, RankLoad, Scored, Settled, Totals};
