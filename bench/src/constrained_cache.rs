//! A cache that holds all prefixes only if the fleet uses it as one: what share of prompts do the engines find cached, and at
//! what time to first token?
//!
//! Four real `plimsoll engine` processes in timing mode with 192 blocks of 64 tokens each, 24 prefixes of 1,500 tokens that are
//! 87 % of their prompts, 12 requests a second in a Poisson stream, through `plimsoll serve`. It is the setting in which
//! Dynamo 1.6.1 was measured before: 24.7 % with round-robin, 57.1 % with its KV router. All tokens, pages and evictions are
//! real; only the time of a step is modelled.

mod client;

use crate::gateway::figures::median;
use crate::gateway::fleet::{free_address, wait_until};
use crate::gateway::http;
use crate::gateway::machine::Machine;
use crate::gateway::process::Process;
use crate::gateway::product::Programs;
use anyhow::{Context, ensure};
use client::Answered;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Rounds; in each every policy is measured once, with a fleet of its own and the same requests.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Requests of each measurement that count; a fifth more come before.
    #[arg(long, default_value_t = 480)]
    requests: usize,
    /// Requests per second.
    #[arg(long, default_value_t = 12.0)]
    rate: f64,
    /// Prefixes.
    #[arg(long, default_value_t = 24)]
    prefixes: usize,
    /// Everything takes so many times as long, arrivals too: for machines on which the engines would not keep up.
    /// Times are printed as if it were 1.
    #[arg(long, default_value_t = 1.0)]
    slow_down: f64,
    /// Seed of arrivals and prefixes; each round adds one.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Timing profile of the engines.
    #[arg(long, default_value = "h100-llama3-8b")]
    timing: String,
    /// Use this binary in place of building one.
    #[arg(long)]
    plimsoll: Option<PathBuf>,
    /// Ask the kernel's autogroup scheduler for this nice value, as in `gateway`.
    #[arg(long, allow_hyphen_values = true)]
    autogroup_nice: Option<i8>,
}

const ENGINES: usize = 4;
const BLOCKS: usize = 192;
const BLOCK_TOKENS: usize = 64;
pub const PREFIX_TOKENS: usize = 1_500;
pub const SUFFIX_TOKENS: usize = 224;
pub const OUTPUT_TOKENS: usize = 60;

/// How requests are placed, and what the engines tell.
#[derive(Clone, Copy)]
struct Contender {
    name: &'static str,
    policy: &'static str,
    events: bool,
    /// Prompts come as text, and the gateway has no tokenizer.
    as_text: bool,
}

const CONTENDERS: [Contender; 6] = [
    Contender { name: "round_robin", policy: "round_robin", events: true, as_text: false },
    Contender { name: "least_wait", policy: "least_wait", events: true, as_text: false },
    Contender { name: "least_delay", policy: "least_delay", events: true, as_text: false },
    Contender { name: "least_delay, no KV events", policy: "least_delay", events: false, as_text: false },
    Contender { name: "round_robin, text", policy: "round_robin", events: false, as_text: true },
    Contender { name: "least_delay, text without a tokenizer", policy: "least_delay", events: false, as_text: true },
];

/// One measurement.
struct Found {
    hit_share: f64,
    ttft_p50_ms: f64,
    ttft_p90_ms: f64,
    /// Steps that came too late for the timing profile, worst engine; NaN where it is not told.
    late: f64,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.slow_down > 0.0 && args.rate > 0.0 && args.requests > 0 && args.prefixes > 0,
        "use numbers above zero"
    );
    if let Some(nice) = args.autogroup_nice {
        std::fs::write("/proc/self/autogroup", nice.to_string()).context("cannot set the autogroup's nice value")?;
    }
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let machine = Machine::read(&repository);
    let program = Programs::find(&repository, args.plimsoll.as_deref(), true).plimsoll.map_err(anyhow::Error::msg)?;
    let logs = repository.join("bench/out");
    std::fs::create_dir_all(&logs)?;
    let mut found: Vec<Vec<Found>> = CONTENDERS.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds.max(1) {
        for place in 0..CONTENDERS.len() {
            let at = (place + round) % CONTENDERS.len();
            let one = measure(args, &program, &logs, CONTENDERS[at], args.seed + round as u64)?;
            let (hit, p90, late) = (one.hit_share * 100.0, one.ttft_p90_ms, one.late * 100.0);
            eprintln!(
                "round {}: {}: {hit:.1} %, p90 {p90:.0} ms, {late:.1} % of steps late",
                round + 1,
                CONTENDERS[at].name
            );
            found[at].push(one);
        }
    }
    // What an endless cache would find once every prefix was seen.
    let ceiling = (PREFIX_TOKENS / BLOCK_TOKENS * BLOCK_TOKENS) as f64 / (PREFIX_TOKENS + SUFFIX_TOKENS) as f64;
    println!(
        "| placement | hit share | of the ceiling ({:.1} %) | TTFT p50 ms | TTFT p90 ms | late steps |",
        ceiling * 100.0
    );
    println!("|---|---|---|---|---|---|");
    for (contender, rounds) in CONTENDERS.iter().zip(&found) {
        let of = |figure: fn(&Found) -> f64| median(rounds.iter().map(figure)).unwrap_or(f64::NAN);
        let hit = of(|one| one.hit_share);
        println!(
            "| {} | {:.1} % | {:.0} % | {:.0} | {:.0} | {:.1} % |",
            contender.name,
            hit * 100.0,
            hit / ceiling * 100.0,
            of(|one| one.ttft_p50_ms),
            of(|one| one.ttft_p90_ms),
            of(|one| one.late) * 100.0
        );
    }
    println!(
        "\n{} rounds of {} requests at {} a second, {}, slowed down {} times; {} x {}, load {} at the start, {}",
        args.rounds,
        args.requests,
        args.rate,
        args.timing,
        args.slow_down,
        machine.cores,
        machine.cpu,
        machine.load_average,
        machine.date
    );
    Ok(())
}

