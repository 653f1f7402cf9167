//! One binary for every part of the benchmark, so that `cargo run` builds all of them at once and each part can
//! start the others from its own executable, in processes of their own (their CPU time must not mix).

mod constrained_cache;
mod engine;
mod gateway;
mod kv_transfer;
mod l4;
mod load;
mod migration;
mod schedule;
mod supervise;
mod upstream;
mod wire;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "plimsoll-bench",
    about = "Measures the gateway against a direct connection, an L4 copy and its peers"
)]
struct Cli {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Measure every contender and print the table.
    Gateway(gateway::Args),
    /// Measure the engine's decode and prefill against memory bandwidth and `gemm`, and print the table.
    Engine(engine::Args),
    /// Measure what a step of the engine costs besides its model, by the number of running requests.
    Schedule(schedule::Args),
    /// Measure how fast KV moves between two engine processes, beside iperf3.
    KvTransfer(kv_transfer::Args),
    /// Measure what a reader notices when its request moves to another engine, by the length of its context.
    Migration(migration::Args),
    /// Measure the hit share and time to first token of each policy before a cache that holds all prefixes only together.
    ConstrainedCache(constrained_cache::Args),
    /// One end of `kv-transfer`; prints one JSON line.
    #[command(hide = true)]
    KvEnd(kv_transfer::EndArgs),
    /// Closed-loop load client; prints one JSON line.
    Load(load::Args),
    /// Fake engine.
    Upstream(upstream::Args),
    /// TCP copy, the floor of what a proxy can cost.
    L4(l4::Args),
    /// Run a command that dies with its parent.
    Supervise(supervise::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().part {
        Part::Gateway(args) => gateway::run(&args),
        Part::Engine(args) => engine::run(&args),
        Part::Schedule(args) => schedule::run(&args),
        Part::KvTransfer(args) => kv_transfer::run(&args),
        Part::Migration(args) => migration::run(&args),
        Part::ConstrainedCache(args) => constrained_cache::run(&args),
        Part::KvEnd(args) => kv_transfer::run_end(&args),
        Part::Load(args) => one_thread(load::run(args)),
        Part::Upstream(args) => one_thread(upstream::run(args)),
        Part::L4(args) => l4::run(args),
        Part::Supervise(args) => supervise::run(&args),
    }
}

/// Load client and fake engines use one thread each: the rest of a small machine belongs to what is measured.
fn one_thread(part: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    supervise::die_with_parent()?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(part)
}
