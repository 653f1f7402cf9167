//! Entry point: parse, run, turn the end into an exit code.

use clap::Parser as _;
use plimsoll::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    match plimsoll::run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            plimsoll::output::complain(&failure);
            ExitCode::from(failure.code.number())
        }
    }
}