fn measure(args: &Args, program: &Path, logs: &Path, contender: Contender, seed: u64) -> anyhow::Result<Found> {
    let engines: Vec<(SocketAddr, Process)> =
        (0..ENGINES).map(|nth| engine(args, program, logs, contender, nth)).collect::<anyhow::Result<_>>()?;
    let (listen, admin) = (free_address()?, free_address()?);
    let mut command = Command::new(program);
    command.args(["serve", "--listen", &listen.to_string(), "--admin", &admin.to_string()]);
    command.args(["--policy", contender.policy, "--set", &format!("policy.seed={seed}")]);
    for (address, _) in &engines {
        command.args(["--engine", &format!("http://{address}")]);
    }
    let mut gateway = Process::start(&command, &logs.join("constrained-gateway.log"))?;
    let ready = || matches!(http::call(admin, "GET", "/readyz", ""), Ok((200, _)));
    wait_until(&mut gateway, Duration::from_secs(30), ready).context("the gateway is not ready")?;

    let warm_up = args.requests / 5;
    let load = client::Load {
        to: listen,
        requests: warm_up + args.requests,
        rate: args.rate / args.slow_down,
        prefixes: args.prefixes,
        seed,
        as_text: contender.as_text,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answered = runtime.block_on(client::run(load))?;
    let counted = answered.get(warm_up..).context("too few answers")?;
    let sum = |of: fn(&Answered) -> u64| counted.iter().map(of).sum::<u64>() as f64;
    let mut ttft: Vec<f64> = counted.iter().map(|one| one.ttft.as_secs_f64() * 1e3 / args.slow_down).collect();
    ttft.sort_by(f64::total_cmp);
    let at = |share: f64| ttft[((ttft.len() - 1) as f64 * share) as usize];
    let late = engines.iter().filter_map(|(address, _)| late_ratio(*address)).fold(f64::NAN, f64::max);
    Ok(Found {
        hit_share: sum(|one| one.cached_tokens) / sum(|one| one.prompt_tokens),
        ttft_p50_ms: at(0.5),
        ttft_p90_ms: at(0.9),
        late,
    })
}

fn engine(
    args: &Args,
    program: &Path,
    logs: &Path,
    contender: Contender,
    nth: usize,
) -> anyhow::Result<(SocketAddr, Process)> {
    let address = free_address()?;
    let mut command = Command::new(program);
    command.args(["engine", "--listen", &address.to_string(), "--threads", "1"]);
    command.args(["--timing", &args.timing, "--timing-speedup", &(1.0 / args.slow_down).to_string()]);
    command.args(["--page-tokens", &BLOCK_TOKENS.to_string(), "--kv-tokens", &(BLOCKS * BLOCK_TOKENS).to_string()]);
    if contender.events {
        command.args(["--kv-events-endpoint", "tcp://127.0.0.1:0", "--kv-events-replay-endpoint", "tcp://127.0.0.1:0"]);
    }
    let mut process = Process::start(&command, &logs.join(format!("constrained-engine-{nth}.log")))?;
    let answers = || matches!(http::call(address, "GET", "/health", ""), Ok((200, _)));
    wait_until(&mut process, Duration::from_secs(30), answers).context("an engine does not answer")?;
    Ok((address, process))
}

/// Share of steps that took longer than the profile allows.
fn late_ratio(address: SocketAddr) -> Option<f64> {
    let (_, page) = http::call(address, "GET", "/metrics", "").ok()?;
    let page = String::from_utf8(page).ok()?;
    let line = page.lines().find(|line| line.starts_with("plimsoll_engine_timing_late_ratio"))?;
    line.rsplit_once(' ')?.1.parse().ok()
}
