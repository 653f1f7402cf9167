//! Licences of everything that is linked, read from cargo's metadata.
//!
//! The form for continuous integration, which has cargo and nothing else; `deny.toml` holds the same list for `cargo deny
//! check`, which also knows advisories. A test compares the two lists.

use crate::complaint::Complaint;
use crate::metadata;
use serde_json::Value;
use std::path::Path;

/// SPDX names that may be linked into an Apache-2.0 binary without further duties than a notice.
pub const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Most packages in the resolved graph, the workspace included. Raise it in the change that adds a dependency, so that
/// growth is seen.
pub const MOST_PACKAGES: usize = 344;

/// All complaints about the resolved dependencies of the workspace at `root`.
///
/// # Errors
/// When cargo cannot resolve the workspace.
pub fn check(root: &Path) -> anyhow::Result<Vec<Complaint>> {
    let graph = metadata::resolved(root)?;
    let used = graph["resolve"]["nodes"].as_array().map_or(0, Vec::len);
    let mut found: Vec<_> = packages(&graph).filter_map(judge).collect();
    if used > MOST_PACKAGES {
        let what = format!("{used} packages, at most {MOST_PACKAGES}; drop one or raise MOST_PACKAGES with a reason");
        found.push(Complaint::new("Cargo.lock", what));
    }
    Ok(found)
}

fn packages(graph: &Value) -> impl Iterator<Item = &Value> {
    let nodes: Vec<_> = graph["resolve"]["nodes"].as_array().into_iter().flatten().map(|node| &node["id"]).collect();
    graph["packages"].as_array().into_iter().flatten().filter(move |package| nodes.contains(&&package["id"]))
}

fn judge(package: &Value) -> Option<Complaint> {
    let name = format!("{} {}", package["name"].as_str()?, package["version"].as_str()?);
    match package["license"].as_str() {
        None => Some(Complaint::new(name, "names no licence")),
        Some(licence) if !allowed(licence) => {
            Some(Complaint::new(name, format!("licence `{licence}` is not in ALLOWED of xtask/src/licences.rs")))
        }
        Some(_) => None,
    }
}

/// Whether an SPDX expression can be met by [`ALLOWED`]. `OR` needs one side, `AND` both; the old `MIT/Apache-2.0` means
/// `OR`. Parentheses are resolved from the inside.
#[must_use]
pub fn allowed(expression: &str) -> bool {
    let text = expression.replace('/', " OR ");
    if let Some(open) = text.rfind('(') {
        let Some(length) = text[open..].find(')') else { return false };
        let inner = if allowed(&text[open + 1..open + length]) { "MIT" } else { "refused" };
        return allowed(&format!("{}{inner}{}", &text[..open], &text[open + length + 1..]));
    }
    text.split(" OR ").any(|all| all.split(" AND ").all(|one| ALLOWED.contains(&one.trim())))
}
