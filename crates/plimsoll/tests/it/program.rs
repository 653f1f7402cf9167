//! Runs the built binary.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// What a finished run left behind.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The binary with an environment that holds no settings of the developer's shell.
pub(crate) fn plimsoll(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PLIMSOLL_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

pub(crate) fn run(args: &[&str]) -> Ran {
    finish(&mut plimsoll(args))
}

pub(crate) fn finish(command: &mut Command) -> Ran {
    let output = command.output().expect("the binary runs");
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("utf-8"),
        stderr: String::from_utf8(output.stderr).expect("utf-8"),
    }
}

pub(crate) fn run_with_stdin(args: &[&str], input: &str) -> Ran {
    let mut child = plimsoll(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Ran {
    /// Asserts exit code and an empty stdout; gives stderr.
    #[track_caller]
    pub(crate) fn refused(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "", "an error leaves stdout alone");
        self.stderr
    }

    /// Asserts success and an empty stderr; gives stdout.
    #[track_caller]
    pub(crate) fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stderr, "");
        self.stdout
    }
}
