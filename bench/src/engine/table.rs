//! Medians over rounds, as Markdown.

use super::work::Kind;
use super::{Cell, Results, Round};
use std::fmt::{Error, Write};

pub(super) fn render(results: &Results) -> Result<String, Error> {
    let mut out = String::new();
    let machine = &results.machine;
    writeln!(out, "## Engine, {}", machine.date)?;
    writeln!(
        out,
        "\n{} ({} cores), {}, {}, commit {}, load average {} at the start; {} threads, {}, {} rounds, medians.",
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine.rustc,
        machine.commit,
        machine.load_average,
        results.threads,
        results.isa,
        results.rounds.len()
    )?;
    let giga = |of: &dyn Fn(&Round) -> f64| median(results.rounds.iter().map(of)) / 1e9;
    let threads = results.threads;
    writeln!(out, "\n| floor | by the clock | by processor time |\n|---|---|---|")?;
    let (read, read_cpu) = (giga(&|r| r.floors.bandwidth(threads).0), giga(&|r| r.floors.bandwidth(threads).1));
    writeln!(out, "| reading memory | {read:.1} GB/s | {read_cpu:.1} GB/s |")?;
    let (peak, peak_cpu) = (giga(&|r| r.floors.peak(threads).0), giga(&|r| r.floors.peak(threads).1));
    writeln!(out, "| `gemm`, f32 | {peak:.0} GFLOP/s | {peak_cpu:.0} GFLOP/s |")?;
    for (index, model) in results.models.iter().enumerate() {
        writeln!(
            out,
            "\n### {}: {:.1}M parameters, {:.0} MiB, {} thread(s)\n",
            model.name,
            model.parameters as f64 / 1e6,
            model.weight_bytes as f64 / f64::from(1 << 20),
            model.threads
        )?;
        writeln!(out, "| work | tokens/s | tokens per CPU second | of the floor | of the floor by processor time |")?;
        writeln!(out, "|---|---|---|---|---|")?;
        for kind in Kind::ALL {
            let figure = |of: &dyn Fn(&Round, &Cell) -> f64| {
                median(results.rounds.iter().filter_map(|round| find(round, index, kind).map(|cell| of(round, cell))))
            };
            let rate = figure(&|_, cell| cell.tokens as f64 / cell.took.wall_s);
            let per_cpu = figure(&|_, cell| cell.tokens as f64 / cell.took.cpu_s);
            let own = model.threads as f64 / threads as f64;
            let share = |cell: &Cell, bandwidth: f64, peak: f64, took: f64| match kind {
                Kind::Decode1 | Kind::LongDecode1 => cell.bytes / took / bandwidth,
                _ => cell.flops / took / peak,
            };
            let wall = figure(&|round, cell| {
                let (bandwidth, peak) = (round.floors.bandwidth(threads).0, round.floors.peak(threads).0);
                share(cell, bandwidth * own, peak * own, cell.took.wall_s)
            });
            let cpu = figure(&|round, cell| {
                let (bandwidth, peak) = (round.floors.bandwidth(threads).1, round.floors.peak(threads).1);
                share(cell, bandwidth, peak, cell.took.cpu_s / threads as f64)
            });
            let reads = matches!(kind, Kind::Decode1 | Kind::LongDecode1);
            let what = if reads { "reading" } else { "`gemm`" };
            let name = kind.name();
            writeln!(
                out,
                "| {name} | {rate:.0} | {per_cpu:.0} | {:.0} % of {what} | {:.0} % |",
                wall * 100.0,
                cpu * 100.0
            )?;
        }
        let ratio = |many: Kind, one: Kind, of: &dyn Fn(&Cell) -> f64| {
            let both = |round: &Round| Some(of(find(round, index, many)?) / of(find(round, index, one)?));
            median(results.rounds.iter().filter_map(both))
        };
        for (many, one, at) in [(Kind::Decode16, Kind::Decode1, 64), (Kind::LongDecode16, Kind::LongDecode1, 512)] {
            writeln!(
                out,
                "\nAt {at}, batch 16 gives {:.1} times the tokens/s of batch 1 ({:.1} by processor time).",
                ratio(many, one, &|cell| cell.tokens as f64 / cell.took.wall_s),
                ratio(many, one, &|cell| cell.tokens as f64 / cell.took.cpu_s)
            )?;
        }
    }
    writeln!(
        out,
        "\nGoals for 100M: decode at batch 1 at least 50 % of reading, prefill at least 60 % of `gemm`, batch 16 at least 6 \
         times batch 1. The tiny model fits into the second-level cache: its share of reading memory says nothing. On a \
         machine that others use too, processor time is what can be compared."
    )?;
    Ok(out)
}

fn find(round: &Round, model: usize, kind: Kind) -> Option<&Cell> {
    round.cells.iter().find(|cell| cell.model == model && cell.kind == kind)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}
