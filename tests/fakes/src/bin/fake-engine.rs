//! `fake-engine`: the fake as a process, for tests that freeze, kill and restart it, and for benchmarks.
//!
//! Prints `fake-engine: listening on http://ADDR` on stderr when it accepts.

use clap::Parser;
use plimsoll_fakes::{FakeEngine, Options};

/// A fake SGLang, vLLM or OpenAI engine with faults on demand (`POST /_ctl`).
#[derive(Parser)]
#[command(name = "fake-engine")]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Worker threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(cli.threads.max(1)).enable_all().build()?;
    runtime.block_on(async {
        let engine = FakeEngine::start(cli.options).await?;
        eprintln!("fake-engine: listening on {}", engine.url());
        engine.serve().await;
        Ok(())
    })
}
