//! The figures of a run as a table and as JSON.

use super::fleet::Lateness;
use super::{OverloadArgs, Scenario};
use plimsoll_core::Class;
use plimsoll_sim::overload::{
    Ask, Done, Figures, LOUD_TENANT, MINUTE_S, PATIENCE_S, Percentiles, Plan, SCALE, SHORT_S, Shape, TENANTS, Whole,
    saturation_of_capacity, windows_of_load,
};
use serde_json::{Value, json};
use std::fmt::Write as _;

pub(super) struct Report {
    head: Value,
    classes: Vec<(Class, Figures)>,
    all: Figures,
    tenants: Vec<Figures>,
    /// In scenario C: who sends ten times as much, and the others, by class.
    loud: Option<[ByClass; 2]>,
    whole: Whole,
}

type ByClass = Vec<(Class, Figures)>;

/// Windows that the load alone makes incidents of, by class.
fn of_load(plan: &Plan, window_s: f64) -> Value {
    windows_of_load(plan, window_s)
        .into_iter()
        .map(|(class, windows)| (class.as_str().to_owned(), json!(windows)))
        .collect()
}

/// How it was run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// By processes, which kept their schedule so well as far as they say.
    Real(Option<Lateness>),
    Simulated,
}

impl Report {
    pub(super) fn new(args: &OverloadArgs, plan: &Plan, shape: &Shape, done: &[Done], way: Way) -> Report {
        let late = if let Way::Real(late) = way { late } else { None };
        let by_class = |of: &dyn Fn(&Ask) -> bool| -> ByClass {
            Class::ALL.map(|class| (class, Figures::of(plan, done, |ask| ask.class == class && of(ask)))).to_vec()
        };
        let loud = |ask: &Ask| ask.tenant == LOUD_TENANT;
        let name = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
        let head = json!({
            "scenario": format!("{:?}", args.scenario),
            "control": name(&args.control),
            "simulated": matches!(way, Way::Simulated),
            "seconds": args.seconds,
            "time_scale": args.time_scale,
            "token_scale": SCALE,
            "engines": args.engines,
            "seed": args.seed,
            "source": shape.source,
            "capacity_tokens_per_s": plan.capacity_tokens_per_s,
            "crowd_load": plan.crowd_load(),
            "saturation_of_capacity": saturation_of_capacity(plan, args.engines).ok(),
            "jitter_minutes_of_load": of_load(plan, MINUTE_S),
            "jitter_10s_of_load": of_load(plan, SHORT_S),
            "client_patience_s": PATIENCE_S,
            "engine_late_steps_ratio": late.map(|late| late.steps),
            "engine_lost_s": late.map(|late| late.lost_s),
        });
        Report {
            head,
            classes: by_class(&|_| true),
            loud: (args.scenario == Scenario::C).then(|| [by_class(&loud), by_class(&|ask| !loud(ask))]),
            all: Figures::of(plan, done, |_| true),
            tenants: (0..TENANTS).map(|tenant| Figures::of(plan, done, |ask| ask.tenant == tenant)).collect(),
            whole: Whole::of(plan, args.engines, done),
        }
    }

    pub(super) fn json(&self) -> String {
        let mut report = self.head.clone();
        for (class, figures) in &self.classes {
            report["classes"][class.as_str()] = json!(figures);
        }
        report["all"] = json!(self.all);
        report["tenants"] = json!(self.tenants);
        let classes =
            |of: &ByClass| of.iter().map(|(class, f)| (class.as_str().to_owned(), json!(f))).collect::<Value>();
        report["loud_tenant"] = self.loud.as_ref().map_or(Value::Null, |[loud, _]| classes(loud));
        report["quiet_tenants"] = self.loud.as_ref().map_or(Value::Null, |[_, quiet]| classes(quiet));
        let saturation = self.head["saturation_of_capacity"].as_f64().filter(|most| *most > 0.0);
        report["crowd_goodput_of_saturation"] =
            json!(saturation.map(|most| self.whole.crowd_goodput_of_capacity / most));
        report["jitter_minutes"] = json!(self.classes.iter().map(|(_, f)| f.jitter_minutes).sum::<u64>());
        report["jitter_10s"] = json!(self.classes.iter().map(|(_, f)| f.jitter_10s).sum::<u64>());
        let whole = &self.whole;
        report["admitted_tokens_per_s"] = json!(whole.admitted_tokens_per_s);
        report["crowd_goodput_of_capacity"] = json!(whole.crowd_goodput_of_capacity);
        report["crowd_served_of_capacity"] = json!(whole.crowd_served_of_capacity);
        report["wasted_gpu_s"] = json!(whole.wasted_gpu_s);
        report["sends"] = json!(whole.sends);
        format!("{report:#}\n")
    }

