//! The tables that are shown, from two looks at a gateway.

use super::sample::Sample;
use plimsoll_core::Class;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// One table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub title: &'static str,
    pub head: &'static [&'static str],
    pub rows: Vec<Vec<String>>,
}

/// What is not known.
const NONE: &str = "-";

pub(super) fn tables(before: Option<&Sample>, now: &Sample) -> Vec<Table> {
    let mut all = vec![engines(now), classes(before, now), levels(now)];
    all.extend(gateways(now));
    all.extend([cache(before, now), refusals(before, now)]);
    all
}

fn engines(now: &Sample) -> Table {
    let rows = now.engines.iter().map(|engine| {
        let id = engine.id.to_string();
        let kv = engine.kv_capacity.filter(|capacity| *capacity > 0);
        let share = kv.map_or(NONE.to_owned(), |capacity| percent(engine.kv_tokens as f64 / capacity as f64));
        let rate = now.sum("plimsoll_engine_prefill_tokens_per_second", "engine", &id);
        let error = |stage: &str| {
            let series = now.all("plimsoll_latency_model_error_ratio").iter();
            let own = series.filter(|series| series.label("engine") == id && series.label("stage") == stage);
            own.map(|series| percent(series.value)).next().unwrap_or_else(|| NONE.to_owned())
        };
        let levels = now.all("plimsoll_engine_water_level").iter().filter(|series| series.label("engine") == id);
        let level = levels.map(|series| series.value).reduce(f64::max);
        vec![
            id.clone(),
            engine.url.split_once("://").map_or(&*engine.url, |(_, host)| host).to_owned(),
            engine.health.clone(),
            engine.requests.to_string(),
            count(engine.prefill_tokens as f64),
            share,
            level.map_or(NONE.to_owned(), percent),
            rate.map_or(NONE.to_owned(), count),
            format!("{}/{}", error("prefill"), error("decode")),
        ]
    });
    Table {
        title: "engines",
        head: &["id", "url", "state", "requests", "prefill waiting", "kv", "level", "prefill tok/s", "latency error"],
        rows: rows.collect(),
    }
}

fn classes(before: Option<&Sample>, now: &Sample) -> Table {
    let rows = Class::ALL.iter().map(|class| {
        let class = class.as_str();
        let gauge = |name: &str| now.sum(name, "class", class);
        let rate = rate(before, now, |sample| sample.sum("plimsoll_requests_total", "class", class));
        let share = now.all("plimsoll_traffic_share").iter().filter(|series| series.label("class") == class);
        let share = share.map(|series| series.value).reduce(f64::min);
        vec![
            class.to_owned(),
            rate.map_or(NONE.to_owned(), |rate| format!("{rate:.1}")),
            gauge("plimsoll_traffic_queue_requests").map_or(NONE.to_owned(), count),
            gauge("plimsoll_traffic_queue_tokens").map_or(NONE.to_owned(), count),
            gauge("plimsoll_traffic_oldest_wait_seconds").map_or(NONE.to_owned(), |s| format!("{s:.1}")),
            share.map_or(NONE.to_owned(), percent),
            quantile(before, now, class, 0.5),
            quantile(before, now, class, 0.9),
        ]
    });
    Table {
        title: "classes",
        head: &["class", "ended/s", "queued", "queued tokens", "oldest s", "share", "ttft p50 s", "ttft p90 s"],
        rows: rows.collect(),
    }
}

fn levels(now: &Sample) -> Table {
    let levels = now.all("plimsoll_traffic_level");
    let models: BTreeSet<&str> = levels.iter().map(|series| series.label("model")).collect();
    let rows = models.into_iter().map(|model| {
        let level = |stage: &str| {
            let own = levels.iter().find(|series| series.label("model") == model && series.label("stage") == stage);
            own.map_or(NONE.to_owned(), |series| percent(series.value))
        };
        let capacity = now.sum("plimsoll_traffic_capacity_tokens_per_second", "model", model);
        vec![
            model.to_owned(),
            level("prefill"),
            level("decode"),
            level("quota"),
            capacity.map_or(NONE.to_owned(), count),
        ]
    });
    Table {
        title: "water levels",
        head: &["model", "prefill", "decode", "quota", "capacity tok/s"],
        rows: rows.collect(),
    }
}

/// Where several gateways share the quotas: how many, and this one's part.
fn gateways(now: &Sample) -> Option<Table> {
    let contact = now.all("plimsoll_cluster_contact").first()?;
    let gateways = now.all("plimsoll_cluster_gateways").first().map_or(NONE.to_owned(), |series| count(series.value));
    let share = |class: &Class| {
        let own = now.all("plimsoll_traffic_lease_share").iter();
        let least = own.filter(|series| series.label("class") == class.as_str()).map(|series| series.value);
        least.reduce(f64::min).map_or(NONE.to_owned(), percent)
    };
    let mut row = vec![contact.label("fleet").to_owned(), gateways];
    row.push(if contact.value > 0.0 { "yes" } else { "no, kept" }.to_owned());
    row.extend(Class::ALL.iter().map(share));
    let head = &["fleet", "gateways", "contact", "high", "medium", "low"];
    Some(Table { title: "this gateway's part of the quotas", head, rows: vec![row] })
}

