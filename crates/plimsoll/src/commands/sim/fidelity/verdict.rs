//! Both runs side by side.

use super::FidelityArgs;
use super::drive::Failed;
use super::real_time::RealTime;
use super::steps::Pace;
use crate::commands::demo::children::Lateness;
use plimsoll_sim::Report;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// How far apart the two may be.
const TOLERANCE: f64 = 0.1;
/// A machine keeps up while at most so many steps of its engines are late, and nothing of their schedule is given up.
const MOST_LATE: f64 = 0.05;
/// Of engines without timing mode, while their steps take so much more by the clock than in processor time.
const MOST_STRETCHED: f64 = 1.05;
/// And requests are sent in time while the mean is late by so much of the mean time to first token.
const MOST_SENT_LATE: f64 = 0.05;

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
    pub(super) machine: Machine,
}

/// How a machine that is too slow for its engines shows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Machine {
    /// Of engines in timing mode, how far they were behind; `None` where one does not say.
    Schedule(Option<Lateness>),
    /// Of others, how long their steps took by the clock and in processor time.
    Steps(Pace),
}

impl Machine {
    fn kept_up(&self) -> bool {
        match self {
            Machine::Schedule(late) => late.is_some_and(|late| late.steps <= MOST_LATE && late.lost_s == 0.0),
            Machine::Steps(pace) => pace.wall_over_cpu <= MOST_STRETCHED,
        }
    }

    fn text(&self) -> String {
        match self {
            Machine::Schedule(Some(late)) => {
                format!("{:.2} % of steps late, {:.2} s lost", late.steps * 100.0, late.lost_s)
            }
            Machine::Schedule(None) => "engines do not say whether they were late".to_owned(),
            Machine::Steps(pace) => format!("steps took {:.3} of their processor time", pace.wall_over_cpu),
        }
    }
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

/// How far two sides are from each other.
#[derive(Clone, Debug, Serialize)]
struct Apart {
    /// Simulated over real.
    ratio: BTreeMap<&'static str, Option<f64>>,
    within_10_percent: BTreeMap<&'static str, bool>,
    all_within: bool,
}

impl Apart {
    fn of(real: &Side, simulated: &Side) -> Apart {
        let pairs = || real.figures().into_iter().zip(simulated.figures());
        let ratio = |real: f64, simulated: f64| (real > 0.0).then(|| simulated / real);
        // Where neither has anything there is nothing to differ.
        let near = |real: f64, sim: f64| ratio(real, sim).map_or(sim == 0.0, |ratio| (ratio - 1.0).abs() <= TOLERANCE);
        let within: BTreeMap<_, _> = pairs().map(|((name, real), (_, sim))| (name, near(real, sim))).collect();
        let all = within.values().all(|within| *within);
        Apart {
            ratio: pairs().map(|((name, real), (_, sim))| (name, ratio(real, sim))).collect(),
            within_10_percent: within,
            all_within: all && real.requests == simulated.requests && real.requests > 0,
        }
    }

    fn text(&self, name: &str) -> String {
        self.ratio.get(name).copied().flatten().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"))
    }
}

/// A simulation whose steps are stretched as the machine stretched the real ones.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AtPace {
    simulated: Side,
    #[serde(flatten)]
    apart: Apart,
}

impl AtPace {
    pub(super) fn new(verdict: &Verdict, simulated: &[Request], report: &Report) -> AtPace {
        let simulated = simulated_side(simulated, report, verdict.instances);
        AtPace { apart: Apart::of(&verdict.real, &simulated), simulated }
    }
}

fn simulated_side(requests: &[Request], report: &Report, engines: u32) -> Side {
    let refused = &report.requests.refused;
    let refused = refused.iter().map(|(why, count)| (why.clone(), (*count, String::new()))).collect();
    Side::of(requests, refused, engines)
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
    #[serde(flatten)]
    apart: Apart,
    /// Share of steps that this machine ended too late, and what was given up of the engines' schedule; `None` where an engine
    /// does not say.
    engine_late_steps: Option<f64>,
    engine_lost_s: Option<f64>,
    client_late_mean_ms: f64,
    client_late_p90_ms: f64,
    /// The machine was fast enough for the figures to be the engines'.
    kept_up: bool,
    simulated_preemptions: u64,
    /// Of engines without timing mode: what was measured of them, and the simulation at the machine's pace.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_one")]
    pub(super) real_time: Option<(RealTime, AtPace)>,
    #[serde(skip)]
    machine: String,
}

/// The two as one object.
fn as_one<S: serde::Serializer>(both: &Option<(RealTime, AtPace)>, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct One<'a> {
        #[serde(flatten)]
        about: &'a RealTime,
        at_pace: &'a AtPace,
    }
    both.as_ref().map(|(about, at_pace)| One { about, at_pace }).serialize(to)
}

