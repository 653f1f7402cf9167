//! Runs side by side, as text.

use crate::report::Report;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// One line of a comparison.
#[derive(Clone, Copy)]
pub struct Row {
    pub name: &'static str,
    value: fn(&Report) -> f64,
    digits: usize,
}

impl Row {
    #[must_use]
    pub fn text(&self, report: &Report) -> String {
        format!("{:.*}", self.digits, (self.value)(report))
    }
}

/// What is compared.
#[must_use]
pub fn rows() -> &'static [Row] {
    const fn row(name: &'static str, digits: usize, value: fn(&Report) -> f64) -> Row {
        Row { name, value, digits }
    }
    const ROWS: &[Row] = &[
        row("requests answered", 0, |r| r.requests.completed as f64),
        row("requests refused or failed", 0, |r| (r.requests.arrived - r.requests.completed) as f64),
        row("duration, s", 1, |r| r.duration_s),
        row("TTFT mean, ms", 1, |r| r.ttft_ms.mean),
        row("TTFT p50, ms", 1, |r| r.ttft_ms.p50),
        row("TTFT p90, ms", 1, |r| r.ttft_ms.p90),
        row("TTFT p99, ms", 1, |r| r.ttft_ms.p99),
        row("ITL mean, ms", 2, |r| r.itl_ms.mean),
        row("ITL p99, ms", 2, |r| r.itl_ms.p99),
        row("TPOT p90, ms", 2, |r| r.tpot_ms.p90),
        row("E2E p50, ms", 0, |r| r.e2e_ms.p50),
        row("E2E p90, ms", 0, |r| r.e2e_ms.p90),
        row("hit rate of tokens, %", 2, |r| r.tokens.hit_rate * 100.0),
        row("prompt tokens per s", 0, |r| r.tokens.prompt_per_s),
        row("output tokens per s", 0, |r| r.tokens.output_per_s),
        row("GPU hours", 2, |r| r.gpu_hours),
        row("time busy, %", 1, |r| r.busy_share * 100.0),
        row("time with prefill, %", 1, |r| r.prefill_share * 100.0),
        row("preemptions", 0, |r| r.preemptions as f64),
        row("busiest instance over mean, requests", 2, most_over_mean),
    ];
    ROWS
}

fn most_over_mean(report: &Report) -> f64 {
    let most = report.instances.iter().map(|instance| instance.share).fold(0.0, f64::max);
    most * report.instances.len() as f64
}

/// What was asked, as pairs of a name and a value.
fn asked(report: &Report) -> Vec<(String, String)> {
    let setup = &report.setup;
    let usual = |rate: f64| (rate != 1.0).then(|| rate.to_string());
    let own = [
        ("trace", Some(setup.trace.clone())),
        ("profile", Some(setup.profile.clone())),
        ("instances", Some(setup.instances.to_string())),
        ("policy", Some(setup.policy.clone())),
        ("seed", Some(setup.seed.to_string())),
        ("rate", usual(setup.rate)),
        ("limit", setup.limit.map(|limit| limit.to_string())),
        ("targets, ms", Some(format!("TTFT {} TPOT {}", setup.slo_ttft_ms, setup.slo_tpot_ms))),
    ];
    let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    // A variant is told by its name already.
    own.chain(setup.settings.clone()).filter(|(name, _)| name != "variant").collect()
}

/// What was asked: all of it of one run, and where several differ.
fn questions(names: &[String], reports: &[&Report]) -> String {
    let mut text = String::new();
    let all: Vec<BTreeMap<String, String>> = reports.iter().map(|report| asked(report).into_iter().collect()).collect();
    let Some(first) = reports.first() else { return text };
    if reports.len() == 1 {
        for (name, value) in asked(first) {
            let _ = writeln!(text, "{name}: {value}");
        }
        return text;
    }
    let keys: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    for key in keys {
        if all.iter().all(|one| one.get(key) == all[0].get(key)) {
            continue;
        }
        let values = names.iter().zip(&all).map(|(name, one)| match one.get(key) {
            Some(value) => format!("{value} ({name})"),
            None => format!("as usual ({name})"),
        });
        let _ = writeln!(text, "differs in {key}: {}", values.collect::<Vec<_>>().join(", "));
    }
    text
}

