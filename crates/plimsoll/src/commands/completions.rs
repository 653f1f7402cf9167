//! `plimsoll completions`: a script for the shell's completion folder.

use crate::cli::{Cli, CompletionsArgs};
use crate::{Failure, output};
use clap::CommandFactory as _;

/// Prints the script.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "plimsoll", &mut script);
    output::data(&String::from_utf8_lossy(&script))
}
