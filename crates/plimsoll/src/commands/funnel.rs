//! `plimsoll funnel`: where a hit rate is lost, in a running gateway; with `--trace`, what a cache could give.
//!
//! The first question about a hit rate is what would be possible: with all the room in the world (the ceiling), and with the
//! room there is. Both are exact here and cheap ([`plimsoll_cache::funnel`]), for every size at once, so that "twice the KV" has
//! an answer before anybody buys it.

mod live;
mod offline;
mod picture;

use crate::{Failure, output};
use clap::Args;
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
pub struct FunnelArgs {
    /// Trace to read (Mooncake or compact agentic, plain, .zst or .gz) in place of a running gateway
    #[arg(long, value_name = "FILE", conflicts_with_all = ["admin", "once", "interval_s"])]
    pub trace: Option<PathBuf>,
    /// Operators' address of the gateway to look at
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    pub admin: String,
    /// Bearer token of its admin API; the environment keeps it out of the process list
    #[arg(long, value_name = "TOKEN", env = "PLIMSOLL_ADMIN__TOKEN", hide_env_values = true)]
    pub admin_token: Option<String>,
    /// Print the table once and end; else it is renewed until Ctrl-C
    #[arg(long)]
    pub once: bool,
    /// Seconds between two tables
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub interval_s: u64,
    /// Cache sizes in blocks of the trace [default: 1, 2, 5 times powers of ten up to what the trace needs]
    #[arg(long, value_name = "BLOCKS", num_args = 1.., requires = "trace", value_parser = clap::value_parser!(u64).range(1..))]
    pub capacity: Vec<u64>,
    /// Read only the first N rows or sessions
    #[arg(long, value_name = "N", requires = "trace", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Start sessions that have no recorded start uniformly within this many hours; 0: one after the other
    #[arg(long, value_name = "HOURS", default_value_t = 8.0, value_parser = hours)]
    pub window_h: f64,
    /// Longest pause before a session's next call, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub longest_pause_s: u64,
    /// Seed of the session starts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON instead of the table: one object, or one a line for each renewal
    #[arg(long)]
    pub json: bool,
}

fn hours(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=8_760.0).contains(&value) => Ok(value),
        _ => Err("expected hours from 0 to 8760".to_owned()),
    }
}

/// Reads the trace and prints its curve, or asks the gateway.
///
/// # Errors
/// A trace that cannot be read: file, line, column and what was expected there. A gateway that does not answer.
pub fn run(args: &FunnelArgs) -> Result<(), Failure> {
    let Some(trace) = &args.trace else { return live::run(args) };
    let report = offline::report(args, trace)?;
    if args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| Failure::failed(error.to_string()))?;
        return output::data(&format!("{text}\n"));
    }
    output::data(&picture::table(&report))
}
