//! The tables, in Markdown.

use super::Results;
use super::contender::Contender;
use super::figures::{Figures, median};
use super::scenario::{CONCURRENCY, Scenario};
use std::fmt::{self, Write};

/// Goals of the project for its own rows.
const REQUEST_1KB_US: f64 = 60.0;
const REQUEST_300KB_US: f64 = 500.0;
const EVENT_US: f64 = 6.5;
const ADDED_TTFT_MS: f64 = 0.3;
const RSS_REST_MIB: f64 = 25.0;
const READY_MS: f64 = 100.0;
/// Two for each of the four.
const STALLED_MIB: f64 = 8.0;

const MIB: f64 = 1024.0 * 1024.0;

pub fn render(results: &Results) -> Result<String, fmt::Error> {
    let mut out = String::new();
    header(&mut out, results)?;
    goals(&mut out, results)?;
    for scenario in Scenario::ALL {
        scenario_table(&mut out, results, scenario)?;
    }
    starts(&mut out, results)?;
    choice(&mut out, results)?;
    Ok(out)
}

fn header(out: &mut String, results: &Results) -> fmt::Result {
    let machine = &results.machine;
    writeln!(
        out,
        "{}; {}, {} cores; Linux {}; {}; commit {}; load average at the start {}.",
        machine.date, machine.cpu, machine.cores, machine.kernel, machine.rustc, machine.commit, machine.load_average
    )?;
    writeln!(
        out,
        "Medians of {} interleaved {}rounds; {CONCURRENCY} connections, closed loop; client, two fake engines and \
         router share the cores.\n",
        results.rounds,
        if results.quick { "short " } else { "" }
    )
}

/// The figures that the project has set itself, for every router.
fn goals(out: &mut String, results: &Results) -> fmt::Result {
    let columns: Vec<Contender> = results.contenders.iter().copied().filter(|c| *c != Contender::Direct).collect();
    write!(out, "| | goal |")?;
    for contender in &columns {
        write!(out, " {} |", contender.title())?;
    }
    writeln!(out, "\n|---|---|{}", "---|".repeat(columns.len()))?;
    let mut row = |name: &str, unit: &str, goal: Option<f64>, figure: &dyn Fn(Contender) -> Option<f64>| {
        let bound = goal.map_or(String::from("none"), |goal| format!("<= {goal} {unit}"));
        write!(out, "| {name}, {unit} | {bound} |")?;
        for &contender in &columns {
            let found = figure(contender);
            let missed = contender.is_ours() && found.zip(goal).is_some_and(|(found, goal)| found > goal);
            write!(out, " {}{} |", number(found), if missed { " (missed)" } else { "" })?;
        }
        writeln!(out)
    };
    let figures = |contender, scenario| Figures::of(results, contender, scenario);
    row("CPU, 1 KB request", "us", Some(REQUEST_1KB_US), &|c| figures(c, Scenario::Plain1Kb)?.router_us())?;
    row("CPU, SSE event, back to back", "us", Some(EVENT_US), &|c| figures(c, Scenario::Stream33)?.event_us())?;
    // Most of this is sleeping and waking, which no proxy can avoid: compare it with the L4 copy.
    row("CPU, SSE event, 1 ms apart", "us", None, &|c| figures(c, Scenario::Paced200)?.event_us())?;
    row("CPU, 300 KB request", "us", Some(REQUEST_300KB_US), &|c| figures(c, Scenario::Plain300Kb)?.router_us())?;
    row("added TTFT p50, realistic pace", "ms", Some(ADDED_TTFT_MS), &|c| {
        figures(c, Scenario::Realistic)?
            .against_direct(|cell, direct| (cell.load.ttft_us.p50 - direct.load.ttft_us.p50) / 1e3)
    })?;
    row("RSS at rest", "MiB", Some(RSS_REST_MIB), &|c| start_median(results, c, |s| s.rss_rest_bytes as f64 / MIB))?;
    row("start to ready", "ms", Some(READY_MS), &|c| start_median(results, c, |s| s.ready_ms))?;
    row("RSS growth, 4 stalled readers of 280 MB", "MiB", Some(STALLED_MIB), &|c| stalled_mib(results, c))?;
    for (contender, why) in &results.absent {
        writeln!(out, "\n{}: {why}.", contender.title())?;
    }
    writeln!(out)
}

