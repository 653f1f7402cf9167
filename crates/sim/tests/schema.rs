//! Reports are what `docs/reference/report.schema.json` says, and nothing is in them that it does not name.

#![allow(clippy::unwrap_used, reason = "a test")]

use plimsoll_load::PolicyKind;
use plimsoll_sim::baselines::Policy;
use plimsoll_sim::question::Question;
use plimsoll_sim::world::{Change, Nobody};
use plimsoll_sim::{Report, Warp, html, report};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// As much of JSON schema as is written there; an unknown word is a failure, so that none is passed over.
fn check(value: &Value, schema: &Value, root: &Value, at: &str) -> Result<(), String> {
    if schema == &json!(true) {
        return Ok(());
    }
    for (word, says) in schema.as_object().ok_or_else(|| format!("{at}: no schema"))? {
        match word.as_str() {
            "$schema" | "$defs" | "title" | "description" | "format" | "default" => {}
            "$ref" => {
                let name = says.as_str().and_then(|path| path.strip_prefix("#/$defs/")).unwrap_or_default();
                check(value, &root["$defs"][name], root, at)?;
            }
            "type" => {
                let one_of = says.as_array().cloned().unwrap_or_else(|| vec![says.clone()]);
                let fits = |kind: &Value| match kind.as_str() {
                    Some("object") => value.is_object(),
                    Some("array") => value.is_array(),
                    Some("string") => value.is_string(),
                    Some("boolean") => value.is_boolean(),
                    Some("null") => value.is_null(),
                    Some("integer") => value.is_i64() || value.is_u64(),
                    Some("number") => value.is_number(),
                    _ => false,
                };
                if !one_of.iter().any(fits) {
                    return Err(format!("{at}: {value} is no {says}"));
                }
            }
            "minimum" | "maximum" => {
                let (value, bound) = (value.as_f64().unwrap_or(0.0), says.as_f64().unwrap_or(0.0));
                if (word == "minimum" && value < bound) || (word == "maximum" && value > bound) {
                    return Err(format!("{at}: {value} is beyond the {word} {bound}"));
                }
            }
            "required" => {
                for name in says.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    value.get(name).ok_or_else(|| format!("{at}: {name} is missing"))?;
                }
            }
            "properties" => {
                for (name, inner) in value.as_object().into_iter().flatten() {
                    let known = says.get(name).ok_or_else(|| format!("{at}: {name} is not in the schema"))?;
                    check(inner, known, root, &format!("{at}.{name}"))?;
                }
            }
            "additionalProperties" => {
                for (name, inner) in value.as_object().into_iter().flatten() {
                    check(inner, says, root, &format!("{at}.{name}"))?;
                }
            }
            "items" => {
                for (nth, inner) in value.as_array().into_iter().flatten().enumerate() {
                    check(inner, says, root, &format!("{at}[{nth}]"))?;
                }
            }
            other => return Err(format!("{at}: the schema says {other:?}, which this test does not know")),
        }
    }
    Ok(())
}

fn reports() -> Vec<Report> {
    let trace = tempfile::NamedTempFile::new().unwrap();
    let mut rows = String::from("t_s,session,input_tokens,output_tokens\n");
    for row in 0..400 {
        let _ = writeln!(rows, "{},{},{},{}", f64::from(row) * 0.05, row % 9, 400 + row * 7 % 3_000, row % 90);
    }
    std::fs::write(trace.path(), rows).unwrap();
    let plain = Question::new(trace.path(), "h100-llama3-8b", 3, Policy::Own(PolicyKind::LeastDelay));
    let everything = Question {
        admission: true,
        balance_kv: true,
        changes: vec![(plimsoll_core::Nanos::from_secs(3), Change::Die { instance: 1 })],
        kv_tokens: Some(9_000),
        also: vec![(trace.path().to_owned(), 2.0)],
        warp: Some(Warp::parse("0:1,5:2").unwrap()),
        regions: vec!["eu".to_owned(), "us".to_owned()],
        ..plain.clone()
    };
    let reports: Vec<Report> = [plain, everything].map(|question| question.answer(&mut Nobody).unwrap()).into();
    let (plain, everything) = (&reports[0], &reports[1]);
    assert_eq!((plain.requests.arrived, everything.requests.arrived), (400, 800));
    assert!(plain.regions.is_empty() && everything.setup.trace.ends_with(" x 2"), "{:?}", everything.setup);
    let of = |name: &str| everything.regions[name].requests;
    assert!(of("eu") + of("us") == 800 && of("eu").min(of("us")) > 300, "{} {}", of("eu"), of("us"));
    // Twenty seconds, of which fifteen are replayed twice as fast.
    let last = |report: &Report| {
        let rates = &report.over_time.arrived_per_s;
        rates.iter().rposition(|rate| *rate > 0.0).unwrap() as f64 * report.over_time.bin_s
    };
    assert!((19.0..20.0).contains(&last(plain)), "{}", last(plain));
    assert!((12.0..12.6).contains(&last(everything)), "{}", last(everything));
    reports
}