    pub(super) fn table(&self) -> String {
        let mut out = format!(
            "scenario {}, control {}: {} engines, offered {:.2} of capacity while there is too much\n\n\
             class    requests  in time  refused  gave up  failed  ttft p50/p90/p99 ms      e2e p50/p90/p99 ms       jitter min\n",
            self.head["scenario"].as_str().unwrap_or(""),
            self.head["control"].as_str().unwrap_or(""),
            self.head["engines"],
            self.head["crowd_load"].as_f64().unwrap_or(0.0),
        );
        let rows = self.classes.iter().map(|(class, figures)| (class.as_str(), figures)).chain([("all", &self.all)]);
        for (name, figures) in rows {
            let row = |p: &Percentiles| {
                let one = |value: Option<f64>| value.map_or("-".to_owned(), |ms| format!("{ms:.0}"));
                format!("{}/{}/{}", one(p.p50), one(p.p90), one(p.p99))
            };
            let _ = writeln!(
                out,
                "{name:<8} {:>8}  {:>6.2}%  {:>7}  {:>7}  {:>6}  {:<24} {:<24} {:>10}",
                figures.requests,
                figures.slo_attainment * 100.0,
                figures.rejected,
                figures.gave_up,
                figures.failed,
                row(&figures.ttft_ms),
                row(&figures.e2e_ms),
                figures.jitter_minutes,
            );
        }
        let whole = &self.whole;
        let most = self.head["saturation_of_capacity"].as_f64();
        let most = most.map_or_else(String::new, |most| {
            format!(" ({:.0} % are the most that engines serve of this crowd, simulated)", most * 100.0)
        });
        let late = self.head["engine_late_steps_ratio"].as_f64().zip(self.head["engine_lost_s"].as_f64());
        let late = match late {
            Some((steps, lost_s)) => format!("engines late in {:.1} % of steps, {lost_s:.1} s given up", steps * 100.0),
            None if self.head["simulated"] == true => "simulated: a virtual clock".to_owned(),
            None => "whether the engines kept up is not known".to_owned(),
        };
        let _ = writeln!(
            out,
            "\nwhile there was too much: {:.0} % of capacity served, {:.0} % in time{most}; {:.1} GPU seconds spent on answers that \
             came too late\nadmitted {:.0} tokens/s over the run; {late}",
            whole.crowd_served_of_capacity * 100.0,
            whole.crowd_goodput_of_capacity * 100.0,
            whole.wasted_gpu_s,
            whole.admitted_tokens_per_s,
        );
        if !self.all.codes.is_empty() {
            let codes: Vec<String> = self.all.codes.iter().map(|(code, n)| format!("{code} {n}")).collect();
            let _ = writeln!(out, "refused or failed: {}", codes.join(", "));
        }
        let tenants: Vec<String> =
            self.tenants.iter().map(|tenant| format!("{:.2} %", tenant.slo_attainment * 100.0)).collect();
        let _ = writeln!(out, "in time by tenant: {}", tenants.join(", "));
        if let Some([loud, quiet]) = &self.loud {
            let row = |of: &ByClass| {
                let all = of.iter().map(|(class, f)| format!("{class} {:.2} %", f.slo_attainment * 100.0));
                all.collect::<Vec<_>>().join(", ")
            };
            let _ = writeln!(out, "the loud one: {}; the others: {}", row(loud), row(quiet));
        }
        out
    }
}
