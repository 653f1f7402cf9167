//! The one program: subcommands, settings, wiring.
//!
//! A library with a thin `main.rs`, so that `xtask` can print the command line reference from the same declarations
//! that the program parses with.

pub mod cli;
pub mod commands;
pub mod config;
pub mod exit;
pub mod otlp;
pub mod output;
pub mod runtime;
pub mod telemetry;

pub use exit::Failure;

use cli::Command;

/// Runs one parsed command line to its end.
///
/// # Errors
/// A [`Failure`] with the exit code and the words for stderr.
pub fn run(cli: cli::Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Demo(args) => commands::demo::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Engine(args) => commands::engine::run(*args),
        Command::Funnel(args) => commands::funnel::run(&args),
        Command::Sim(args) => commands::sim::run(args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Version(args) => commands::version::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
    }
}
