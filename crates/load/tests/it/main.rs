//! The scheduler as its callers see it: one module per promise.

#![allow(clippy::unwrap_used, reason = "helpers outside test functions are tests too")]

mod cases;
mod cases_balance;
mod cases_cache;
mod fleet;
mod health;
mod interleavings;
mod legs_and_routes;
mod membership;
mod models;
mod plain_rule;
mod pool_loads;
mod price;
mod records;
mod refusals;
mod replay;
mod reports;
mod spread;
mod ties;
mod unseen_prefill;
mod world;
