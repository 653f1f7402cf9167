//! Figures while a run goes on.

use crate::bucket_map::Observed;
use crate::engine::StepReport;
use crate::histogram::Histogram;
use crate::report::{ClassFigures, RegionFigures, Requests, Tokens};
use crate::series::{Found, Series};
use plimsoll_core::{Class, Nanos};
use std::collections::BTreeMap;

/// What a good answer is, for attainment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    pub ttft: Nanos,
    pub tpot: Nanos,
}

impl Default for Slo {
    fn default() -> Self {
        Slo { ttft: Nanos::from_secs(2), tpot: Nanos::from_millis(50) }
    }
}

/// One request at its end, as tests and `--requests` see it.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Finished {
    /// In order of arrival, from 1.
    pub number: u64,
    pub arrived_ns: u64,
    pub first_token_ns: u64,
    pub ended_ns: u64,
    pub instance: u32,
    pub rank: u16,
    pub class: &'static str,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    /// Number of its session's region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct OfRegion {
    arrived: u64,
    completed: u64,
    good: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    ttft: Histogram,
}

#[derive(Clone, Debug, Default)]
struct OfClass {
    requests: u64,
    refused: u64,
    failed: u64,
    good: u64,
    ttft: Histogram,
    tpot: Histogram,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OfInstance {
    pub requests: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
}

/// Sums, distributions and the series.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    slo: Slo,
    pub(crate) requests: Requests,
    pub(crate) ttft: Histogram,
    pub(crate) itl: Histogram,
    pub(crate) tpot: Histogram,
    pub(crate) e2e: Histogram,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    /// Of prompts of which it is known: their tokens, those that some place was believed to hold, and those that the chosen one was.
    known_tokens: u64,
    best_tokens: u64,
    believed_tokens: u64,
    /// In millionths, so that sums do not depend on their order.
    hit_millionths: u128,
    answered: u64,
    classes: BTreeMap<Class, OfClass>,
    regions: Vec<(String, OfRegion)>,
    pub(crate) instances: Vec<OfInstance>,
    pub(crate) series: Series,
    pub(crate) contexts: Observed,
    pub(crate) first_arrival: Option<Nanos>,
    pub(crate) last_end: Nanos,
}

impl Collector {
    pub(crate) fn new(slo: Slo, regions: Vec<String>) -> Self {
        let regions = regions.into_iter().map(|name| (name, OfRegion::default())).collect();
        Collector { slo, regions, ..Collector::default() }
    }

    pub(crate) fn arrived(&mut self, at: Nanos, region: Option<usize>) {
        self.requests.arrived += 1;
        if let Some((_, of)) = region.and_then(|region| self.regions.get_mut(region)) {
            of.arrived += 1;
        }
        self.first_arrival.get_or_insert(at);
        self.series.arrived(at);
    }

    pub(crate) fn refused(&mut self, at: Nanos, class: Option<Class>, why: &str) {
        *self.requests.refused.entry(why.to_owned()).or_insert(0) += 1;
        if let Some(class) = class {
            let of = self.classes.entry(class).or_default();
            of.requests += 1;
            of.refused += 1;
            self.series.ended(at, class, false);
        }
        self.series.refused(at);
        self.last_end = self.last_end.max(at);
    }

    /// It was accepted and gets no answer.
    pub(crate) fn failed(&mut self, at: Nanos, class: Class) {
        self.requests.failed += 1;
        let of = self.classes.entry(class).or_default();
        of.requests += 1;
        of.failed += 1;
        self.series.ended(at, class, false);
        self.series.failed(at);
        self.last_end = self.last_end.max(at);
    }

