//! One page with everything on it: tables and curves of one run or several side by side, no file and no network besides.

mod chart;
mod curves;
mod heat;

use crate::report::Report;
use heat::Range;
use std::fmt::Write as _;

/// Told apart by people who see colours differently (Okabe and Ito 2008).
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#9a8c00"];

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1120px;padding:0 1rem;color:#1a1a1a;\
background:#fff}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%;font-variant-\
numeric:tabular-nums}td,th{text-align:right;padding:.2rem .6rem;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-\
align:left}.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(480px,1fr));gap:1rem}figure{margin:0}figcaption{font-\
weight:600;font-size:.9rem}svg{width:100%;height:auto}text{font-size:11px;fill:#444}.grid{stroke:#ddd}.dim{color:#666}.key{display:\
inline-block;width:.8em;height:.8em;margin-right:.4em}";

/// The page.
#[must_use]
pub fn page(reports: &[Report]) -> String {
    let names = names(reports);
    let mut html = String::with_capacity(1 << 16);
    let title = if reports.len() == 1 { format!("Simulation: {}", names[0]) } else { "Simulations".to_owned() };
    let _ = write!(
        html,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{0}</title><style>{STYLE}</style></head><body><h1>{0}</h1>",
        escape(&title)
    );
    html.push_str("<p>");
    for (nth, name) in names.iter().enumerate() {
        let setup = &reports[nth].setup;
        let _ = write!(
            html,
            "<span class=\"key\" style=\"background:{}\"></span><b>{}</b> <span class=\"dim\">{} on {} &times; {} ({}), \
             seed {}, rate {}{}</span><br>",
            colour(nth),
            escape(name),
            escape(&setup.trace),
            setup.instances,
            escape(&setup.profile),
            escape(&setup.founded),
            setup.seed,
            setup.rate,
            setup
                .settings
                .iter()
                .map(|(key, value)| format!(", {} {}", escape(key), escape(value)))
                .collect::<String>()
        );
    }
    html.push_str("</p>");
    figures(&mut html, reports, &names);
    curves::write(&mut html, reports);
    funnel(&mut html, reports, &names);
    contexts(&mut html, reports, &names);
    shares(&mut html, reports, &names);
    html.push_str("</body></html>\n");
    html
}

fn colour(nth: usize) -> &'static str {
    COLOURS[nth % COLOURS.len()]
}

/// The policy, with its variant where it is an experiment's, and where two have the same, what else differs.
fn names(reports: &[Report]) -> Vec<String> {
    let name = |report: &Report, long: bool| {
        let setup = &report.setup;
        if let Some(variant) = setup.settings.get("variant") {
            let policy = &setup.policy;
            return if variant == policy { policy.clone() } else { format!("{variant} ({policy})") };
        }
        if long {
            format!("{} {}x{} seed {} rate {}", setup.policy, setup.instances, setup.profile, setup.seed, setup.rate)
        } else {
            setup.policy.clone()
        }
    };
    let twice = |one: &Report| reports.iter().filter(|other| other.setup.policy == one.setup.policy).count() > 1;
    reports.iter().map(|report| name(report, twice(report))).collect()
}

fn figures(html: &mut String, reports: &[Report], names: &[String]) {
    html.push_str("<h2>Figures</h2><table><tr><th></th>");
    for name in names {
        let _ = write!(html, "<th>{}</th>", escape(name));
    }
    html.push_str("</tr>");
    for row in crate::compare::rows() {
        let _ = write!(html, "<tr><td>{}</td>", escape(row.name));
        for report in reports {
            let _ = write!(html, "<td>{}</td>", escape(&row.text(report)));
        }
        html.push_str("</tr>");
    }
    let mut classes: Vec<&String> = reports.iter().flat_map(|report| report.classes.keys()).collect();
    classes.sort_unstable();
    classes.dedup();
    for class in classes {
        let _ = write!(html, "<tr><td>class {}: requests, TTFT p90 ms, attainment</td>", escape(class));
        for report in reports {
            let of = report.classes.get(class).cloned().unwrap_or_default();
            let attained = of.attainment * 100.0;
            let _ = write!(html, "<td>{}, {:.0}, {attained:.1} %</td>", of.requests, of.ttft_ms.p90);
        }
        html.push_str("</tr>");
    }
    let mut regions: Vec<&String> = reports.iter().flat_map(|report| report.regions.keys()).collect();
    regions.sort_unstable();
    regions.dedup();
    for region in regions {
        let _ = write!(html, "<tr><td>region {}: requests, TTFT p90 ms, hit rate</td>", escape(region));
        for report in reports {
            let of = report.regions.get(region).cloned().unwrap_or_default();
            let hit = of.hit_rate * 100.0;
            let _ = write!(html, "<td>{}, {:.0}, {hit:.1} %</td>", of.requests, of.ttft_ms.p90);
        }
        html.push_str("</tr>");
    }
    html.push_str("</table>");
}

/// What became of the prompts' tokens on their way to a cache, run beside run.
fn funnel(html: &mut String, reports: &[Report], names: &[String]) {
    let share = |share: Option<f64>| share.unwrap_or(0.0) * 100.0;
    html.push_str("<h2>Hit funnel</h2><div class=\"charts\">");
    for (nth, report) in reports.iter().enumerate() {
        let tokens = &report.tokens;
        let values = [
            ("any engine held", share(tokens.held_by_fleet)),
            ("the chosen one held", share(tokens.held_where_placed)),
            ("cached", tokens.hit_rate * 100.0),
        ];
        chart::named_bars(html, &format!("{}: share of prompt tokens, %", names[nth]), colour(nth), &values);
    }
    html.push_str("</div>");
}

/// Where contexts of which length ran; the colours mean the same in all runs.
fn contexts(html: &mut String, reports: &[Report], names: &[String]) {
    let Some(range) = Range::of(reports) else { return };
    html.push_str("<h2>Contexts by instance</h2>");
    heat::legend(html, range);
    html.push_str("<div class=\"charts\">");
    for (report, name) in reports.iter().zip(names) {
        heat::map(html, &format!("{name}: median context of running requests by instance"), report, range);
    }
    html.push_str("</div>");
}

fn shares(html: &mut String, reports: &[Report], names: &[String]) {
    html.push_str("<h2>Instances</h2><div class=\"charts\">");
    for (nth, report) in reports.iter().enumerate() {
        let values: Vec<f64> = report.instances.iter().map(|instance| instance.share * 100.0).collect();
        chart::bars(html, &format!("{}: share of requests, % by instance", names[nth]), colour(nth), &values);
        let values: Vec<f64> = report.instances.iter().map(|instance| instance.busy_share * 100.0).collect();
        chart::bars(html, &format!("{}: time busy, % by instance", names[nth]), colour(nth), &values);
    }
    html.push_str("</div>");
}

/// Text as HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{FORMAT, Setup};

    #[test]
    fn a_page_needs_nothing_but_itself_and_no_name_breaks_it() {
        let setup = Setup { policy: "<script>\"x\"".to_owned(), trace: "a&b".to_owned(), ..Setup::default() };
        let report = Report { format: FORMAT, setup, ..Report::empty() };
        let page = page(&[report.clone(), report]);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;&quot;x&quot;") && page.contains("a&amp;b"));
        for outside in ["http://", "https://", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("<svg") && page.ends_with("</html>\n"));
    }
}
