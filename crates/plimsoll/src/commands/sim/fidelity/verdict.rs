//! Both runs side by side.

use super::FidelityArgs;
use super::drive::Failed;
use crate::commands::demo::children::Lateness;
use plimsoll_sim::Report;
use plimsoll_timing::Profile;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// How far apart the two may be.
const TOLERANCE: f64 = 0.1;
/// A machine keeps up while at most so many steps of its engines are late, and nothing of their schedule is given up.
const MOST_LATE: f64 = 0.05;

/// One answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// From when it was due.
    pub(super) ttft_ms: f64,
    /// From the first token to the last.
    pub(super) decode_ms: f64,
    pub(super) output_tokens: u64,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: Option<u64>,
    /// By the gateway's number.
    pub(super) engine: u32,
}

/// What the processes did.
pub(super) struct Real {
    pub(super) requests: Vec<Request>,
    pub(super) failed: Failed,
    /// By how much each was sent too late, milliseconds.
    pub(super) sent_late: Vec<f64>,
    pub(super) late: Option<Lateness>,
}

/// Milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Times {
    mean: f64,
    p90: f64,
}

impl Times {
    fn of(mut values: Vec<f64>) -> Times {
        values.sort_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        // Nearest rank.
        let rank = (values.len() as f64 * 0.9).ceil() as usize;
        Times { mean, p90: values.get(rank.max(1) - 1).copied().unwrap_or(0.0) }
    }
}

/// Of one of the two.
#[derive(Clone, Debug, Serialize)]
struct Side {
    requests: u64,
    failed: Failed,
    ttft_ms: Times,
    tpot_ms: Times,
    hit_rate: Option<f64>,
    /// Of answers that name their engine: one that is kept alive before its first token was begun without.
    requests_of_engines: Vec<u64>,
}

impl Side {
    fn of(requests: &[Request], failed: Failed, engines: u32) -> Side {
        let streams = requests.iter().filter(|one| one.output_tokens > 1);
        let sum = |of: fn(&Request) -> Option<u64>| requests.iter().map(of).sum::<Option<u64>>();
        let (prompt, cached) = (sum(|one| Some(one.prompt_tokens)), sum(|one| one.cached_tokens));
        let of_engine = |id: u32| requests.iter().filter(|one| one.engine == id).count() as u64;
        Side {
            requests: requests.len() as u64,
            failed,
            ttft_ms: Times::of(requests.iter().map(|one| one.ttft_ms).collect()),
            tpot_ms: Times::of(streams.map(|one| one.decode_ms / (one.output_tokens - 1) as f64).collect()),
            hit_rate: cached.zip(prompt).map(|(cached, prompt)| cached as f64 / prompt.max(1) as f64),
            requests_of_engines: (0..engines).map(of_engine).collect(),
        }
    }

    fn figures(&self) -> [(&'static str, f64); 4] {
        [
            ("ttft_mean", self.ttft_ms.mean),
            ("ttft_p90", self.ttft_ms.p90),
            ("tpot_mean", self.tpot_ms.mean),
            ("tpot_p90", self.tpot_ms.p90),
        ]
    }
}

/// The answer of `plimsoll sim fidelity`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Verdict {
    trace: String,
    profile: String,
    policy: String,
    instances: u32,
    seed: u64,
    limit: u64,
    rate: f64,
    /// Lengths and sizes were divided by it.
    scale: u64,
    /// Times are of engines so many times slower than the profile.
    slow: f64,
    real: Side,
    simulated: Side,
    /// Simulated over real.
    ratio: BTreeMap<&'static str, Option<f64>>,
    within_10_percent: BTreeMap<&'static str, bool>,
    all_within: bool,
    /// Share of steps that this machine ended too late, and what was given up of the engines' schedule; `None` where an engine
    /// does not say.
    engine_late_steps: Option<f64>,
    engine_lost_s: Option<f64>,
    client_late_p90_ms: f64,
    /// The machine was fast enough for the figures to be the engines'.
    kept_up: bool,
    simulated_preemptions: u64,
}

