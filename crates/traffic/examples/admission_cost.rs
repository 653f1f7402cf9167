//! What a decision costs: `cargo run --release -p plimsoll-traffic --example admission_cost`.
//!
//! `straight`: nothing waits and there is room, as on a fleet that is not overloaded. `queued`: so many wait, each with a deadline; for each
//! request that arrives one goes and one ends, as in a steady overload of 1,000 decisions a second (virtual time moves by 1 ms a round). Looks
//! at the deadlines are in it, at the pace at which they are made. Counted is the processor time of the thread, so that a busy machine does not
//! matter much (Linux).

#![allow(clippy::unwrap_used, reason = "an example may panic")]

use plimsoll_core::InstanceLoad;
use plimsoll_core::{Class, Nanos, RequestId};
use plimsoll_traffic::admission::{Admission, Arrival, Decision, PoolView, Rules, Verdict};
use std::sync::Arc;

const ROUNDS: u64 = 20_000;
const RATE: f64 = 8_000.0;

fn main() {
    println!("| engines | queued | tenants | per decision, us |\n|---|---|---|---|");
    for engines in [4, 64, 1_024] {
        for (queued, tenants) in [(0, 10), (1_000, 100), (10_000, 1_000), (10_000, 10_000)] {
            let mut runs: Vec<f64> = (0..3).map(|_| run(engines, queued, tenants)).collect();
            runs.sort_by(f64::total_cmp);
            println!("| {engines} | {queued} | {tenants} | {:.2} |", runs[1]);
        }
    }
}

/// Processor time of this thread, in microseconds.
fn spent_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e3
}

/// Microseconds per decision.
fn run(engines: usize, queued: u64, tenants: u64) -> f64 {
    let mut rules = Rules::default();
    rules.bounds.requests = u64::MAX;
    rules.bounds.tokens = u64::MAX;
    let quotas = plimsoll_traffic::quota::Quotas::new(vec![(1.0, 1.0)], vec![(1.0, 1.0)], vec![(1.0, 1.0)]).unwrap();
    let mut admission = Admission::new(Rules { quotas, ..rules });
    let names: Vec<Arc<str>> = (0..tenants).map(|tenant| format!("tenant-{tenant}").as_str().into()).collect();
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut now = Nanos::from_secs(1);
    let mut one = |key: u64, now: Nanos| Arrival {
        key: RequestId(key.into()),
        tenant: names[(next() % tenants) as usize].clone(),
        class: Class::ALL[(next() % 3) as usize],
        prompt_tokens: 1_000,
        prefill_tokens: 1 + next() % 8_000,
        decode_tokens: 100,
        bytes: 1_000,
        service: None,
        // Far enough that most can be kept: what is refused leaves the queue and costs nothing more.
        first_token_by: Some(now + Nanos::from_secs(100_000 + next() % 100_000)),
        answer_by: Nanos::MAX,
        retry: false,
    };
    let full = InstanceLoad {
        backlog_tokens: if queued > 0 { 1_000_000 } else { 0 },
        prefill_tokens_per_s: Some(RATE),
        running: 8,
        ..InstanceLoad::default()
    };
    let mut loads = vec![full; engines];
    for key in 0..queued {
        let view = PoolView { taken_at: now, instances: &loads };
        assert_eq!(admission.arrive(now, one(key, now), &view), Verdict::Wait);
    }
    let mut decisions = 0u64;
    let began_us = spent_us();
    for round in 0..ROUNDS {
        now = now + Nanos::from_millis(1);
        let arrival = one(queued + round, now);
        let key = arrival.key;
        // One engine has room for one more.
        loads[0].backlog_tokens = 4_000;
        let mut gone = None;
        let view = PoolView { taken_at: now, instances: &loads };
        if let Verdict::Go(_) = admission.arrive(now, arrival, &view) {
            gone = Some(key);
        }
        decisions += 1;
        if gone.is_none() {
            let view = PoolView { taken_at: Nanos(now.0 + 1), instances: &loads };
            let told = admission.dispatch(now, &view);
            gone = told.iter().find(|one| matches!(one, Decision::Go { .. })).map(Decision::key);
            decisions += told.len() as u64;
        }
        if let Some(key) = gone {
            admission.begun(key, None);
            admission.first_token(key, now);
            admission.settle(key, now, None, None);
        }
    }
    (spent_us() - began_us) / decisions as f64
}