fn cache(before: Option<&Sample>, now: &Sample) -> Table {
    let models: BTreeSet<&str> =
        now.all("plimsoll_prompt_tokens_total").iter().map(|series| series.label("model")).collect();
    let rows = models.into_iter().map(|model| {
        let tokens = |sample: &Sample, name: &str| sample.sum(name, "model", model).unwrap_or(0.0);
        let ratio = |cached: f64, prompt: f64| if prompt > 0.0 { percent(cached / prompt) } else { NONE.to_owned() };
        let (cached, prompt) = ("plimsoll_cached_prompt_tokens_total", "plimsoll_prompt_tokens_total");
        let since = |name: &str| tokens(now, name) - before.map_or(0.0, |sample| tokens(sample, name));
        let output = rate(before, now, |sample| sample.sum("plimsoll_output_tokens_total", "model", model));
        vec![
            model.to_owned(),
            before.map_or(NONE.to_owned(), |_| ratio(since(cached), since(prompt))),
            ratio(tokens(now, cached), tokens(now, prompt)),
            count(tokens(now, prompt)),
            output.map_or(NONE.to_owned(), count),
        ]
    });
    Table {
        title: "cache hits",
        head: &["model", "now", "since start", "prompt tokens", "output tok/s"],
        rows: rows.collect(),
    }
}

fn refusals(before: Option<&Sample>, now: &Sample) -> Table {
    let mut codes: Vec<_> = now.all("plimsoll_errors_total").iter().filter(|series| series.value > 0.0).collect();
    codes.sort_by(|a, b| b.value.total_cmp(&a.value));
    let rows = codes.into_iter().map(|series| {
        let code = series.label("code");
        let rate = rate(before, now, |sample| sample.sum("plimsoll_errors_total", "code", code));
        vec![code.to_owned(), rate.map_or(NONE.to_owned(), |rate| format!("{rate:.1}")), count(series.value)]
    });
    Table { title: "refusals and errors", head: &["code", "per s", "since start"], rows: rows.collect() }
}

/// Growth of a counter per second. A counter that shrank began anew.
fn rate(before: Option<&Sample>, now: &Sample, of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let before = before?;
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    let grown = of(now)? - of(before).unwrap_or(0.0);
    (seconds > 0.0).then(|| if grown < 0.0 { of(now).unwrap_or(0.0) / seconds } else { grown / seconds })
}

