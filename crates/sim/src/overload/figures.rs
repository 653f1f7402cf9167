//! From what came of each request to what a class got.
//!
//! Every request counts, in every figure: one that was refused, failed or was given up missed its promise, and in a percentile it is
//! slower than all that were served. A percentile that falls among those is `None`, which is not zero.

use super::outcome::{Done, Outcome, in_time};
use super::plan::{Ask, Plan};
use serde::Serialize;
use std::collections::BTreeMap;

/// Length of a window of availability jitter, in scenario seconds.
pub const MINUTE_S: f64 = 60.0;
/// Of a shorter one, for short runs.
pub const SHORT_S: f64 = 10.0;
/// A window in which more than this share missed is an incident.
const MISSED: f64 = 0.01;

/// Milliseconds; `None` where it falls among requests without an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
}

/// Of one class or tenant, or of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    pub requests: u64,
    /// Share of requests whose first token came as promised.
    pub slo_attainment: f64,
    /// Prompt and output tokens of those, per second of the scenario.
    pub goodput_tokens_per_s: f64,
    pub rejected: u64,
    pub gave_up: u64,
    pub failed: u64,
    /// Refused only after the first token had been due.
    pub rejected_late: u64,
    pub ttft_ms: Percentiles,
    pub e2e_ms: Percentiles,
    /// Windows of a minute with requests of which more than 1 % missed their promise.
    pub jitter_minutes: u64,
    /// The same with windows of ten seconds.
    pub jitter_10s: u64,
    pub codes: BTreeMap<String, u64>,
}

impl Figures {
    /// Of those requests of a plan that count.
    #[must_use]
    pub fn of(plan: &Plan, done: &[Done], counts: impl Fn(&Ask) -> bool) -> Figures {
        let chosen: Vec<(&Ask, &Outcome)> =
            done.iter().map(|done| (&plan.asks[done.ask], &done.outcome)).filter(|(ask, _)| counts(ask)).collect();
        let mut figures = Figures { requests: chosen.len() as u64, ..Figures::default() };
        let (mut ttft, mut e2e) = (Vec::new(), Vec::new());
        let (mut met, mut good_tokens) = (0u64, 0u64);
        for &(ask, outcome) in &chosen {
            if in_time(ask, outcome) {
                met += 1;
                good_tokens += ask.prompt_tokens + ask.output_tokens;
            }
            match outcome {
                Outcome::Served { ttft_s, e2e_s, .. } => {
                    ttft.push(ttft_s * 1e3);
                    e2e.push(e2e_s * 1e3);
                }
                Outcome::Refused { code, after_s } => {
                    figures.rejected += 1;
                    figures.rejected_late += u64::from(*after_s > ask.promised_s);
                    *figures.codes.entry(code.clone()).or_default() += 1;
                }
                Outcome::GaveUp => figures.gave_up += 1,
                Outcome::Failed { code } => {
                    figures.failed += 1;
                    *figures.codes.entry(code.clone()).or_default() += 1;
                }
            }
        }
        figures.slo_attainment = met as f64 / chosen.len().max(1) as f64;
        figures.goodput_tokens_per_s = good_tokens as f64 / plan.seconds;
        figures.ttft_ms = percentiles(ttft, chosen.len());
        figures.e2e_ms = percentiles(e2e, chosen.len());
        figures.jitter_minutes = incidents(&chosen, MINUTE_S);
        figures.jitter_10s = incidents(&chosen, SHORT_S);
        figures
    }
}

/// Of `all` requests, of which those without a value are slower than any with one.
fn percentiles(mut served: Vec<f64>, all: usize) -> Percentiles {
    served.sort_by(f64::total_cmp);
    let at = |share: f64| {
        // Nearest rank.
        let rank = (share * all as f64).ceil() as usize;
        served.get(rank.max(1) - 1).copied()
    };
    Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
}

fn incidents(chosen: &[(&Ask, &Outcome)], window_s: f64) -> u64 {
    let mut windows: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (ask, outcome) in chosen {
        let (all, missed) = windows.entry((ask.at / window_s) as u64).or_default();
        *all += 1;
        *missed += u64::from(!in_time(ask, outcome));
    }
    windows.values().filter(|(all, missed)| *missed as f64 > MISSED * *all as f64).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::Class;

    fn ask(at: f64) -> Ask {
        Ask {
            at,
            tenant: 0,
            session: 1,
            prompt_tokens: 90,
            hit_tokens: 0,
            output_tokens: 10,
            class: Class::High,
            promised_s: 2.0,
        }
    }

    fn served(ttft_s: f64) -> Outcome {
        Outcome::Served { ttft_s, e2e_s: ttft_s + 1.0, uncached_tokens: 90, output_tokens: 10 }
    }

    #[test]
    fn what_was_refused_counts_with_what_was_served() {
        let outcomes = [
            served(0.5),
            served(1.0),
            served(9.0),
            Outcome::Refused { code: "quota_class".into(), after_s: 0.0 },
            Outcome::Refused { code: "wait_budget".into(), after_s: 2.5 },
            Outcome::GaveUp,
            Outcome::Failed { code: "engine_failed".into() },
            served(2.0),
        ];
        let asks = (0..outcomes.len()).map(|i| ask(i as f64 * 20.0)).collect();
        let plan = Plan { asks, capacity_tokens_per_s: 1.0, seconds: 160.0, crowd: 0.0..1.0, repeats: 0 };
        let done: Vec<Done> =
            outcomes.into_iter().enumerate().map(|(ask, outcome)| Done { ask, outcome, sent: 1 }).collect();
        let figures = Figures::of(&plan, &done, |_| true);
        assert!((figures.slo_attainment - 3.0 / 8.0).abs() < 1e-9);
        assert!((figures.goodput_tokens_per_s - 300.0 / 160.0).abs() < 1e-9);
        assert_eq!((figures.rejected, figures.rejected_late, figures.gave_up, figures.failed), (2, 1, 1, 1));
        assert_eq!(figures.ttft_ms, Percentiles { p50: Some(9_000.0), p90: None, p99: None });
        // 0 to 60 s: one of three late. 60 to 120: all missed. 120 to 160: one of two.
        assert_eq!(figures.jitter_minutes, 3);
        assert_eq!(figures.jitter_10s, 5);
        assert_eq!(Figures::of(&plan, &done, |_| false), Figures::default());
    }
}
