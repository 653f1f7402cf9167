//! The end of the demo: a table for people, the same as JSON for scripts, a verdict for the exit code.

use super::progress::percent;
use super::source::thousands;
use super::tally::Counts;
use crate::Failure;
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;

/// What the table shows and `--json` writes. `requests` is always `completed` plus `errors`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    requests: u64,
    completed: u64,
    errors: u64,
    errors_by_code: std::collections::BTreeMap<String, u64>,
    /// Requests that were sent again because the gateway asked for it.
    repeats: u64,
    /// `null` where nothing was completed.
    ttft_ms: Option<Quantiles>,
    itl_ms: Option<Quantiles>,
    output_tokens: u64,
    output_tokens_per_s: f64,
    prompt_tokens: u64,
    /// Share of prompt tokens that engines took from their caches; `null` where none said.
    hit_rate: Option<f64>,
    engines: Vec<Engine>,
    workload: Value,
    seconds: f64,
    #[serde(skip)]
    messages: std::collections::BTreeMap<String, String>,
    #[serde(skip)]
    headings: [String; 2],
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Quantiles {
    p50: f64,
    p90: f64,
    p99: f64,
}

#[derive(Debug, Serialize)]
struct Engine {
    id: String,
    url: Option<String>,
    requests: u64,
    /// Of all requests, 0..=1.
    share: f64,
    output_tokens: u64,
    prompt_tokens: u64,
    hit_rate: Option<f64>,
}

impl Report {
    /// `headings`: the workload and its scale, in words.
    pub(super) fn new(counts: &Counts, workload: Value, headings: [String; 2]) -> Self {
        let done = counts.done();
        let engine = |(id, engine): (&String, &super::tally::EngineCounts)| Engine {
            id: id.clone(),
            url: Some(engine.url.clone()).filter(|url| !url.is_empty()),
            requests: engine.requests,
            share: engine.requests as f64 / done.max(1) as f64,
            output_tokens: engine.output_tokens,
            prompt_tokens: engine.prompt_tokens,
            hit_rate: engine.hit_rate(),
        };
        Report {
            requests: done,
            completed: counts.completed,
            errors: counts.failed(),
            errors_by_code: counts.errors.clone(),
            repeats: counts.repeats,
            ttft_ms: quantiles(&counts.ttft_us),
            itl_ms: quantiles(&counts.itl_us),
            output_tokens: counts.output_tokens,
            output_tokens_per_s: counts.output_tokens_per_s(),
            prompt_tokens: counts.prompt_tokens,
            hit_rate: counts.hit_rate(),
            engines: counts.engines.iter().map(engine).collect(),
            workload,
            seconds: counts.elapsed().as_secs_f64(),
            messages: counts.messages.clone(),
            headings,
        }
    }

    pub(super) fn json(&self) -> String {
        // Numbers, strings and maps with string keys: it cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    pub(super) fn table(&self) -> String {
        let rule = format!("  {}\n", "─".repeat(66));
        let mut text = String::from("\n");
        let mut put = |line: String| {
            let _ = writeln!(text, "  {}", line.trim_end());
        };
        for heading in &self.headings {
            put(heading.clone());
        }
        put("─".repeat(66));
        put(format!("{:<22}{:>12}", "requests", thousands(self.requests)));
        put(format!("{:<22}{:>12}", "completed", thousands(self.completed)));
        put(format!("{:<22}{:>12}", "errors", thousands(self.errors)));
        for (code, count) in &self.errors_by_code {
            put(format!("  {code:<20}{count:>12}   {}", self.messages.get(code).map_or("", String::as_str)));
        }
        if self.repeats > 0 {
            put(format!("{:<22}{:>12}", "repeated on request", thousands(self.repeats)));
        }
        put(format!("{:<22}{:>12}", "duration", format!("{:.1} s", self.seconds)));
        put(format!("{:<22}{:>12}", "output tokens/s", format!("{:.0}", self.output_tokens_per_s)));
        put(format!("{:<22}{:>12}", "prefix hit rate", percent(self.hit_rate)));
        put("─".repeat(66));
        put(format!("{:<22}{:>12}{:>12}{:>12}", "", "p50", "p90", "p99"));
        put(times("time to first token", self.ttft_ms));
        put(times("between tokens", self.itl_ms));
        put("─".repeat(66));
        put(format!("{:<22}{:>12}{:>12}{:>12}", "engine", "requests", "share", "hit rate"));
        for engine in &self.engines {
            let url = engine.url.as_deref().unwrap_or_default().trim_start_matches("http://");
            let name = format!("{:<3}{url}", engine.id);
            let (share, hit) = (percent(Some(engine.share)), percent(engine.hit_rate));
            put(format!("{name:<22}{:>12}{share:>12}{hit:>12}", thousands(engine.requests)));
        }
        text.push_str(&rule);
        text
    }

    /// `Some` when requests failed: the demo then ends with exit code 1.
    pub(super) fn failure(&self) -> Option<Failure> {
        (self.errors > 0).then(|| Failure::failed(format!("{} of {} requests failed", self.errors, self.requests)))
    }
}

fn times(name: &str, quantiles: Option<Quantiles>) -> String {
    let cell = |of: fn(Quantiles) -> f64| quantiles.map_or_else(|| "–".to_owned(), |q| format!("{:.1} ms", of(q)));
    format!("{name:<22}{:>12}{:>12}{:>12}", cell(|q| q.p50), cell(|q| q.p90), cell(|q| q.p99))
}

fn quantiles(times_us: &Histogram<u64>) -> Option<Quantiles> {
    let at = |q| times_us.value_at_quantile(q) as f64 / 1e3;
    (!times_us.is_empty()).then(|| Quantiles { p50: at(0.5), p90: at(0.9), p99: at(0.99) })
}

#[cfg(test)]
mod tests;
