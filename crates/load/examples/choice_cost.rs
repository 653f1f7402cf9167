//! Prints what one `place()` costs: median and 99th percentile in nanoseconds per policy and fleet size.
//!
//! `cargo run --release -p plimsoll-load --example choice_cost`. The budget of the request path is 10 us at 1,024
//! engines. Every instance has reported load, and about two requests are in flight on each. `hits` says how many of the engines
//! hold a part of the prompt: none, every eighth (a session and its forks), or all (a shared system prompt).

use plimsoll_core::{EngineKind, InstanceId, LoadReport, Nanos, Rank, RequestId, Target};
use plimsoll_load::{
    Ask, AttemptEnd, Charge, HeldTokens, InstanceSpec, PolicyKind, RouteSet, Scheduler, SchedulerConfig, Ticket,
};
use std::collections::VecDeque;
use std::time::Instant;

const CHOICES: u64 = 20_000;

fn main() {
    println!("{:>14} {:>9} {:>7} {:>12} {:>12}", "policy", "engines", "hits", "median ns", "p99 ns");
    for policy in [PolicyKind::LeastDelay, PolicyKind::LeastWait, PolicyKind::RoundRobin, PolicyKind::PowerOfTwo] {
        for engines in [2_u32, 64, 1_024] {
            for (hits, every) in [("none", 0), ("eighth", 8), ("all", 1)] {
                let mut costs = measure(policy, engines, every);
                costs.sort_unstable();
                let at = |q: usize| costs[costs.len() * q / 100];
                println!("{:>14} {engines:>9} {hits:>7} {:>12} {:>12}", format!("{policy:?}"), at(50), at(99));
            }
        }
    }
}

/// Costs of single choices, with a hit on every `hit_every`th engine (none for 0).
fn measure(policy: PolicyKind, engines: u32, hit_every: u32) -> Vec<u64> {
    let holds = |id: &u32| hit_every > 0 && id.is_multiple_of(hit_every);
    let hits: Vec<(Target, HeldTokens)> = (0..engines)
        .filter(holds)
        .map(|id| (Target { instance: InstanceId(id), rank: Rank(0) }, HeldTokens::on_device(u64::from(64 + id % 400))))
        .collect();
    let mut scheduler = Scheduler::new(SchedulerConfig { policy, ..SchedulerConfig::default() });
    let start = Nanos::from_secs(1);
    for id in (0..engines).map(InstanceId) {
        let models = vec!["model".to_owned(), format!("adapter-{}", id.0 % 7)];
        let capacity_kv_tokens = Some(1_000_000);
        let context_tokens = Some(131_072);
        let kind = EngineKind::Sglang;
        let spec =
            InstanceSpec { models, kind, capacity_kv_tokens, context_tokens, ready: true, ..InstanceSpec::default() };
        scheduler.add_instance(id, spec);
        scheduler.probe_ok(id, start);
        let report = LoadReport {
            received: start,
            running_requests: Some(u64::from(id.0 % 5)),
            waiting_uncached_tokens: Some(u64::from(id.0 % 3) * 700),
            used_kv_tokens: Some(50_000),
            ..LoadReport::default()
        };
        scheduler.report(id, report, start);
    }
    let mut running: VecDeque<Ticket> = VecDeque::new();
    let mut costs = Vec::with_capacity(CHOICES as usize);
    for step in 0..CHOICES {
        let now = start + Nanos(step * 100_000);
        let ask = Ask {
            request: RequestId(u128::from(step)),
            model: Some("model"),
            route: RouteSet::CHAT,
            // Every other one's prefill is released by time.
            streams: step % 2 == 0,
            charge: Charge { uncached_prefill_tokens: 500 + step % 1_500, reserved_kv_tokens: 3_000, sequences: 1 },
            hits: &hits,
            ..Ask::default()
        };
        let before = Instant::now();
        let placed = scheduler.place(now, &ask);
        costs.push(before.elapsed().as_nanos() as u64);
        running.extend(placed.map(|p| p.ticket));
        if running.len() > engines as usize
            && let Some(&ticket) = running.get(running.len() - engines as usize)
        {
            scheduler.first_token(ticket, now);
        }
        if running.len() > 2 * engines as usize
            && let Some(ticket) = running.pop_front()
        {
            scheduler.settle(ticket, now, AttemptEnd::Ok);
        }
    }
    costs
}