fn scenario_table(out: &mut String, results: &Results, scenario: Scenario) -> fmt::Result {
    let streamed = scenario.knobs().stream;
    writeln!(out, "### {}\n", scenario.title())?;
    write!(out, "| | req/s | x direct | p50 ms (added) | p99 ms | ")?;
    if streamed {
        write!(out, "TTFT p50 ms (added) | TTFT p99 ms | ")?;
    }
    writeln!(
        out,
        "router CPU us/req | engine req per req | client / engines / router / others, % of machine | errors |"
    )?;
    writeln!(out, "|---|{}", "---|".repeat(if streamed { 10 } else { 8 }))?;
    for &contender in &results.contenders {
        let Some(figures) = Figures::of(results, contender, scenario) else { continue };
        let added = |p50: fn(&super::cell::Cell) -> f64| {
            let added = figures.against_direct(|cell, direct| p50(cell) - p50(direct));
            match added {
                Some(added) if contender != Contender::Direct => format!(" ({added:+.2})"),
                _ => String::new(),
            }
        };
        write!(
            out,
            "| {} | {} | {} | {}{} | {} | ",
            contender.title(),
            number(figures.median(|c| c.load.requests_per_s)),
            number(figures.against_direct(|c, d| c.load.requests_per_s / d.load.requests_per_s)),
            number(figures.median(|c| c.load.latency_us.p50 / 1e3)),
            added(|c| c.load.latency_us.p50 / 1e3),
            number(figures.median(|c| c.load.latency_us.p99 / 1e3)),
        )?;
        if streamed {
            write!(
                out,
                "{}{} | {} | ",
                number(figures.median(|c| c.load.ttft_us.p50 / 1e3)),
                added(|c| c.load.ttft_us.p50 / 1e3),
                number(figures.median(|c| c.load.ttft_us.p99 / 1e3)),
            )?;
        }
        let shares = figures.shares();
        writeln!(
            out,
            "{} | {} | {:.0} / {:.0} / {:.0} / {:.0} | {} |",
            number(figures.router_us()),
            number(figures.engine_requests()),
            shares.client * 100.0,
            shares.engines * 100.0,
            shares.router * 100.0,
            shares.others * 100.0,
            figures.errors()
        )?;
    }
    for &contender in &results.contenders {
        if let Some(error) = Figures::of(results, contender, scenario).and_then(|f| f.first_error()) {
            writeln!(out, "\nFirst error of {}: {error}.", contender.title())?;
        }
    }
    writeln!(out)
}

fn starts(out: &mut String, results: &Results) -> fmt::Result {
    writeln!(out, "### Start and memory\n")?;
    writeln!(
        out,
        "| | start to ready ms | RSS at rest MiB | RSS after the rounds MiB | growth with 4 stalled readers MiB |"
    )?;
    writeln!(out, "|---|---|---|---|---|")?;
    for &contender in results.contenders.iter().filter(|c| **c != Contender::Direct) {
        writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            contender.title(),
            number(start_median(results, contender, |s| s.ready_ms)),
            number(start_median(results, contender, |s| s.rss_rest_bytes as f64 / MIB)),
            number(start_median(results, contender, |s| s.rss_after_bytes as f64 / MIB)),
            number(stalled_mib(results, contender)),
        )?;
    }
    writeln!(out)
}

fn choice(out: &mut String, results: &Results) -> fmt::Result {
    writeln!(out, "### Choice among 1,024 engines (goal <= 10 us)\n")?;
    match &results.choice_cost {
        Ok(printed) => writeln!(out, "```\n{printed}\n```"),
        Err(why) => writeln!(out, "Not measured: {why}."),
    }
}

fn start_median(
    results: &Results,
    contender: Contender,
    figure: impl Fn(&super::contender::Start) -> f64,
) -> Option<f64> {
    median(results.starts.iter().filter(|s| s.contender == contender).map(figure))
}

fn stalled_mib(results: &Results, contender: Contender) -> Option<f64> {
    let found = results.stalled.iter().find(|s| s.contender == contender)?;
    Some(found.peak_bytes.saturating_sub(found.before_bytes) as f64 / MIB)
}

/// Three figures that mean something, no more; `-` for what is not known.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(v) if v.abs() >= 100.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 10.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.2}"),
    }
}
