//! What an operation on the queue costs by how many wait and how many tenants they are of:
//! `cargo run --release -p plimsoll-traffic --example queue_cost`.

#![allow(clippy::unwrap_used, reason = "an example may panic")]

use plimsoll_core::{Class, Nanos};
use plimsoll_traffic::fair_queue::{Bounds, FairQueue, Waiting, Weights};
use std::time::Instant;

const OPERATIONS: u64 = 200_000;

fn main() {
    println!("| queued | tenants | push, ns | pop, ns |\n|---|---|---|---|");
    for (queued, tenants) in [(100, 10), (1_000, 100), (10_000, 1_000), (100_000, 10_000)] {
        let mut rounds: Vec<(f64, f64)> = (0..5).map(|_| round(queued, tenants)).collect();
        let mut median = |of: fn(&(f64, f64)) -> f64| {
            rounds.sort_by(|a, b| of(a).total_cmp(&of(b)));
            of(&rounds[rounds.len() / 2])
        };
        println!("| {queued} | {tenants} | {:.0} | {:.0} |", median(|round| round.0), median(|round| round.1));
    }
}

/// Nanoseconds of a push and of a pop while that many wait.
fn round(queued: u64, tenants: u64) -> (f64, f64) {
    let bounds = Bounds { requests: u64::MAX, bytes: u64::MAX, tokens: u64::MAX };
    let mut queue: FairQueue<u64, u64> = FairQueue::new(bounds, Weights::default());
    // A generator of its own keeps the example free of dependencies.
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut one = |key: u64| Waiting {
        key,
        class: Class::ALL[(next() % 3) as usize],
        tenant: next() % tenants,
        cost_tokens: 1 + next() % 100_000,
        bytes: 1_000,
        latest_start: Nanos(next()),
    };
    for key in 0..queued {
        queue.push(one(key), 1).unwrap();
    }
    let batch = queued.min(1_000);
    let (mut push, mut pop, mut key) = (0.0, 0.0, queued);
    for _ in 0..OPERATIONS / batch {
        let began = Instant::now();
        for _ in 0..batch {
            queue.pop(|_| true).unwrap();
        }
        pop += began.elapsed().as_secs_f64();
        let fresh: Vec<_> = (0..batch).map(|more| one(key + more)).collect();
        key += batch;
        let began = Instant::now();
        for request in fresh {
            queue.push(request, 1).unwrap();
        }
        push += began.elapsed().as_secs_f64();
    }
    let operations = (OPERATIONS / batch * batch) as f64;
    (push / operations * 1e9, pop / operations * 1e9)
}
