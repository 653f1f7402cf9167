//! What goes to which stream: data to stdout, everything else to stderr.
//!
//! `println!` panics when the reader has gone (`plimsoll version | true`); a closed pipe is a normal end here.

use crate::Failure;
use std::io::{ErrorKind, IsTerminal as _, Write as _};

/// Writes data to stdout.
///
/// # Errors
/// When stdout cannot be written for another reason than a reader that went away.
pub fn data(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Text that others have a say in, such as the names of models, without what a terminal would obey.
#[must_use]
pub fn tame(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// Writes one line to stderr; nobody is left to tell when that fails.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Writes a failure: its message, each line under `error:`, then `hint:`.
pub fn complain(failure: &Failure) {
    let (red, cyan, plain) = if colours() { ("\x1b[1;31m", "\x1b[36m", "\x1b[0m") } else { ("", "", "") };
    for line in failure.message.lines() {
        note(&format!("{red}error:{plain} {line}"));
    }
    if let Some(hint) = &failure.hint {
        note(&format!("{cyan}hint:{plain} {hint}"));
    }
}

/// Whether stderr may be coloured: a terminal, and `NO_COLOR` unset or empty (no-color.org).
#[must_use]
pub fn colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_cannot_write_to_the_terminal() {
        assert_eq!(tame("ev\x1b]0;pwn\x07il\nnext"), "ev\u{fffd}]0;pwn\u{fffd}il\nnext");
    }
}