#[test]
fn reports_are_what_the_schema_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/report.schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(schema, report::json_schema(), "run `cargo run -p xtask -- generate`");
    for report in reports() {
        let document: Value = serde_json::from_str(&report.to_json()).unwrap();
        check(&document, &schema, &schema, "report").unwrap();
        // The check notices what is wrong.
        for (change, wanted) in [
            (("requests", json!(3)), "report.requests: 3 is no"),
            (("gpu_hours", json!("2")), "report.gpu_hours: \"2\" is no"),
            (("format", json!(-1)), "report.format: -1 is beyond the minimum"),
            (("more", json!(1)), "report: more is not in the schema"),
        ] {
            let mut wrong = document.clone();
            wrong[change.0] = change.1;
            let complaint = check(&wrong, &schema, &schema, "report").unwrap_err();
            assert!(complaint.starts_with(wanted), "{complaint}");
        }
        let mut short = document.clone();
        short["tokens"].as_object_mut().unwrap().remove("cached");
        assert_eq!(check(&short, &schema, &schema, "report").unwrap_err(), "report.tokens: cached is missing");
    }
}

/// What the page promises: load, TTFT and ITL, attainment by class, hit funnel, map of contexts, moves, engines, GPU-hours; run beside run.
#[test]
fn pages_have_every_plot_with_something_on_it() {
    let reports = reports();
    let page = html::page(&reports);
    for (title, runs, drawn) in [
        ("Arrivals per second (dashed: refused or failed)", 1, 4),
        ("Time to first token, ms (solid p50, dashed p90)", 1, 4),
        ("Time between tokens, ms (solid p50, dashed p90)", 1, 4),
        ("Class high: requests within both targets, %", 1, 2),
        ("share of prompt tokens, %", 2, 3),
        ("median context of running requests by instance", 2, 9),
        ("Running requests moved per second", 1, 2),
        ("Engines that are up or starting", 1, 2),
        ("GPU-hours so far of engines that are up or starting", 1, 2),
    ] {
        let captioned = |figure: &&str| {
            figure
                .split_once("</figcaption>")
                .is_some_and(|(caption, _)| caption.trim_end_matches(char::is_numeric).ends_with(title))
        };
        let figures: Vec<&str> = page.split("<figcaption>").filter(captioned).collect();
        assert_eq!(figures.len(), runs, "{title}");
        for figure in figures {
            let figure = figure.split("</svg>").next().unwrap();
            let shapes = figure.matches("<polyline").count() + figure.matches("<rect").count();
            assert!(shapes >= drawn && !figure.contains("NaN"), "{title}: {shapes} in {figure}");
        }
    }
}

#[test]
fn what_is_seen_over_time_adds_up_to_the_whole() {
    for report in reports() {
        let over = &report.over_time;
        // Requests of a class that ended within a bin, by their share: the whole's attainment lies between the bins'.
        for (class, figures) in &report.classes {
            let shares: Vec<f64> = over.attainment[class].iter().flatten().copied().collect();
            let (least, most) =
                (shares.iter().copied().fold(1.0, f64::min), shares.iter().copied().fold(0.0, f64::max));
            assert!((least..=most).contains(&figures.attainment), "{class}: {} of {shares:?}", figures.attainment);
        }
        let mut gaps: Vec<f64> = over.itl_p50_ms.iter().flatten().copied().collect();
        gaps.sort_by(f64::total_cmp);
        let median = gaps[gaps.len() / 2];
        assert!((0.8..1.25).contains(&(median / report.itl_ms.p50)), "{median} for {}", report.itl_ms.p50);
        assert!(report.itl_ms.max >= gaps[gaps.len() - 1] * 0.93);
        // Prompts have 400 to 3,400 tokens and grow by their sessions and answers.
        let contexts: Vec<f64> = report.bucket_map.median_context_tokens.iter().flatten().flatten().copied().collect();
        assert!(contexts.len() >= 9 && contexts.iter().all(|tokens| (350.0..4_000.0).contains(tokens)), "{contexts:?}");
        assert_eq!(report.bucket_map.median_context_tokens.len(), 3);
        let (best, chosen) = (report.tokens.held_by_fleet.unwrap(), report.tokens.held_where_placed.unwrap());
        assert!(best >= chosen && chosen > 0.0 && best < 1.0, "{best} {chosen}");
    }
}
