//! `docs/reference`, written from the declarations that the program runs on.
//!
//! Reference pages kept by hand are wrong after the first change. A test compares these with what is checked in.

mod cli;
mod errors;
mod headers;
mod metrics;

use crate::complaint::Complaint;
use anyhow::Context as _;
use std::path::Path;

const FOLDER: &str = "docs/reference";

/// File name and text of every page.
///
/// # Errors
/// When the schema cannot be written as JSON.
pub fn pages() -> anyhow::Result<Vec<(&'static str, String)>> {
    Ok(vec![
        ("settings.md", plimsoll_settings::reference::markdown()),
        ("settings.schema.json", serde_json::to_string_pretty(&plimsoll_settings::json_schema())? + "\n"),
        ("report.schema.json", serde_json::to_string_pretty(&plimsoll_sim::report::json_schema())? + "\n"),
        ("cli.md", cli::page()),
        ("errors.md", errors::page()),
        ("headers.md", headers::page()),
        ("metrics.md", metrics::page()),
    ])
}

/// Writes all pages.
///
/// # Errors
/// When a file cannot be written.
pub fn write(root: &Path) -> anyhow::Result<()> {
    let folder = root.join(FOLDER);
    std::fs::create_dir_all(&folder)?;
    for (name, text) in pages()? {
        std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {FOLDER}/{name}"))?;
    }
    Ok(())
}

/// Pages that differ from what is checked in.
///
/// # Errors
/// When the pages cannot be made.
pub fn compare(root: &Path) -> anyhow::Result<Vec<Complaint>> {
    let mut found = Vec::new();
    for (name, text) in pages()? {
        let place = format!("{FOLDER}/{name}");
        let old = std::fs::read_to_string(root.join(&place)).unwrap_or_default();
        if let Some(line) = first_difference(&old, &text) {
            found.push(Complaint::new(format!("{place}:{line}"), "differs, run `cargo run -p xtask -- generate`"));
        }
    }
    Ok(found)
}

fn first_difference(old: &str, new: &str) -> Option<usize> {
    if old == new {
        return None;
    }
    let same = old.lines().zip(new.lines()).take_while(|(old, new)| old == new).count();
    Some(same + 1)
}
