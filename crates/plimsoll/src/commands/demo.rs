//! `plimsoll demo`: a gateway and built-in engines in their own processes, driven by a workload.
//!
//! The shortest way to see what Plimsoll does, and the main job of issue 2: real processes, real sockets, OpenAI
//! streaming, traffic whose prefixes repeat as agents' do. Everything it starts it also ends: on the way out, on
//! Ctrl-C and SIGTERM, and through [`stdin_guard`] even when it is killed.

pub(crate) mod children;
pub(crate) mod client;
mod conversation;
mod drive;
pub(crate) mod fleet;
pub(crate) mod play;
pub(crate) mod process;
mod progress;
mod report;
pub(crate) mod signals;
mod source;
pub mod stdin_guard;
pub(crate) mod stream;
mod tally;

use crate::exit::ExitCode;
use crate::{Failure, output, runtime};
use clap::Args;
use drive::Drive;
use fleet::Fleet;
use plimsoll_settings::PolicyName;
use report::Report;
use source::Source;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tally::Tally;

#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// How many engines to start
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub engines: u16,
    /// Replay this trace (Mooncake or compact agentic, plain, .zst or .gz) instead of generated agent sessions
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// How much to run: rows of a Mooncake trace, sessions otherwise [default: the whole trace, 12 generated sessions]
    #[arg(long, visible_alias = "sessions", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Write what the table shows to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// End after the table instead of staying up
    #[arg(long)]
    pub exit: bool,
    /// Seed of the generated sessions
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Divide prompt lengths by this [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub scale: Option<u64>,
    /// Divide answer lengths by this [default: 16, or `--scale` where that is smaller]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub output_scale: Option<u64>,
    /// Divide arrival times and pauses by this [default: 4 for Mooncake, 200 otherwise]
    #[arg(long, value_name = "X", value_parser = above_zero)]
    pub speed: Option<f64>,
    /// How the gateway chooses an engine
    #[arg(long, value_name = "NAME", value_parser = PolicyName::ALL.map(PolicyName::as_str))]
    pub policy: Option<String>,
    /// KV cache of each engine in tokens; a smaller one shows what evictions do to the hit rate [default: the engine's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub kv_tokens: Option<u32>,
    /// Most requests in flight; more wait in the client, outside the measured times
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub concurrency: u16,
}

pub(crate) fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("expected a number above 0".to_owned()),
    }
}

/// Runs the demo.
///
/// # Errors
/// A trace that cannot be read, a process that does not start, requests that failed, an interruption.
#[allow(clippy::needless_pass_by_value, reason = "every command takes its arguments whole")]
pub fn run(args: DemoArgs) -> Result<(), Failure> {
    let source = Source::choose(&args)?;
    if let Some(path) = &args.json {
        check_writable(path)?;
    }
    let runtime = runtime::multi_thread()?;
    let result = runtime.block_on(with_fleet(&args, source));
    // What still runs are connection tasks of processes that have gone.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Starts the processes, does the work, ends the processes: whichever way the work ends.
async fn with_fleet(args: &DemoArgs, source: Source) -> Result<(), Failure> {
    let mut signals = signals::Signals::listen()?;
    let mut fleet = Fleet::new()?;
    let worked = tokio::select! {
        worked = work(args, source, &mut fleet) => worked,
        () = signals.recv() => Err(Failure::interrupted()),
    };
    let worked = if worked.is_ok() && !args.exit { stay(&mut fleet, &mut signals).await.and(worked) } else { worked };
    let verdict = worked.and_then(|failed_requests| failed_requests.map_or(Ok(()), Err));
    let trouble = verdict.as_ref().is_err_and(|failure| failure.code != ExitCode::Interrupted);
    fleet.stop(trouble).await;
    verdict
}

/// Leaves the gateway to the user until the wish to end.
async fn stay(fleet: &mut Fleet, signals: &mut signals::Signals) -> Result<(), Failure> {
    output::note(&fleet.invitation());
    tokio::select! {
        () = signals.recv() => {
            output::note("\nplimsoll demo: stopping");
            Ok(())
        }
        died = fleet.watch() => Err(Failure::failed(died)),
    }
}

/// The workload from start to table. The inner failure says that requests failed although the demo itself worked.
async fn work(args: &DemoArgs, source: Source, fleet: &mut Fleet) -> Result<Option<Failure>, Failure> {
    output::note(&format!("plimsoll demo: {}", source.title()));
    output::note(&format!("plimsoll demo: {}", source.scale_in_words()));
    fleet.start(args).await?;
    let tally = Arc::new(Tally::new(source.calls(), fleet.engines())?);
    let drive = Drive::new(&source, fleet, args.concurrency, Arc::clone(&tally))?;
    let mut progress = progress::Progress::start(Arc::clone(&tally));
    tokio::select! {
        done = drive.run(source.sessions()?) => done?,
        never = progress.run() => match never {},
        died = fleet.watch() => {
            progress.finish();
            return Err(Failure::failed(died));
        }
    }
    progress.finish();
    let report = Report::new(&tally.snapshot(), source.description(), [source.title(), source.scale_in_words()]);
    output::data(&report.table())?;
    if let Some(path) = &args.json {
        write_json(path, &report)?;
    }
    Ok(report.failure())
}

/// Finds out before minutes of work that the report has nowhere to go.
fn check_writable(path: &Path) -> Result<(), Failure> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map(drop)
        .map_err(|error| Failure::usage(format!("--json {}: cannot be written: {error}", path.display())))
}

fn write_json(path: &Path, report: &Report) -> Result<(), Failure> {
    std::fs::write(path, report.json())
        .map_err(|error| Failure::failed(format!("--json {}: cannot be written: {error}", path.display())))
}
