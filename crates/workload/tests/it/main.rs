//! The workload crate from outside: generated statistics, real traces, prompt text, complaints about bad files.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure here is a failed test")]

mod bad_files;
mod published;
mod sessions;
mod shared;
mod text;
