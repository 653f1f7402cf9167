//! The real jinja2, in a Python of its own.

use serde_json::{Value, json};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A Python that can import `jinja2`: `PLIMSOLL_PYTHON`, else `.venv` of the repository.
pub(crate) fn python() -> Option<PathBuf> {
    let named = std::env::var_os("PLIMSOLL_PYTHON").filter(|path| !path.is_empty()).map(PathBuf::from);
    let python = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"));
    let can = Command::new(&python).args(["-c", "import jinja2"]).output().is_ok_and(|output| output.status.success());
    if !can {
        println!("passed over: no Python with `jinja2`; set PLIMSOLL_PYTHON or run ./test");
    }
    can.then_some(python)
}

/// What jinja2 makes of each case: `{"text"}`, `{"refused"}` or `{"failed"}`.
pub(crate) fn render(python: &Path, cases: &[Value]) -> Vec<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates/render.py");
    let mut child = Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = json!(cases).to_string();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}
