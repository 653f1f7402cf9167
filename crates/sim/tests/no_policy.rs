//! The simulator chooses nothing itself: every rule that decides where a request goes is in `plimsoll-load`, or a baseline behind
//! the same trait. A copy would drift from what runs in the gateway, and a simulation of it would prove nothing.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn nothing_here_chooses_an_engine() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
    let mut files = Vec::new();
    sources(root, &mut files);
    assert!(files.len() > 20, "{}", files.len());
    // Words that a rule of choice cannot do without: candidates, their scores, what is believed to be cached, classes, quotas.
    let words = [
        "view.candidates",
        "Placement for",
        "score_s",
        "expected_wait",
        "hit_fraction",
        "Quotas",
        "feasible_set",
        "impl Ord for Hit",
    ];
    let mut placed = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let baseline = file.strip_prefix(root).unwrap().starts_with("baselines") || file.ends_with("baselines.rs");
        placed += if baseline { 0 } else { text.matches("self.scheduler.place(").count() };
        for word in words.iter().filter(|_| !baseline) {
            assert!(!text.contains(word), "{} has {word:?}: drive the production crates instead", file.display());
        }
    }
    assert_eq!(placed, 1, "one place asks the production scheduler");
}
