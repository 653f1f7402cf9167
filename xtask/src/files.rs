//! Lengths and names of source files.
//!
//! A file over 600 lines holds more than one idea, and a file called `utils` holds none. Every module says why it exists.

use crate::complaint::Complaint;
use crate::sources::{Source, rust_files};
use std::path::Path;

const FOLDERS: &[&str] = &["crates", "tests", "xtask", "bench"];

/// Most lines of production code in one file.
pub const MOST_LINES: usize = 600;

/// Names that say nothing about their content. `block_manager` is the field's word for a thing and stays.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "manager", "helper", "helpers", "misc"];

/// All complaints about source files below `root`.
///
/// # Errors
/// When a file cannot be read.
pub fn check(root: &Path) -> anyhow::Result<Vec<Complaint>> {
    let sources = rust_files(root, FOLDERS)?;
    Ok(sources.iter().flat_map(judge).collect())
}

fn judge(source: &Source) -> Vec<Complaint> {
    let mut found = Vec::new();
    let mut say = |what: String| found.push(Complaint::new(&source.path, what));
    let lines = source.production_lines().count();
    if lines > MOST_LINES {
        say(format!("{lines} lines of production code, at most {MOST_LINES}; split it by idea"));
    }
    if source.path.ends_with("/mod.rs") {
        say("use NAME.rs beside NAME/ instead of mod.rs".into());
    }
    let stem = source.path.trim_end_matches(".rs");
    for part in stem.split('/') {
        if EMPTY_NAMES.contains(&part) {
            say(format!("`{part}` says nothing; name it after what it does"));
        }
    }
    if !source.is_test() && !source.text.starts_with("//!") {
        say("must open with `//!` and why it exists".into());
    }
    found
}
