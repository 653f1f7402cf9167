//! Where the shared reference files lie: `PLIMSOLL_SHARED`, or `shared` beside the repository.

use std::path::PathBuf;

/// The file, or `None` (and a line that says so) where it is missing.
pub(crate) fn trace(test: &str, name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("PLIMSOLL_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")), PathBuf::from);
    let path = root.join("traces").join(name);
    if !path.is_file() {
        println!("skipped: {test} (no PLIMSOLL_SHARED)");
        return None;
    }
    Some(path)
}

pub(crate) const MOONCAKE: &str = "mooncake_conversation.jsonl.zst";
pub(crate) const AGENTIC: &str = "agentic_weka_compact.jsonl.zst";

/// A word list as good as the engine's for these tests: 1,000 distinct words.
pub(crate) fn words() -> Vec<String> {
    (0..1_000).map(|n| format!("w{n}")).collect()
}

/// Asserts that `measured` is `wanted` within this share of it.
pub(crate) fn near(name: &str, measured: f64, wanted: f64, tolerance: f64) {
    let off = measured / wanted - 1.0;
    println!("{name}: {measured:.3} ({:+.1} % off {wanted})", off * 100.0);
    assert!(off.abs() <= tolerance, "{name}: {measured:.1} is {:+.1} % off {wanted}", off * 100.0);
}

/// The value at share `p` of the sorted values.
pub(crate) fn quantile(values: &mut [f64], p: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * p) as usize]
}
