//! `plimsoll engine`: one built-in engine in this process.

use crate::Failure;
use crate::cli::EngineArgs;

/// Runs the engine until SIGTERM or Ctrl-C.
///
/// # Errors
/// A port that is taken.
pub fn run(args: EngineArgs) -> Result<(), Failure> {
    Err(Failure::failed(format!("engine on {} is not wired", args.listen)))
}
