//! Runs side by side, as text.

use crate::report::Report;
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
