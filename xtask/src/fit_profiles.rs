//! The timing profiles, computed from public kernel measurements.
//!
//! The measurements are megabytes and stay where they are (`PLIMSOLL_SHARED`); the repository holds what is fitted to them:
//! a few constants per GPU and model. This is the computation, so that anybody with the tables gets the same files.

use crate::complaint::Complaint;
use anyhow::Context;
use std::path::{Path, PathBuf};

mod attention;
mod knots;
mod llama;
mod moe;
mod squares;
mod table;

#[cfg(test)]
mod tests;

/// Where the profiles lie in the repository.
const FOLDER: &str = "crates/timing/profiles";

/// The folder of measurements: `perf` in `PLIMSOLL_SHARED`, or in `shared` beside the repository.
#[must_use]
pub fn measurements(root: &Path) -> PathBuf {
    std::env::var_os("PLIMSOLL_SHARED").map_or_else(|| root.join("../shared"), PathBuf::from).join("perf")
}

/// File name and text of every profile.
///
/// # Errors
/// Names the table and what is missing or wrong in it.
pub fn profiles(perf: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let mut all = llama::profiles(perf)?;
    all.extend(moe::profiles(perf)?);
    Ok(all)
}

/// Writes them.
///
/// # Errors
/// As [`profiles`], or when a file cannot be written.
pub fn write(root: &Path) -> anyhow::Result<()> {
    for (name, text) in profiles(&measurements(root))? {
        let path = root.join(FOLDER).join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Complaints about files that say something else than the tables do, beyond rounding.
///
/// # Errors
/// As [`profiles`], or when a file cannot be read.
pub fn compare(root: &Path) -> anyhow::Result<Vec<Complaint>> {
    let mut found = Vec::new();
    for (name, text) in profiles(&measurements(root))? {
        let path = format!("{FOLDER}/{name}");
        let committed = std::fs::read_to_string(root.join(&path)).with_context(|| format!("cannot read {path}"))?;
        if let Some(what) = difference(&committed, &text) {
            found.push(Complaint::new(path, format!("{what}; run `cargo run -p xtask -- fit-profiles`")));
        }
    }
    Ok(found)
}

/// Share by which a number may differ: sums in another order, a digit that rounds the other way.
const ROUNDING: f64 = 0.005;

/// The first difference between two texts, numbers compared as numbers.
fn difference(committed: &str, fitted: &str) -> Option<String> {
    let mut lines = (committed.lines(), fitted.lines());
    for number in 1.. {
        return match (lines.0.next(), lines.1.next()) {
            (None, None) => None,
            (Some(ours), Some(theirs)) if same_line(ours, theirs) => continue,
            (ours, theirs) => Some(format!(
                "line {number} is `{}`, the tables give `{}`",
                ours.unwrap_or_default(),
                theirs.unwrap_or_default()
            )),
        };
    }
    None
}

fn same_line(ours: &str, theirs: &str) -> bool {
    let words = |line: &str| -> Vec<String> {
        line.split([' ', '[', ']', ',', '=']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let (ours, theirs) = (words(ours), words(theirs));
    ours.len() == theirs.len()
        && ours.iter().zip(&theirs).all(|(ours, theirs)| match (ours.parse::<f64>(), theirs.parse::<f64>()) {
            (Ok(a), Ok(b)) => (a - b).abs() <= ROUNDING * a.abs().max(b.abs()),
            _ => ours == theirs,
        })
}
