//! How the program ends, for scripts and unit files.
//!
//! A supervisor restarts on 1 and gives up on 2: a config that is wrong now is wrong after a restart as well.

use std::fmt;

/// Exit codes. `docs/reference/cli.md` lists them from [`ExitCode::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    Ok,
    Failed,
    Usage,
    Interrupted,
}

impl ExitCode {
    pub const ALL: [ExitCode; 4] = [ExitCode::Ok, ExitCode::Failed, ExitCode::Usage, ExitCode::Interrupted];

    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            ExitCode::Ok => 0,
            ExitCode::Failed => 1,
            ExitCode::Usage => 2,
            ExitCode::Interrupted => 130,
        }
    }

    #[must_use]
    pub const fn doc(self) -> &'static str {
        match self {
            ExitCode::Ok => "Done. For `serve` and `engine`: stopped by SIGTERM or Ctrl-C.",
            ExitCode::Failed => {
                "Failed while running: a port is taken, an engine did not answer, a file cannot be written."
            }
            ExitCode::Usage => "Wrong command line or config. Nothing was started; a restart will not help.",
            ExitCode::Interrupted => "Interrupted by Ctrl-C before the work was done.",
        }
    }
}

/// Why the program ends early: an exit code, what happened, and what to do about it where that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: ExitCode,
    pub message: String,
    pub hint: Option<String>,
}

impl Failure {
    /// Something went wrong while running (exit code 1).
    #[must_use]
    pub fn failed(message: impl fmt::Display) -> Self {
        Failure { code: ExitCode::Failed, message: message.to_string(), hint: None }
    }

    /// The command line or config is wrong (exit code 2).
    #[must_use]
    pub fn usage(message: impl fmt::Display) -> Self {
        Failure { code: ExitCode::Usage, message: message.to_string(), hint: None }
    }

    /// Ctrl-C came before the work was done (exit code 130).
    #[must_use]
    pub fn interrupted() -> Self {
        Failure { code: ExitCode::Interrupted, message: "interrupted".into(), hint: None }
    }

    /// Adds what to do, as a phrase without full stop.
    #[must_use]
    pub fn hint(self, hint: impl fmt::Display) -> Self {
        Failure { hint: Some(hint.to_string()), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