/// Upper bound of the bucket in which this share of the first tokens since the look before lies.
fn quantile(before: Option<&Sample>, now: &Sample, class: &str, share: f64) -> String {
    let name = "plimsoll_time_to_first_token_seconds_bucket";
    let bounds = |sample: &Sample| {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for series in sample.all(name).iter().filter(|series| series.label("class") == class) {
            let bound = series.label("le").parse().unwrap_or(f64::INFINITY);
            match buckets.iter_mut().find(|(known, _)| known.total_cmp(&bound).is_eq()) {
                Some((_, value)) => *value += series.value,
                None => buckets.push((bound, series.value)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    };
    let earlier = before.map(bounds).unwrap_or_default();
    let known = |bound: f64| earlier.iter().find(|(b, _)| b.total_cmp(&bound).is_eq()).map_or(0.0, |(_, value)| *value);
    let grown: Vec<(f64, f64)> = bounds(now).into_iter().map(|(bound, value)| (bound, value - known(bound))).collect();
    let all = grown.last().map_or(0.0, |(_, all)| *all);
    if all <= 0.0 {
        return NONE.to_owned();
    }
    match grown.iter().find(|(_, below)| *below >= share * all) {
        Some((bound, _)) if bound.is_finite() => format!("<{bound}"),
        _ => "more".to_owned(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// With thousands as k and M.
fn count(value: f64) -> String {
    match value {
        v if v >= 1e7 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

/// The tables as text, columns aligned.
pub(super) fn text(tables: &[Table]) -> String {
    let mut out = String::new();
    for table in tables {
        let _ = writeln!(out, "{}", table.title.to_uppercase());
        let widths = widths(table);
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let row: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            let _ = writeln!(out, "  {}", row.join("  ").trim_end());
        };
        line(&mut table.head.iter().copied());
        for row in &table.rows {
            line(&mut row.iter().map(String::as_str));
        }
        if table.rows.is_empty() {
            line(&mut std::iter::once("none"));
        }
        out.push('\n');
    }
    out
}

/// Widest cell of each column, in characters.
pub(super) fn widths(table: &Table) -> Vec<usize> {
    let widest = |column: usize| table.rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max();
    let head = table.head.iter().enumerate();
    head.map(|(column, name)| widest(column).unwrap_or(0).max(name.chars().count())).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;
    use std::time::{Duration, Instant};

    /// A gateway under load, `seconds` after the first look.
    pub(crate) fn looked_at(seconds: u64, start: Instant) -> Sample {
        let ended = 100 + 20 * seconds;
        let text = format!(
            "plimsoll_requests_total{{class=\"high\",model=\"m\",outcome=\"completed\"}} {ended}\n\
             plimsoll_time_to_first_token_seconds_bucket{{le=\"0.1\",model=\"m\",class=\"high\"}} {}\n\
             plimsoll_time_to_first_token_seconds_bucket{{le=\"2.5\",model=\"m\",class=\"high\"}} {ended}\n\
             plimsoll_time_to_first_token_seconds_bucket{{le=\"+Inf\",model=\"m\",class=\"high\"}} {ended}\n\
             plimsoll_traffic_level{{model=\"m\",stage=\"prefill\"}} 0.875\n\
             plimsoll_engine_water_level{{engine=\"0\",stage=\"prefill\"}} 0.125\n\
             plimsoll_engine_water_level{{engine=\"0\",stage=\"decode\"}} 0.625\n\
             plimsoll_traffic_share{{model=\"m\",class=\"low\"}} 0.25\n\
             plimsoll_traffic_queue_requests{{model=\"m\",class=\"low\"}} 42\n\
             plimsoll_prompt_tokens_total{{model=\"m\"}} {}\n\
             plimsoll_cached_prompt_tokens_total{{model=\"m\"}} {}\n\
             plimsoll_errors_total{{code=\"quota_class\"}} {}\n\
             plimsoll_cluster_contact{{fleet=\"f\"}} 1\n\
             plimsoll_cluster_gateways{{fleet=\"f\"}} 3\n\
             plimsoll_traffic_lease_share{{model=\"m\",class=\"high\"}} 0.25\n",
            60 + 5 * seconds,
            10_000 + 1_000 * seconds,
            9_000 + 400 * seconds,
            3 * seconds,
        );
        let engines = json!({"engines": [{"id": 0, "url": "http://10.0.0.1:30000", "state": {"health": "healthy",
            "draining": false, "ranks": [{"requests": 7, "uncached_prefill_tokens": 12_345, "reserved_kv_tokens": 50,
            "capacity_kv_tokens": 200}]}}]});
        Sample::read(&text, &engines, start + Duration::from_secs(seconds))
    }

    #[test]
    fn tables_say_rates_of_now_and_what_is_unknown() {
        let start = Instant::now();
        let (before, now) = (looked_at(0, start), looked_at(2, start));
        let tables = tables(Some(&before), &now);
        let row = |title: &str, first: &str| {
            let table = tables.iter().find(|table| table.title == title).unwrap();
            table.rows.iter().find(|row| row[0] == first).unwrap().clone()
        };
        assert_eq!(row("engines", "0")[2..7], ["healthy", "7", "12.3k", "25.0%", "62.5%"]);
        // 40 ended in two seconds, ten of them within 0.1 s.
        assert_eq!(row("classes", "high"), ["high", "20.0", "-", "-", "-", "-", "<2.5", "<2.5"]);
        assert_eq!(row("classes", "low")[2..6], ["42", "-", "-", "25.0%"]);
        assert_eq!(row("water levels", "m"), ["m", "87.5%", "-", "-", "-"]);
        assert_eq!(row("this gateway's part of the quotas", "f"), ["f", "3", "yes", "25.0%", "-", "-"]);
        // 800 of 2,000 now; 9,800 of 12,000 in all.
        assert_eq!(row("cache hits", "m")[1..3], ["40.0%", "81.7%"]);
        assert_eq!(row("refusals and errors", "quota_class"), ["quota_class", "3.0", "6"]);
        let text = text(&tables);
        assert!(text.contains("ENGINES\n  id  url             state    requests"), "{text}");
    }

    #[test]
    fn one_look_has_no_rates_and_a_restart_no_negative_ones() {
        let start = Instant::now();
        let first = tables(None, &looked_at(5, start));
        assert!(first.iter().any(|table| table.title == "classes" && table.rows[0][1] == "-"));
        let restarted =
            Sample::read("plimsoll_requests_total{class=\"high\"} 4\n", &json!({}), start + Duration::from_secs(9));
        let after = tables(Some(&looked_at(5, start)), &restarted);
        assert!(after.iter().any(|table| table.title == "classes" && table.rows[0][1] == "1.0"));
        assert!(text(&after).contains("  none\n"));
        assert!(after.iter().all(|table| !table.title.contains("gateway")), "one gateway has nothing to share");
    }
}