/// Why requests have no answer, and what else should be known, a line each.
fn remarks(names: &[String], reports: &[&Report]) -> String {
    let mut text = String::new();
    for (name, report) in names.iter().zip(reports) {
        let of = if reports.len() > 1 { format!("{name}: ") } else { String::new() };
        let refused = report.requests.refused.iter().map(|(why, count)| format!("{count} refused, {why}"));
        let failed = (report.requests.failed > 0).then(|| format!("{} failed under way", report.requests.failed));
        for line in refused.chain(failed).chain(report.notes.iter().cloned()) {
            let _ = writeln!(text, "{of}{line}");
        }
    }
    text
}

/// What was asked, a table, and what should be known beside it; with more than one run, the difference to the first beside each.
#[must_use]
pub fn page(names: &[String], reports: &[&Report]) -> String {
    let parts = [questions(names, reports), table(names, reports), remarks(names, reports)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// A table; with more than one run, the difference to the first beside each.
#[must_use]
pub fn table(names: &[String], reports: &[&Report]) -> String {
    let mut lines: Vec<Vec<String>> = vec![std::iter::once(String::new()).chain(names.iter().cloned()).collect()];
    for row in rows() {
        let first = reports.first().map_or(0.0, |report| (row.value)(report));
        let cell = |(nth, report): (usize, &&Report)| {
            let value = (row.value)(report);
            match nth {
                0 => row.text(report),
                _ if first == value => format!("{} (=)", row.text(report)),
                _ if first == 0.0 => format!("{} (new)", row.text(report)),
                _ => format!("{} ({:+.1} %)", row.text(report), (value / first - 1.0) * 100.0),
            }
        };
        let cells = reports.iter().enumerate().map(cell);
        lines.push(std::iter::once(row.name.to_owned()).chain(cells).collect());
    }
    let columns = names.len() + 1;
    let width =
        |at: usize| lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        for (at, cell) in line.iter().enumerate() {
            let wide = widths[at];
            let _ = if at == 0 { write!(text, "{cell:<wide$}") } else { write!(text, "  {cell:>wide$}") };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_what_was_asked_and_what_became_of_it() {
        let mut first = Report::empty();
        (first.setup.trace, first.setup.policy, first.setup.seed) = ("a.jsonl".to_owned(), "random".to_owned(), 7);
        first.requests.refused.insert("no capacity".to_owned(), 3);
        first.requests.failed = 2;
        first.notes.push("the run was over".to_owned());
        let one = page(&["a".to_owned()], &[&first]);
        for line in [
            "trace: a.jsonl",
            "policy: random",
            "seed: 7",
            "3 refused, no capacity",
            "2 failed under way",
            "the run was over",
        ] {
            assert!(one.lines().any(|own| own == line), "{line}: {one}");
        }
        let mut second = first.clone();
        second.setup.settings.insert("admission".to_owned(), "on".to_owned());
        second.setup.seed = 8;
        let both = page(&["a".to_owned(), "b".to_owned()], &[&first, &second]);
        let differs: Vec<&str> = both.lines().filter(|line| line.starts_with("differs")).collect();
        assert_eq!(differs, ["differs in admission: as usual (a), on (b)", "differs in seed: 7 (a), 8 (b)"]);
        assert!(both.contains("b: 3 refused, no capacity"), "{both}");
    }

    #[test]
    fn the_second_is_said_in_terms_of_the_first() {
        let mut first = Report::empty();
        first.gpu_hours = 4.0;
        let mut second = first.clone();
        second.gpu_hours = 5.0;
        let text = table(&["a".to_owned(), "b".to_owned()], &[&first, &second]);
        assert!(text.contains("5.00 (+25.0 %)"), "{text}");
        assert!(text.lines().all(|line| line.len() == text.lines().next().unwrap().len()), "{text}");
    }
}
