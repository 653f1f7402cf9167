//! CPU time and live bytes, and what a contender has to be able to do.

use crate::work::{Block, Stored};
use rustix::time::{ClockId, clock_gettime};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that are allocated and not freed, as asked for; growth and shrinking are in both sums already.
pub fn live_bytes() -> i64 {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as i64 - stats.bytes_deallocated as i64
}

/// CPU time of all threads of this process, in seconds.
pub fn cpu_s() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// An index under test.
pub trait Index {
    /// What a prompt is asked by.
    type Asked;

    fn new() -> Self;

    /// Applies events in order and drops them. Returns the CPU seconds of it, on one thread.
    fn apply(&mut self, events: Vec<Stored>) -> f64;

    /// Removes blocks, each engine's from the last to the first, as engines evict.
    fn remove(&mut self, events: &[Stored]);

    fn asked(blocks: &[Block]) -> Self::Asked;

    /// Engines with their depths, summed up so that nothing is left out.
    fn matched(&self, asked: &Self::Asked) -> u64;
}

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
