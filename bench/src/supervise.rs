//! A benchmark that is killed must leave no server behind to disturb the next one. The kernel can see to that
//! (`PR_SET_PDEATHSIG`), but the child has to ask for it. Ours ask at their start; foreign programs are started
//! through `supervise`, which asks and then becomes the program: the setting and the pid survive `execve`.

use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

#[derive(clap::Args)]
pub struct Args {
    /// Program and its arguments.
    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub fn die_with_parent() -> anyhow::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    die_with_parent()?;
    let [program, rest @ ..] = args.command.as_slice() else { anyhow::bail!("name a program to run") };
    Err(anyhow::Error::new(Command::new(program).args(rest).exec()).context(format!("cannot start {program:?}")))
}
