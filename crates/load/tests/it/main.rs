//! The scheduler as its callers see it: one module per promise.

mod fleet;
mod health;
mod interleavings;
mod membership;
mod models;
mod records;
mod refusals;
mod reports;
mod spread;
mod ties;
