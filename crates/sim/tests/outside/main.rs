//! The simulator held against what others measured: `workloads.md` section 6, one test per row, with the tolerances there.
//!
//! Each prints what came out beside what was expected. All need the public traces and tables (`PLIMSOLL_SHARED`, default
//! `../shared`) and pass over themselves, by name, where those are missing.

#![allow(clippy::unwrap_used, reason = "a test")]

mod adp_balance;
mod caches;
mod fidelity;
mod migration;
mod mooncake;
mod shared;
mod silicon;
mod skew;
mod sync_law;
mod tables;
