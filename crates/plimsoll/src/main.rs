//! Entry point: parse, run, turn the end into an exit code.

use clap::Parser as _;
use plimsoll::cli::Cli;
use std::process::ExitCode;

/// A request costs some seventy small allocations, many of them freed on another thread than they were made on; the
/// system's allocator took a seventh of the gateway's CPU time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before arguments and settings are read: a page that is huge by then stays so.
    if std::env::args_os().nth(1).is_some_and(|command| command == "serve") {
        plimsoll::runtime::refuse_huge_pages();
    }
    match plimsoll::run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            plimsoll::output::complain(&failure);
            ExitCode::from(failure.code.number())
        }
    }
}