impl Verdict {
    pub(super) fn new(
        args: &FidelityArgs,
        profile: &str,
        rate: f64,
        real: Real,
        (simulated, report): (&[Request], &Report),
    ) -> Verdict {
        let (machine, sent_late) = (real.machine, Times::of(real.sent_late));
        let real = Side::of(&real.requests, real.failed, args.instances);
        let simulated = simulated_side(simulated, report, args.instances);
        let late = match machine {
            Machine::Schedule(late) => late,
            Machine::Steps(_) => None,
        };
        // What a request is sent too late it waits longer, and no engine is to blame.
        let sent_in_time = sent_late.mean <= MOST_SENT_LATE * real.ttft_ms.mean;
        Verdict {
            trace: args.trace.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            profile: profile.to_owned(),
            policy: args.policy.clone(),
            instances: args.instances,
            seed: args.seed,
            limit: args.limit,
            rate,
            scale: args.scale,
            slow: if args.real_time { 1.0 } else { args.slow },
            apart: Apart::of(&real, &simulated),
            engine_late_steps: late.map(|late| late.steps),
            engine_lost_s: late.map(|late| late.lost_s),
            client_late_mean_ms: sent_late.mean,
            client_late_p90_ms: sent_late.p90,
            kept_up: machine.kept_up() && sent_in_time,
            simulated_preemptions: report.preemptions,
            real_time: None,
            machine: machine.text(),
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
        let at_pace = self.real_time.as_ref().map(|(_, at_pace)| at_pace);
        let mut text = format!("{:<14}{:>12}{:>12}{:>9}", "ms", "processes", "simulated", "ratio");
        text.push_str(if at_pace.is_some() { "   at the machine's pace\n" } else { "\n" });
        for (nth, ((name, real), (_, simulated))) in
            self.real.figures().into_iter().zip(self.simulated.figures()).enumerate()
        {
            let ratio = self.apart.text(name);
            let _ = write!(text, "{name:<14}{real:>12.1}{simulated:>12.1}{ratio:>9}");
            if let Some(at_pace) = at_pace {
                let _ = write!(text, "{:>12.1}{:>9}", at_pace.simulated.figures()[nth].1, at_pace.apart.text(name));
            }
            let near = self.apart.within_10_percent.get(name).copied().unwrap_or(false);
            text.push_str(if near { "\n" } else { "  more than 10 %\n" });
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
        if let Some((about, _)) = &self.real_time {
            text.push_str(&about.text());
        }
        let kept =
            if self.kept_up { "the machine kept up" } else { "THE MACHINE DID NOT KEEP UP: figures are its own" };
        let (mean, p90) = (self.client_late_mean_ms, self.client_late_p90_ms);
        let _ = writeln!(
            text,
            "{kept} ({}; requests sent {mean:.1} ms late in the mean, 90 % within {p90:.1} ms)",
            self.machine
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: FidelityArgs,
    }

    fn verdict(sent_late: Vec<f64>, machine: Machine) -> Verdict {
        let args = Line::parse_from(["line", "--trace", "t"]).args;
        let request = Request {
            ttft_ms: 100.0,
            decode_ms: 90.0,
            output_tokens: 10,
            prompt_tokens: 50,
            cached_tokens: Some(0),
            engine: 0,
        };
        let real = Real { requests: vec![request; 20], failed: Failed::new(), sent_late, machine };
        Verdict::new(&args, "h100-llama3-8b", 1.0, real, (&[request; 20], &Report::empty()))
    }

    #[test]
    fn a_machine_keeps_up_with_its_engines_and_with_its_client() {
        let schedule = |steps: f64, lost_s: f64| Machine::Schedule(Some(Lateness { steps, lost_s }));
        let steps = |wall_over_cpu: f64| Machine::Steps(Pace { steps: 9, step_ms: 20.0, wall_over_cpu });
        // Of a time to first token of 100 ms.
        let (in_time, late) = (vec![1.0; 20], vec![6.0; 20]);
        for (sent, machine, kept_up) in [
            (&in_time, schedule(0.01, 0.0), true),
            (&late, schedule(0.01, 0.0), false),
            (&in_time, schedule(0.2, 0.0), false),
            (&in_time, schedule(0.01, 0.5), false),
            (&in_time, Machine::Schedule(None), false),
            (&in_time, steps(1.02), true),
            (&late, steps(1.02), false),
            (&in_time, steps(1.2), false),
        ] {
            let verdict = verdict(sent.clone(), machine);
            assert_eq!(verdict.kept_up, kept_up, "{machine:?}, sent {} ms late", sent[0]);
            assert_eq!(verdict.table().contains("DID NOT KEEP UP"), !kept_up);
            assert!(verdict.apart.all_within);
        }
    }

    #[test]
    fn what_is_further_apart_than_a_tenth_is_said() {
        let mut verdict = verdict(vec![0.0], Machine::Schedule(Some(Lateness::default())));
        verdict.simulated.ttft_ms.p90 *= 1.2;
        verdict.apart = Apart::of(&verdict.real, &verdict.simulated);
        assert!(!verdict.apart.all_within && verdict.apart.within_10_percent["ttft_mean"]);
        assert!(verdict.table().contains("1.200  more than 10 %"), "{}", verdict.table());
    }
}