impl Verdict {
    pub(super) fn new(
        args: &FidelityArgs,
        profile: &Profile,
        real: Real,
        simulated: &[Request],
        report: &Report,
    ) -> Verdict {
        let refused = &report.requests.refused;
        let refused = refused.iter().map(|(why, count)| (why.clone(), (*count, String::new()))).collect();
        let (late, sent_late) = (real.late, real.sent_late);
        let real = Side::of(&real.requests, real.failed, args.instances);
        let simulated = Side::of(simulated, refused, args.instances);
        let pairs = || real.figures().into_iter().zip(simulated.figures());
        let ratio = |real: f64, simulated: f64| (real > 0.0).then(|| simulated / real);
        let ratios: BTreeMap<_, _> = pairs().map(|((name, real), (_, sim))| (name, ratio(real, sim))).collect();
        // Where neither has anything there is nothing to differ.
        let near = |real: f64, sim: f64| ratio(real, sim).map_or(sim == 0.0, |ratio| (ratio - 1.0).abs() <= TOLERANCE);
        let within: BTreeMap<_, _> = pairs().map(|((name, real), (_, sim))| (name, near(real, sim))).collect();
        let all_within =
            within.values().all(|within| *within) && real.requests == simulated.requests && real.requests > 0;
        Verdict {
            trace: args.trace.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            profile: profile.name.clone(),
            policy: args.policy.clone(),
            instances: args.instances,
            seed: args.seed,
            limit: args.limit,
            rate: args.rate,
            scale: args.scale,
            slow: args.slow,
            ratio: ratios,
            within_10_percent: within,
            all_within,
            engine_late_steps: late.map(|late| late.steps),
            engine_lost_s: late.map(|late| late.lost_s),
            client_late_p90_ms: Times::of(sent_late).p90,
            kept_up: late.is_some_and(|late| late.steps <= MOST_LATE && late.lost_s == 0.0),
            simulated_preemptions: report.preemptions,
            real,
            simulated,
        }
    }

    pub(super) fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    pub(super) fn table(&self) -> String {
        let mut text = format!("{:<14}{:>12}{:>12}{:>9}\n", "ms", "processes", "simulated", "ratio");
        for ((name, real), (_, simulated)) in self.real.figures().into_iter().zip(self.simulated.figures()) {
            let ratio = self.ratio.get(name).copied().flatten().map_or_else(|| "-".to_owned(), |r| format!("{r:.3}"));
            let mark = if self.within_10_percent.get(name).copied().unwrap_or(false) { "" } else { "  more than 10 %" };
            let _ = writeln!(text, "{name:<14}{real:>12.1}{simulated:>12.1}{ratio:>9}{mark}");
        }
        let percent =
            |side: &Side| side.hit_rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.1} %", rate * 100.0));
        let _ = writeln!(text, "{:<14}{:>12}{:>12}", "hit rate", percent(&self.real), percent(&self.simulated));
        let _ = writeln!(text, "{:<14}{:>12}{:>12}", "answered", self.real.requests, self.simulated.requests);
        for (code, (count, message)) in &self.real.failed {
            let _ = writeln!(text, "  failed: {count} with {code}: {message}");
        }
        let list = |side: &Side| side.requests_of_engines.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "requests of engines: {}; simulated {}", list(&self.real), list(&self.simulated));
        let late = match (self.engine_late_steps, self.engine_lost_s) {
            (Some(steps), Some(lost)) => format!("{:.2} % of steps late, {lost:.2} s lost", steps * 100.0),
            _ => "engines do not say whether they were late".to_owned(),
        };
        let kept =
            if self.kept_up { "the machine kept up" } else { "THE MACHINE DID NOT KEEP UP: figures are its own" };
        let client = self.client_late_p90_ms;
        let _ = writeln!(text, "{kept} ({late}; 90 % of requests sent within {client:.1} ms)");
        text
    }
}
