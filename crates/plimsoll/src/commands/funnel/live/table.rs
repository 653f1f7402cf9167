//! The four layers as people read them: shares of the prompt, and what was lost on the way from each to the next.

use super::super::picture::short;
use serde_json::Value;
use std::fmt::Write as _;

/// Layer, the causes of what it has less than the one above, and of what it has more.
const LAYERS: [(&str, &[&str], &[&str]); 4] = [
    ("ceiling", &[], &[]),
    ("entrance", &["capacity"], &[]),
    ("placed", &["cross_instance", "partition", "retry"], &["partition"]),
    ("actual", &["evicted", "stale_view", "in_flight", "unknown"], &["above_model"]),
];

pub(super) fn text(report: &Value) -> String {
    let mut out = String::new();
    if report["enabled"] == false {
        return "the funnel is switched off: set `funnel.enabled = true` and restart the gateway\n".to_owned();
    }
    let models = report["models"].as_array().map_or(&[][..], Vec::as_slice);
    if models.is_empty() {
        out.push_str("nothing measured yet: no request with known token ids has been placed\n");
    }
    for model in models {
        one(&mut out, model);
    }
    if let Some(lost) = report["queue_lost"].as_u64().filter(|lost| *lost > 0) {
        let _ = writeln!(out, "{lost} placements and ends could not be taken in time: the figures are without them");
    }
    out
}

fn one(out: &mut String, model: &Value) {
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let (ever, recent) = (&model["ever"], &model["recent"]);
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "{}: {} requests, {} prompt tokens; lately {} and {}; {} ranks hold {} tokens",
        model["model"].as_str().unwrap_or("?"),
        count(&ever["requests"]),
        short(count(&ever["tokens"]["prompt"])),
        count(&recent["requests"]),
        short(count(&recent["tokens"]["prompt"])),
        count(&model["ranks"]),
        short(count(&model["capacity_tokens"])),
    );
    let share = |sums: &Value, tokens: u64| {
        let prompt = count(&sums["tokens"]["prompt"]);
        if prompt == 0 { f64::NAN } else { tokens as f64 * 100.0 / prompt as f64 }
    };
    let percent = |value: f64| if value.is_nan() { "-".to_owned() } else { format!("{value:.2} %") };
    let _ = writeln!(out, "{:<10} {:>9} {:>9}  lately lost on the way there, in points", "", "lately", "ever");
    for (layer, losses, gains) in LAYERS {
        let rate = |sums: &Value| percent(share(sums, count(&sums["tokens"][layer])));
        let named = |kind: &str, sign: &str, words: &[&str]| -> Vec<String> {
            let points = words.iter().map(|word| (word, share(recent, count(&recent[kind][word]))));
            points.filter(|(_, points)| *points >= 0.005).map(|(word, p)| format!("{word} {sign}{p:.2}")).collect()
        };
        let mut causes = named("lost", "-", losses);
        causes.extend(named("gained", "+", gains));
        let line = format!("{layer:<10} {:>9} {:>9}  {}", rate(recent), rate(ever), causes.join(", "));
        let _ = writeln!(out, "{}", line.trim_end());
    }
    curve(out, model, |tokens| share(recent, tokens));
    notes(out, model);
    out.push('\n');
}

/// What more room would give, and less would take.
fn curve(out: &mut String, model: &Value, share: impl Fn(u64) -> f64) {
    let points = model["curve"].as_array().map_or(&[][..], Vec::as_slice);
    let tokens = |point: &Value| point["recent_tokens"].as_u64().unwrap_or(0);
    let Some(now) = points.iter().find(|point| point["times"] == 1.0).map(|point| share(tokens(point))) else { return };
    if now.is_nan() {
        return;
    }
    let steps = points.iter().filter(|point| point["times"] != 1.0).map(|point| {
        let capacity = short(point["capacity_tokens"].as_u64().unwrap_or(0));
        format!("x{} ({capacity}) {:+.2}", point["times"], share(tokens(point)) - now)
    });
    let _ = writeln!(out, "entrance with other capacity, in points: {}", steps.collect::<Vec<_>>().join(", "));
}

fn notes(out: &mut String, model: &Value) {
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let above = count(&model["ever"]["above_model_requests"]);
    if above > 0 {
        let _ = writeln!(
            out,
            "{above} requests found more in the engine than its capacity says: a capacity is wrong, it has a tier that is not told of, or others use it too"
        );
    }
    let unmeasured = model["not_measured"].as_object().into_iter().flatten();
    let why: Vec<String> =
        unmeasured.filter(|(_, n)| count(n) > 0).map(|(why, n)| format!("{why} {}", count(n))).collect();
    if !why.is_empty() {
        let _ = writeln!(out, "not measured: {}", why.join(", "));
        if why.iter().any(|why| why.starts_with("no_token_ids")) {
            let _ = writeln!(out, "no_token_ids: name the model's tokenizer in `[[models]]` to have them measured");
        }
    }
    let silent = count(&model["ranks_without_capacity"]);
    if silent > 0 {
        let _ =
            writeln!(out, "{silent} ranks do not say what they can hold: set `capacity_kv_tokens` of their engines");
    }
    if model["bounded"] == true {
        let reach = model["reach_s"].as_f64().unwrap_or(0.0);
        let _ = writeln!(
            out,
            "the funnel's memory is full: it reaches back {reach:.0} s; `funnel.max_blocks` is the bound"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::text;
    use serde_json::json;

    fn sums(requests: u64, prompt: u64) -> serde_json::Value {
        json!({
            "requests": requests, "above_model_requests": 1,
            "tokens": { "prompt": prompt, "ceiling": prompt * 9 / 10, "entrance": prompt * 8 / 10, "placed": prompt * 7 / 10, "actual": prompt * 6 / 10 },
            "lost": { "capacity": prompt / 10, "cross_instance": prompt * 3 / 20, "unknown": prompt / 10 },
            "gained": { "partition": prompt / 20 },
        })
    }

    #[test]
    fn losses_and_gains_stand_where_they_arise() {
        let model = json!({
            "model": "m", "ranks": 2, "capacity_tokens": 1_000_000, "bounded": true, "reach_s": 60.0,
            "ever": sums(100, 2_000), "recent": sums(10, 1_000), "not_measured": { "overflow": 0, "no_token_ids": 4 },
            "curve": [
                { "times": 1.0, "capacity_tokens": 1_000_000, "recent_tokens": 800 },
                { "times": 2.0, "capacity_tokens": 2_000_000, "recent_tokens": 850 },
            ],
        });
        let shown = text(&json!({ "enabled": true, "queue_lost": 0, "models": [model] }));
        assert!(shown.contains("placed       70.00 %   70.00 %  cross_instance -15.00, partition +5.00\n"), "{shown}");
        assert!(shown.contains("x2.0 (2000k) +5.00\n"), "{shown}");
        assert!(shown.contains("not measured: no_token_ids 4\n") && shown.contains("memory is full"), "{shown}");
        assert!(shown.contains("1 requests found more"), "{shown}");
    }

    #[test]
    fn nothing_yet_is_said_so() {
        assert!(text(&json!({ "enabled": true, "models": [] })).contains("nothing measured yet"));
        assert!(text(&json!({ "enabled": false, "models": [] })).contains("switched off"));
        let empty = json!({ "model": "m", "ever": sums(0, 0), "recent": sums(0, 0) });
        assert!(text(&json!({ "models": [empty] })).contains("ceiling            -         -\n"));
    }
}
