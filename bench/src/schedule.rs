//! What a step of the engine costs besides its model: deciding what to compute, making pages findable, posting tokens to
//! readers. With many running requests this is what a scheduler in the way of the GPU would cost.
//!
//! A real `plimsoll engine` of the tiny model serves that many streams at once, each read by a client of its own, and says
//! by its own counters where its steps' time went. Processor time of the step loop is what travels from machine to machine:
//! all that it does but the model and the sampling, counters and locks and the wake of the task that brings tokens to the
//! readers, whose own time is printed beside it. By the clock, whatever else the machine runs counts as ours.

use crate::gateway::fleet::{free_address, wait_until};
use crate::gateway::machine::Machine;
use crate::gateway::process::Process;
use crate::gateway::product::Programs;
use crate::gateway::{figures, http};
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(clap::Args)]
pub struct Args {
    /// Running requests, one column each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    running: Vec<usize>,
    /// Rounds; each measures every number of requests once, with an engine of its own.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Use this binary in place of building one.
    #[arg(long)]
    plimsoll: Option<PathBuf>,
    /// Ask the kernel's autogroup scheduler for this nice value, as in `gateway`.
    #[arg(long, allow_hyphen_values = true)]
    autogroup_nice: Option<i8>,
}

/// Counters of the engine.
#[derive(Clone, Copy, Debug)]
struct Reading {
    steps: f64,
    tokens: f64,
    loop_cpu_s: f64,
    delivery_cpu_s: f64,
    scheduling_s: f64,
    sampling_s: f64,
    taken: Instant,
}

/// Per step.
#[derive(Clone, Copy, Debug)]
struct Cell {
    loop_cpu_us: f64,
    delivery_cpu_us: f64,
    scheduling_us: f64,
    sampling_us: f64,
    step_us: f64,
    batch: f64,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.running.iter().all(|count| (1..=4096).contains(count)), "use 1 to 4096 running requests");
    if let Some(nice) = args.autogroup_nice {
        std::fs::write("/proc/self/autogroup", nice.to_string()).context("cannot set the autogroup's nice value")?;
    }
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let machine = Machine::read(&repository);
    let program = Programs::find(&repository, args.plimsoll.as_deref(), true).plimsoll.map_err(anyhow::Error::msg)?;
    let logs = repository.join("bench/out");
    std::fs::create_dir_all(&logs)?;
    let mut cells: Vec<(usize, Vec<Cell>)> = args.running.iter().map(|count| (*count, Vec::new())).collect();
    for round in 1..=args.rounds.max(1) {
        for (running, found) in &mut cells {
            let cell = measure(&program, &logs, *running, args.seconds)?;
            eprintln!(
                "round {round}, {running} running: {:.1} us of processor time, {:.1} by the clock, of {:.0} us a step",
                cell.loop_cpu_us, cell.scheduling_us, cell.step_us
            );
            found.push(cell);
        }
    }
    println!(
        "| running | schedule, CPU us/step | least | by the clock, us | delivery, CPU us/step | sampling, us/step | step, us | batch |\n|---|---|---|---|---|---|---|---|"
    );
    for (running, found) in &cells {
        let median = |of: fn(&Cell) -> f64| figures::median(found.iter().map(of)).unwrap_or(f64::NAN);
        let least = found.iter().map(|cell| cell.loop_cpu_us).fold(f64::INFINITY, f64::min);
        println!(
            "| {running} | {:.1} | {least:.1} | {:.1} | {:.1} | {:.0} | {:.0} | {:.1} |",
            median(|cell| cell.loop_cpu_us),
            median(|cell| cell.scheduling_us),
            median(|cell| cell.delivery_cpu_us),
            median(|cell| cell.sampling_us),
            median(|cell| cell.step_us),
            median(|cell| cell.batch)
        );
    }
    println!("\n{} x {}, load {} at the start, {}", machine.cores, machine.cpu, machine.load_average, machine.date);
    Ok(())
}

