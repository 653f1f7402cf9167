//! How fast KV moves from one engine process to another, beside what the loopback interface can do (iperf3, one
//! stream) in the same rounds.
//!
//! Both ends do what an engine does: pages are copied out of one KV store into wire form, sealed, sent, received, checked
//! (checksum, order, chain digest) and copied into another store. Nothing else runs in those two processes. The CPU
//! time of both ends stands beside the rates because it travels better than they do from one machine to another.

mod end;
mod iperf;

use anyhow::Context;
use end::Shape;
pub use end::{Args as EndArgs, run as run_end};
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};

#[derive(clap::Args)]
pub struct Args {
    /// Rounds; each measures iperf3 and every page size.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Fail when the median ratio to iperf3 is below this for any page size.
    #[arg(long)]
    at_least: Option<f64>,
    /// Ask the kernel's autogroup scheduler for this nice value, as in `gateway`.
    #[arg(long, allow_hyphen_values = true)]
    autogroup_nice: Option<i8>,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub bytes: u64,
    pub seconds: f64,
    /// User and system time of the sending and of the receiving process.
    pub cpu_s: [f64; 2],
}

impl Measured {
    fn gbit_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds / 1e9
    }

    fn cpu_ms_per_gb(&self) -> [f64; 2] {
        self.cpu_s.map(|seconds| seconds * 1e3 / (self.bytes as f64 / 1e9))
    }
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(nice) = args.autogroup_nice {
        std::fs::write("/proc/self/autogroup", nice.to_string()).context("cannot set the autogroup's nice value")?;
    }
    let mut plain = Vec::new();
    let mut ours: Vec<(Shape, Vec<Measured>)> = Shape::ALL.map(|shape| (shape, Vec::new())).into();
    for round in 1..=args.rounds {
        // iperf3 on both sides of ours: a machine that is slow for a moment is slow for both.
        let before = iperf::measure(args.seconds)?;
        for (shape, found) in &mut ours {
            found.push(transfer(*shape, args.seconds)?);
        }
        let after = iperf::measure(args.seconds)?;
        let last: Vec<String> =
            ours.iter().filter_map(|(_, found)| Some(format!("{:.1}", found.last()?.gbit_s()))).collect();
        eprintln!(
            "round {round}: iperf3 {:.1} and {:.1}, ours {} Gbit/s",
            before.gbit_s(),
            after.gbit_s(),
            last.join(" and ")
        );
        plain.push((before, after));
    }
    print(&plain, &ours);
    if let Some(least) = args.at_least {
        for (shape, found) in &ours {
            let ratio = median(ratios(&plain, found));
            anyhow::ensure!(ratio >= least, "{}: {ratio:.2} of iperf3, at least {least} wanted", shape.name());
        }
    }
    Ok(())
}

/// Of each round: ours over the mean of iperf3 before and after.
fn ratios(plain: &[(Measured, Measured)], found: &[Measured]) -> Vec<f64> {
    let ratio = |((before, after), ours): (&(Measured, Measured), &Measured)| {
        2.0 * ours.gbit_s() / (before.gbit_s() + after.gbit_s())
    };
    plain.iter().zip(found).map(ratio).collect()
}

fn print(plain: &[(Measured, Measured)], ours: &[(Shape, Vec<Measured>)]) {
    let all: Vec<Measured> = plain.iter().flat_map(|(before, after)| [*before, *after]).collect();
    println!("| | Gbit/s | of iperf3 | CPU ms/GB, sender | CPU ms/GB, receiver |\n|---|---|---|---|---|");
    let row = |name: &str, found: &[Measured], ratio: f64| {
        let rate = median(found.iter().map(Measured::gbit_s).collect());
        let cpu = |side: usize| median(found.iter().map(|one| one.cpu_ms_per_gb()[side]).collect());
        println!("| {name} | {rate:.1} | {ratio:.2} | {:.0} | {:.0} |", cpu(0), cpu(1));
    };
    row("iperf3, one stream", &all, 1.0);
    for (shape, found) in ours {
        row(&shape.name(), found, median(ratios(plain, found)));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 if middle > 0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values.get(middle).copied().unwrap_or(f64::NAN),
    }
}

/// Two processes of this executable, one sending to the other.
fn transfer(shape: Shape, seconds: u64) -> anyhow::Result<Measured> {
    let program = std::env::current_exe()?;
    let start = |args: &[&str]| {
        let seconds = seconds.to_string();
        let mut command = Command::new(&program);
        command.args(["kv-end", "--shape", shape.key(), "--seconds", &seconds]).args(args);
        command.stdout(Stdio::piped()).spawn().context("cannot start an end")
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let receiver = start(&["--receive", "--port", &port])?;
    let sender = start(&["--port", &port])?;
    let end = |child: std::process::Child| -> anyhow::Result<Measured> {
        let output = child.wait_with_output()?;
        anyhow::ensure!(output.status.success(), "an end failed with {}", output.status);
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    let (sent, received) = (end(sender)?, end(receiver)?);
    Ok(Measured { cpu_s: [sent.cpu_s[0], received.cpu_s[0]], ..received })
}
