//! The curve as people look at it.

use super::offline::Report;
use std::fmt::Write as _;

/// Columns of a full bar.
const BAR: usize = 50;

pub(super) fn table(report: &Report) -> String {
    let mut out = String::new();
    let tokens = |blocks: u64| short(blocks.saturating_mul(report.block_tokens));
    let rate = report.requests_per_s.map_or_else(String::new, |rate| format!(", {rate:.2} requests/s"));
    // Writing to a string does not fail.
    let _ = writeln!(out, "{} ({}): {} requests{rate}", report.trace, report.format, report.requests);
    let _ = writeln!(
        out,
        "{} blocks of {} tokens asked for, {} of them distinct ({} tokens)\n",
        report.accesses_blocks,
        report.block_tokens,
        report.unique_blocks,
        tokens(report.unique_blocks)
    );
    let _ = writeln!(out, "{:>12} {:>8} {:>8}  {:<BAR$}", "blocks", "tokens", "hits", "of the ceiling");
    for point in &report.capacities {
        let share = if report.ceiling > 0.0 { point.hit_rate / report.ceiling } else { 0.0 };
        let bar = "█".repeat((share * BAR as f64).round() as usize);
        let _ = writeln!(
            out,
            "{:>12} {:>8} {:>7.2}%  {bar:<BAR$} {:>5.1}%",
            point.capacity,
            tokens(point.capacity),
            point.hit_rate * 100.0,
            share * 100.0
        );
    }
    let _ =
        writeln!(out, "{:>12} {:>8} {:>7.2}%  ceiling: no limit, nothing evicted", "∞", "∞", report.ceiling * 100.0);
    let _ = writeln!(
        out,
        "\none shared LRU cache, exact; {:.2} us per request, {:.1} MB",
        report.us_per_request,
        report.memory_bytes as f64 / 1e6
    );
    out
}

/// Tokens with a unit: three digits are enough to compare.
pub(super) fn short(tokens: u64) -> String {
    match tokens {
        0..10_000 => tokens.to_string(),
        10_000..10_000_000 => format!("{}k", tokens / 1_000),
        10_000_000..10_000_000_000 => format!("{}M", tokens / 1_000_000),
        _ => format!("{}G", tokens / 1_000_000_000),
    }
}