fn measure(program: &Path, logs: &Path, running: usize, seconds: u64) -> anyhow::Result<Cell> {
    let address = free_address()?;
    let mut command = Command::new(program);
    let most = running.to_string();
    command.args(["engine", "--listen", &address.to_string(), "--max-running", &most, "--max-waiting", "4096"]);
    command.args(["--kv-tokens", &(running * CONTEXT_TOKENS).to_string(), "--context-tokens", "4096"]);
    command.args(["--token-budget", &most.parse::<usize>()?.max(512).to_string(), "--threads", "1"]);
    let mut process = Process::start(&command, &logs.join("engine.log"))?;
    wait_until(&mut process, Duration::from_secs(20), || {
        matches!(http::call(address, "GET", "/health", ""), Ok((200, _)))
    })
    .context("the engine does not answer")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let readers: Vec<_> = (0..running).map(|name| tokio::spawn(read(address, name))).collect();
        let cell = between(address, running, seconds).await;
        readers.iter().for_each(tokio::task::JoinHandle::abort);
        cell
    })
}

/// Prompt and output of one stream at most; long enough that none ends while it is measured.
const CONTEXT_TOKENS: usize = 4096;

async fn between(address: SocketAddr, running: usize, seconds: u64) -> anyhow::Result<Cell> {
    let until = Instant::now() + Duration::from_secs(30);
    while load(address).await? < running {
        ensure!(Instant::now() < until, "not all of {running} requests came to run");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let first = reading(address).await?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let last = reading(address).await?;
    let steps = last.steps - first.steps;
    ensure!(steps > 0.0, "the engine stood still");
    Ok(Cell {
        loop_cpu_us: (last.loop_cpu_s - first.loop_cpu_s) / steps * 1e6,
        delivery_cpu_us: (last.delivery_cpu_s - first.delivery_cpu_s) / steps * 1e6,
        scheduling_us: (last.scheduling_s - first.scheduling_s) / steps * 1e6,
        sampling_us: (last.sampling_s - first.sampling_s) / steps * 1e6,
        step_us: (last.taken - first.taken).as_secs_f64() / steps * 1e6,
        batch: (last.tokens - first.tokens) / steps,
    })
}

/// One stream after another.
async fn read(address: SocketAddr, name: usize) -> anyhow::Result<()> {
    let sampling = json!({"max_new_tokens": CONTEXT_TOKENS - 64, "temperature": 0, "ignore_eos": true});
    let prompt: Vec<usize> = (0..32).map(|at| 272 + (name * 97 + at * 31) % 700).collect();
    let body = json!({"input_ids": prompt, "sampling_params": sampling, "stream": true}).to_string();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let mut stream = TcpStream::connect(address).await?;
        let length = body.len();
        let head =
            format!("POST /generate HTTP/1.1\r\nhost: e\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        while stream.read(&mut buffer).await? > 0 {}
    }
}

async fn get(address: SocketAddr, path: &'static str) -> anyhow::Result<Vec<u8>> {
    let (status, body) = tokio::task::spawn_blocking(move || http::call(address, "GET", path, "")).await??;
    ensure!(status == 200, "{path} answered {status}");
    Ok(body)
}

async fn load(address: SocketAddr) -> anyhow::Result<usize> {
    let said: Value = serde_json::from_slice(&get(address, "/v1/loads").await?)?;
    Ok(said["loads"][0]["num_running_reqs"].as_u64().context("no num_running_reqs")? as usize)
}

async fn reading(address: SocketAddr) -> anyhow::Result<Reading> {
    let page = String::from_utf8(get(address, "/metrics").await?)?;
    let value = |name: &str| sample(&page, name).with_context(|| format!("the engine has no metric {name}"));
    Ok(Reading {
        steps: value("plimsoll_engine_steps_total")?,
        tokens: value("sglang:generation_tokens_total")?,
        loop_cpu_s: value("plimsoll_engine_loop_cpu_seconds_total")?,
        delivery_cpu_s: value("plimsoll_engine_delivery_cpu_seconds_total")?,
        scheduling_s: value("plimsoll_engine_scheduling_seconds_total")?,
        sampling_s: value("plimsoll_engine_sampling_seconds_total")?,
        taken: Instant::now(),
    })
}

fn sample(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_sample_is_found_by_its_whole_name() {
        let page = "# HELP a_total x\na_total_more{b=\"c d\"} 3\na_total{b=\"c d\"} 4.5\n";
        assert_eq!(super::sample(page, "a_total"), Some(4.5));
        assert_eq!(super::sample(page, "a"), None);
    }
}
