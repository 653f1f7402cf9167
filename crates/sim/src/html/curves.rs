//! What is drawn over time, one line for each run, solid or dashed.

use super::chart::{Chart, Line};
use super::colour;
use crate::report::Report;
use plimsoll_core::Class;

type Column<'a> = Box<dyn Fn(&Report) -> Vec<Option<f64>> + 'a>;

fn all(values: &[f64]) -> Vec<Option<f64>> {
    values.iter().copied().map(Some).collect()
}

/// A chart's title, and its columns with whether they are dashed.
fn charts(reports: &[Report]) -> Vec<(String, Vec<(Column<'_>, bool)>)> {
    let mut charts: Vec<(String, Vec<(Column<'_>, bool)>)> = Vec::new();
    let mut chart = |title: &str, columns: Vec<(Column<'static>, bool)>| charts.push((title.to_owned(), columns));
    let solid = |of: fn(&Report) -> Vec<Option<f64>>| (Box::new(of) as Column<'static>, false);
    let dashed = |of: fn(&Report) -> Vec<Option<f64>>| (Box::new(of) as Column<'static>, true);
    chart(
        "Arrivals per second (dashed: refused or failed)",
        vec![solid(|r| all(&r.over_time.arrived_per_s)), dashed(unserved)],
    );
    chart(
        "Requests running (dashed: waiting)",
        vec![solid(|r| r.over_time.running.clone()), dashed(|r| r.over_time.waiting.clone())],
    );
    chart(
        "Time to first token, ms (solid p50, dashed p90)",
        vec![solid(|r| r.over_time.ttft_p50_ms.clone()), dashed(|r| r.over_time.ttft_p90_ms.clone())],
    );
    chart(
        "Time between tokens, ms (solid p50, dashed p90)",
        vec![solid(|r| r.over_time.itl_p50_ms.clone()), dashed(|r| r.over_time.itl_p90_ms.clone())],
    );
    chart(
        "Share of prompt tokens that the chosen engine was believed to hold (dashed: any engine)",
        vec![solid(|r| r.over_time.held_where_placed.clone()), dashed(|r| r.over_time.held_by_fleet.clone())],
    );
    chart("Cached share of prompt tokens", vec![solid(|r| r.over_time.hit_rate.clone())]);
    chart("Output tokens per second", vec![solid(|r| all(&r.over_time.output_tokens_per_s))]);
    chart("KV tokens in use", vec![solid(|r| r.over_time.kv_tokens.clone())]);
    chart("KV of the fullest instance over the mean", vec![solid(|r| r.over_time.fullest_over_mean.clone())]);
    chart("Running requests moved per second", vec![solid(|r| all(&r.over_time.moved_per_s))]);
    chart("Engines that are up or starting", vec![solid(|r| r.over_time.instances.clone())]);
    chart("GPU-hours so far of engines that are up or starting", vec![solid(gpu_hours)]);
    // One for each class that is there: several runs and classes on one would not be told apart.
    for class in Class::ALL.map(Class::as_str) {
        let there = |report: &Report| report.over_time.attainment.contains_key(class);
        if reports.iter().any(there) {
            let of = move |report: &Report| {
                let shares = report.over_time.attainment.get(class).map(Vec::as_slice).unwrap_or_default();
                shares.iter().map(|share| share.map(|share| share * 100.0)).collect()
            };
            charts.push((format!("Class {class}: requests within both targets, %"), vec![(Box::new(of), false)]));
        }
    }
    charts
}

pub(super) fn write(html: &mut String, reports: &[Report]) {
    html.push_str("<h2>Over time</h2><div class=\"charts\">");
    for (title, columns) in charts(reports) {
        let mut chart = Chart::new(&title);
        for (nth, report) in reports.iter().enumerate() {
            for (column, dashed) in &columns {
                let points = column(report).into_iter().enumerate();
                let at = |bin: usize| (bin as f64 + 0.5) * report.over_time.bin_s / 60.0;
                let points = points.filter_map(|(bin, value)| Some((at(bin), value?))).collect();
                chart.lines.push(Line { colour: colour(nth), dashed: *dashed, points });
            }
        }
        chart.write(html);
    }
    html.push_str("</div>");
}

fn unserved(report: &Report) -> Vec<Option<f64>> {
    let (refused, failed) = (&report.over_time.refused_per_s, &report.over_time.failed_per_s);
    refused.iter().zip(failed).map(|(refused, failed)| Some(refused + failed)).collect()
}

/// Of the instances there were, added up.
fn gpu_hours(report: &Report) -> Vec<Option<f64>> {
    let gpus = f64::from(report.setup.gpus) / f64::from(report.setup.instances.max(1));
    let (mut sum, mut instances) = (0.0, 0.0);
    let one = |now: &Option<f64>| {
        // Nobody looked in this bin: as many as before.
        instances = now.unwrap_or(instances);
        sum += instances * gpus * report.over_time.bin_s / 3_600.0;
        Some(sum)
    };
    report.over_time.instances.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_hours_add_up_over_bins_that_nobody_looked_into() {
        let mut report = Report::empty();
        (report.setup.gpus, report.setup.instances) = (16, 2);
        report.over_time.bin_s = 1_800.0;
        report.over_time.instances = vec![Some(2.0), None, Some(1.0)];
        assert_eq!(gpu_hours(&report), [Some(8.0), Some(16.0), Some(20.0)]);
    }

    #[test]
    fn every_class_that_is_there_has_a_chart() {
        let mut report = Report::empty();
        let titles = |report: &Report| -> Vec<String> {
            charts(std::slice::from_ref(report))
                .into_iter()
                .map(|(title, _)| title)
                .filter(|t| t.starts_with("Class"))
                .collect()
        };
        assert!(titles(&report).is_empty());
        report.over_time.attainment.insert("low".to_owned(), vec![Some(0.25), None]);
        assert_eq!(titles(&report), ["Class low: requests within both targets, %"]);
        let column = charts(std::slice::from_ref(&report)).pop().unwrap().1.pop().unwrap().0(&report);
        assert_eq!(column, [Some(25.0), None]);
    }
}
