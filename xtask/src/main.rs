//! `cargo run -p xtask -- TASK`: checks and generated files. Exit code 1 when a check finds something.

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use xtask::complaint::Complaint;

/// Checks and generated files of this repository
#[derive(Parser)]
#[command(name = "xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write docs/reference from the declarations
    Generate {
        /// Write nothing; fail where a file differs
        #[arg(long)]
        check: bool,
    },
    /// Deciding crates stay pure, dependencies point one way
    CheckLayers,
    /// File lengths and names
    CheckFiles,
    /// Every dependency has an allowed licence
    Licences,
    /// Write crates/timing/profiles from the measurements in PLIMSOLL_SHARED
    FitProfiles {
        /// Write nothing; fail where a file differs by more than rounding
        #[arg(long)]
        check: bool,
    },
    /// All checks
    Check,
}

fn main() -> ExitCode {
    match run(&Cli::parse().task) {
        Ok(found) if found.is_empty() => ExitCode::SUCCESS,
        Ok(found) => {
            for complaint in &found {
                eprintln!("{complaint}");
            }
            eprintln!("{} complaints", found.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task) -> anyhow::Result<Vec<Complaint>> {
    let root = xtask::root();
    match task {
        Task::Generate { check: false } => xtask::generate::write(&root).map(|()| Vec::new()),
        Task::Generate { check: true } => xtask::generate::compare(&root),
        Task::CheckLayers => xtask::layers::check(&root),
        Task::CheckFiles => xtask::files::check(&root),
        Task::Licences => xtask::licences::check(&root),
        Task::FitProfiles { check: false } => xtask::fit_profiles::write(&root).map(|()| Vec::new()),
        Task::FitProfiles { check: true } => xtask::fit_profiles::compare(&root),
        Task::Check => {
            let mut found = xtask::generate::compare(&root)?;
            found.extend(xtask::layers::check(&root)?);
            found.extend(xtask::files::check(&root)?);
            found.extend(xtask::licences::check(&root)?);
            Ok(found)
        }
    }
}