    /// `held`: the most of its prompt that any place was believed to have, and what the chosen one was.
    pub(crate) fn finished(&mut self, one: &Finished, class: Class, held: Option<(u64, u64)>) {
        let ttft = one.first_token_ns - one.arrived_ns;
        // Not when it came out: of a request that fails later it would be counted.
        self.ttft.record(ttft);
        let found = Found { prompt_tokens: one.prompt_tokens, cached_tokens: one.cached_tokens, held };
        self.series.first_token(Nanos(one.first_token_ns), Nanos(ttft), found);
        self.requests.completed += 1;
        self.e2e.record(one.ended_ns - one.arrived_ns);
        let of = self.classes.entry(class).or_default();
        of.requests += 1;
        of.ttft.record(ttft);
        let mut good = ttft <= self.slo.ttft.0;
        if one.output_tokens > 1 {
            let tpot = (one.ended_ns - one.first_token_ns) / (one.output_tokens - 1);
            self.tpot.record(tpot);
            of.tpot.record(tpot);
            good &= tpot <= self.slo.tpot.0;
        }
        of.good += u64::from(good);
        self.series.ended(Nanos(one.ended_ns), class, good);
        if let Some((best, believed)) = held {
            self.known_tokens += one.prompt_tokens;
            self.best_tokens += best;
            self.believed_tokens += believed;
        }
        if let Some((_, of)) = one.region.and_then(|region| self.regions.get_mut(region)) {
            of.completed += 1;
            of.good += u64::from(good);
            of.prompt_tokens += one.prompt_tokens;
            of.cached_tokens += one.cached_tokens;
            of.ttft.record(ttft);
        }
        self.prompt_tokens += one.prompt_tokens;
        self.cached_tokens += one.cached_tokens;
        self.output_tokens += one.output_tokens;
        self.hit_millionths += u128::from(one.cached_tokens) * 1_000_000 / u128::from(one.prompt_tokens.max(1));
        self.answered += 1;
        let at = one.instance as usize;
        if self.instances.len() <= at {
            self.instances.resize(at + 1, OfInstance::default());
        }
        let of = &mut self.instances[at];
        of.requests += 1;
        of.prompt_tokens += one.prompt_tokens;
        of.cached_tokens += one.cached_tokens;
        self.series.completed(Nanos(one.ended_ns), one.output_tokens);
        self.last_end = self.last_end.max(Nanos(one.ended_ns));
    }

    /// Steps in a row that are over.
    pub(crate) fn steps(&mut self, steps: &StepReport) {
        self.itl.record_ramp(steps.ramp, steps.steps, steps.tokens_each);
        self.series.gaps(steps);
    }

    /// A token after a longer pause.
    pub(crate) fn gap(&mut self, now: Nanos, gap: Nanos) {
        self.itl.record(gap.0);
        self.series.gap(now, gap);
    }

    pub(crate) fn duration(&self) -> Nanos {
        self.last_end.since(self.first_arrival.unwrap_or(Nanos::ZERO))
    }

    pub(crate) fn tokens(&self, prefilled: u64, loaded: u64) -> Tokens {
        let seconds = self.duration().as_secs_f64();
        let per_s = |tokens: u64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        let share = |part: f64, whole: u64| if whole > 0 { part / whole as f64 } else { 0.0 };
        let of_known = |tokens: u64| (self.known_tokens > 0).then(|| tokens as f64 / self.known_tokens as f64);
        Tokens {
            prompt: self.prompt_tokens,
            cached: self.cached_tokens,
            output: self.output_tokens,
            prefilled,
            loaded,
            hit_rate: share(self.cached_tokens as f64, self.prompt_tokens),
            held_by_fleet: of_known(self.best_tokens),
            held_where_placed: of_known(self.believed_tokens),
            hit_rate_mean_of_requests: share(self.hit_millionths as f64 / 1e6, self.answered),
            output_per_s: per_s(self.output_tokens),
            prompt_per_s: per_s(self.prompt_tokens),
        }
    }

    pub(crate) fn regions(&self) -> BTreeMap<String, RegionFigures> {
        let share = |part: u64, whole: u64| if whole > 0 { part as f64 / whole as f64 } else { 0.0 };
        let figures = |of: &OfRegion| RegionFigures {
            requests: of.arrived,
            completed: of.completed,
            hit_rate: share(of.cached_tokens, of.prompt_tokens),
            ttft_ms: of.ttft.summary(),
            attainment: share(of.good, of.arrived),
        };
        self.regions.iter().map(|(name, of)| (name.clone(), figures(of))).collect()
    }

    pub(crate) fn classes(&self) -> BTreeMap<String, ClassFigures> {
        let figures = |of: &OfClass| ClassFigures {
            requests: of.requests,
            refused: of.refused,
            failed: of.failed,
            ttft_ms: of.ttft.summary(),
            tpot_ms: of.tpot.summary(),
            attainment: if of.requests > 0 { of.good as f64 / of.requests as f64 } else { 0.0 },
        };
        self.classes.iter().map(|(class, of)| (class.as_str().to_owned(), figures(of))).collect()
    }
}
