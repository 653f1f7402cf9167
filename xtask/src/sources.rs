//! Rust source files of the repository, and which of their lines are production code.

use anyhow::Context as _;
use std::path::{Path, PathBuf};

/// One source file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Relative to the root, with `/`.
    pub path: String,
    pub text: String,
}

/// All `*.rs` under `folders` of `root`, in order of their paths.
///
/// # Errors
/// When a file cannot be read.
pub fn rust_files(root: &Path, folders: &[&str]) -> anyhow::Result<Vec<Source>> {
    let mut paths = Vec::new();
    for folder in folders {
        collect(&root.join(folder), &mut paths)?;
    }
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let path = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            Ok(Source { path, text })
        })
        .collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, paths)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            paths.push(path);
        }
    }
    Ok(())
}

impl Source {
    /// Whether the whole file is tests: `tests.rs`, below `tests/` of a crate, or a crate that only tests use.
    #[must_use]
    pub fn is_test(&self) -> bool {
        let in_crate = self.path.split_once("src/").map_or(self.path.as_str(), |(_, rest)| rest);
        in_crate == "tests.rs" || in_crate.ends_with("/tests.rs") || in_crate.split('/').any(|part| part == "tests")
    }

    /// Lines before an inline `#[cfg(test)] mod ... {`, numbered from 1; none for test files.
    pub fn production_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines: Vec<&str> = if self.is_test() { Vec::new() } else { self.text.lines().collect() };
        let end = (0..lines.len()).find(|at| opens_tests(&lines[*at..])).unwrap_or(lines.len());
        lines.into_iter().take(end).enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// `mod tests;` names a file and does not end the production code of this one.
fn opens_tests(lines: &[&str]) -> bool {
    match lines {
        [first, next, ..] => {
            first.trim() == "#[cfg(test)]" && next.trim_start().starts_with("mod ") && next.trim_end().ends_with('{')
        }
        _ => false,
    }
}

/// The line without its `//` comment.
#[must_use]
pub fn code(line: &str) -> &str {
    line.find("//").map_or(line, |start| &line[..start])
}

/// Whether `word` stands in `line` as whole identifiers: `Instant` is not in `InstantView`.
#[must_use]
pub fn has_word(line: &str, word: &str) -> bool {
    let part = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(part) && (!after.is_some_and(part) || word.ends_with(':'))
    })
}
