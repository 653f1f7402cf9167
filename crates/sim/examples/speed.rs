//! How fast it is: `cargo run --release -p plimsoll-sim --example speed`. Prints a table; needs one core.
//!
//! The conversation trace is read from `PLIMSOLL_SHARED` and left out where that is missing.

use plimsoll_core::Nanos;
use plimsoll_load::{PolicyKind, SchedulerConfig};
use plimsoll_sim::engine::EngineShape;
use plimsoll_sim::gateway::GatewayConfig;
use plimsoll_sim::{Config, FleetConfig, Nobody, Source, run};
use plimsoll_workload::traces::Trace;
use plimsoll_workload::{Call, Prompt, Run, Session};
use std::path::Path;
use std::time::Instant;

fn config(profile: &str, instances: u32, policy: PolicyKind, block_tokens: u64) -> Config {
    let profile = plimsoll_timing::find(profile).expect("a built-in profile");
    let shape = EngineShape::of(&profile.serving, block_tokens);
    Config::new(
        FleetConfig::of(profile, instances, shape),
        GatewayConfig {
            scheduler: SchedulerConfig { policy, record_candidates: 0, ..SchedulerConfig::default() },
            ..GatewayConfig::default()
        },
    )
}

/// Chat: a system prompt of eight, a history of some turns, lengths as in the conversation trace but shorter.
fn chats(count: u64, per_s: f64) -> Source<'static> {
    let mut at = 0.0;
    let mut state = 1u64;
    let mut draw = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    Box::new((0..count).map(move |number| {
        at += -(1.0 - draw()).ln() / per_s;
        let system = (draw() * 8.0) as u64;
        let user = (draw() * 50_000.0) as u64;
        let turns = (draw() * 12.0) as u64;
        let fresh = 2 + (draw() * 6.0) as u64;
        let runs = vec![
            Run { first: system * 16, len: 4 },
            Run { first: 1_000 + user * 64, len: 2 * turns },
            Run { first: 100_000_000 + number * 16, len: fresh },
        ];
        let prompt = Prompt { block_tokens: 512, runs, tail: None };
        let output_tokens = 20 + (draw() * 500.0) as u64;
        let call =
            Call { after: Vec::new(), prompt, echo_tokens: 0, output_tokens, max_output_tokens: None, recorded: None };
        let start = Nanos::from_secs_f64(at);
        Ok(Session { id: String::new(), start, prefix_blocks: None, calls: vec![call] })
    }))
}

fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// CPU seconds of this process so far: a machine that others use says nothing by the clock on the wall.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = |nth: usize| behind_name.split_whitespace().nth(nth).and_then(|text| text.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}

fn row(name: &str, config: Config, source: Source<'_>) {
    let (begun, cpu_before) = (Instant::now(), cpu_s());
    let report = run(config, source, &mut Nobody).expect("a run");
    let took = begun.elapsed().as_secs_f64();
    let cpu = cpu_s() - cpu_before;
    println!(
        "| {name} | {} | {:.0} | {took:.2} | {cpu:.2} | {:.0} | {:.1} | {:.0} | {:.1} |",
        report.requests.completed,
        report.duration_s,
        report.requests.completed as f64 / cpu.max(0.01),
        report.tokens.hit_rate * 100.0,
        report.ttft_ms.p90,
        peak_mib(),
    );
}

fn main() {
    println!(
        "| run | requests | simulated s | wall s | CPU s | requests per CPU s | hit % | TTFT p90 ms | peak MiB so far |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let shared = std::env::var("PLIMSOLL_SHARED").unwrap_or_else(|_| "../shared".to_owned());
    let path = Path::new(&shared).join("traces/mooncake_conversation.jsonl.zst");
    for policy in [PolicyKind::RoundRobin, PolicyKind::LeastDelay] {
        if let Ok(trace) = Trace::open(&path) {
            let source = trace.map(|session| session.map_err(|error| error.to_string()));
            let name = format!("conversation trace, 16 instances, {policy:?}");
            row(&name, config("h100-llama3-70b-tp8", 16, policy, 512), Box::new(source));
        }
    }
    for policy in [PolicyKind::RoundRobin, PolicyKind::LeastDelay] {
        let name = format!("chats, 100 instances, {policy:?}");
        row(&name, config("h100-llama3-70b-tp8", 100, policy, 512), chats(count, 150.0));
    }
}
