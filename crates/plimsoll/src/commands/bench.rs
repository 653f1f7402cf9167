//! `plimsoll bench`: what this build does under a load that is known, beside what simpler ways do.

pub mod overload;

use crate::Failure;
use clap::{Args, Subcommand};
use overload::OverloadArgs;

#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: Bench,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Bench {
    /// A fleet of built-in engines in timing mode under more than it can serve: who is served in time, and who is refused
    Overload(OverloadArgs),
}

/// Runs one benchmark.
///
/// # Errors
/// A process that does not start, a file that cannot be written, an interruption.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.what {
        Bench::Overload(args) => overload::run(args),
    }
}
