//! What happened when: figures over time in a bounded number of bins, whose width doubles as the run grows longer.

use crate::eighths::Eighths;
use crate::engine::StepReport;
use crate::step_time::FS_PER_NS;
use plimsoll_core::{Class, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most bins.
pub const MOST_BINS: usize = 240;
/// Width of the first ones.
const FIRST_WIDTH: Nanos = Nanos::from_millis(250);

/// Femtoseconds.
const FS_PER_US: u64 = 1_000 * FS_PER_NS as u64;

const CLASSES: usize = Class::ALL.len();

/// Figures of one span of time.
#[derive(Clone, Debug, Default)]
struct Bin {
    arrived: u64,
    completed: u64,
    refused: u64,
    failed: u64,
    output_tokens: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    /// Of prompts of which it is known: their tokens, those that some place held, and those that the chosen one did.
    known_tokens: u64,
    best_tokens: u64,
    believed_tokens: u64,
    moved: u64,
    /// Microseconds, as are the gaps.
    ttft: Eighths,
    gaps: Eighths,
    /// By class: requests that ended, and of them those whose answer was good.
    ended: [u64; CLASSES],
    good: [u64; CLASSES],
    samples: u64,
    running: u64,
    waiting: u64,
    kv_tokens: u64,
    /// Of samples: the sum of the fullest and of the mean instance, for the spread.
    fullest: u64,
    instances: u64,
    serving: u64,
}

impl Bin {
    fn add(&mut self, more: &Bin) {
        let pairs = [
            (&mut self.arrived, more.arrived),
            (&mut self.completed, more.completed),
            (&mut self.refused, more.refused),
            (&mut self.failed, more.failed),
            (&mut self.output_tokens, more.output_tokens),
            (&mut self.prompt_tokens, more.prompt_tokens),
            (&mut self.cached_tokens, more.cached_tokens),
            (&mut self.known_tokens, more.known_tokens),
            (&mut self.best_tokens, more.best_tokens),
            (&mut self.believed_tokens, more.believed_tokens),
            (&mut self.moved, more.moved),
            (&mut self.samples, more.samples),
            (&mut self.running, more.running),
            (&mut self.waiting, more.waiting),
            (&mut self.kv_tokens, more.kv_tokens),
            (&mut self.fullest, more.fullest),
            (&mut self.instances, more.instances),
            (&mut self.serving, more.serving),
        ];
        pairs.into_iter().for_each(|(own, more)| *own += more);
        let classes = [(&mut self.ended, &more.ended), (&mut self.good, &more.good)];
        classes.into_iter().for_each(|(own, more)| own.iter_mut().zip(more).for_each(|(own, more)| *own += more));
        self.ttft.merge(&more.ttft);
        self.gaps.merge(&more.gaps);
    }
}

/// What was cached of a prompt, and what was believed of it when it was placed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// The most that any place held, and what the chosen one held; `None` where nobody knows.
    pub held: Option<(u64, u64)>,
}

/// One sample of the fleet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub running: u64,
    pub waiting: u64,
    pub kv_tokens: u64,
    /// KV tokens of the fullest instance.
    pub fullest_kv_tokens: u64,
    /// Up or starting.
    pub instances: u64,
    /// Up.
    pub serving: u64,
}

/// Bins from the first thing that happens: traces may begin at any hour.
#[derive(Clone, Debug)]
pub struct Series {
    origin: Option<Nanos>,
    width: Nanos,
    bins: Vec<Bin>,
}

impl Default for Series {
    fn default() -> Self {
        Series { origin: None, width: FIRST_WIDTH, bins: Vec::new() }
    }
}

/// A column for each figure, a row for each bin; empty bins have no percentile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Columns {
    /// Seconds.
    pub bin_s: f64,
    pub arrived_per_s: Vec<f64>,
    pub completed_per_s: Vec<f64>,
    pub refused_per_s: Vec<f64>,
    /// Ended without an answer after they were accepted.
    #[serde(default)]
    pub failed_per_s: Vec<f64>,
    pub output_tokens_per_s: Vec<f64>,
    /// Of completed requests, when their first token came; so are the hit rate and what was held.
    pub ttft_p50_ms: Vec<Option<f64>>,
    pub ttft_p90_ms: Vec<Option<f64>>,
    /// Gaps between two tokens of one answer, when the second came.
    #[serde(default)]
    pub itl_p50_ms: Vec<Option<f64>>,
    #[serde(default)]
    pub itl_p90_ms: Vec<Option<f64>>,
    /// By class: share of the requests that ended whose answer met both targets; refused and failed ones did not.
    #[serde(default)]
    pub attainment: BTreeMap<String, Vec<Option<f64>>>,
    pub hit_rate: Vec<Option<f64>>,
    /// Share of the prompts' tokens that some engine was believed to hold when they were placed.
    #[serde(default)]
    pub held_by_fleet: Vec<Option<f64>>,
    /// And that the chosen one was.
    #[serde(default)]
    pub held_where_placed: Vec<Option<f64>>,
    /// Running requests that arrived at another engine.
    #[serde(default)]
    pub moved_per_s: Vec<f64>,
    pub running: Vec<Option<f64>>,
    pub waiting: Vec<Option<f64>>,
    pub kv_tokens: Vec<Option<f64>>,
    /// KV of the fullest instance over that of the mean one of those that are up.
    pub fullest_over_mean: Vec<Option<f64>>,
    /// Engines that are up or starting. A dead one is not, though it is paid for.
    pub instances: Vec<Option<f64>>,
}

impl Series {
    fn bin(&mut self, at: Nanos) -> &mut Bin {
        let at = at.since(*self.origin.get_or_insert(at));
        let mut index = (at.0 / self.width.0) as usize;
        while index >= MOST_BINS {
            self.widen();
            index = (at.0 / self.width.0) as usize;
        }
        if self.bins.len() <= index {
            self.bins.resize(index + 1, Bin::default());
        }
        &mut self.bins[index]
    }

    fn widen(&mut self) {
        self.width = Nanos(self.width.0.saturating_mul(2));
        let wide = self.bins.chunks(2).map(|pair| {
            let mut sum = pair[0].clone();
            pair[1..].iter().for_each(|bin| sum.add(bin));
            sum
        });
        self.bins = wide.collect();
    }

    pub fn arrived(&mut self, at: Nanos) {
        self.bin(at).arrived += 1;
    }

    pub fn refused(&mut self, at: Nanos) {
        self.bin(at).refused += 1;
    }

    pub fn failed(&mut self, at: Nanos) {
        self.bin(at).failed += 1;
    }

    pub fn moved(&mut self, at: Nanos) {
        self.bin(at).moved += 1;
    }

    pub fn first_token(&mut self, at: Nanos, ttft: Nanos, found: Found) {
        let bin = self.bin(at);
        bin.prompt_tokens += found.prompt_tokens;
        bin.cached_tokens += found.cached_tokens;
        if let Some((best, believed)) = found.held {
            bin.known_tokens += found.prompt_tokens;
            bin.best_tokens += best;
            bin.believed_tokens += believed;
        }
        bin.ttft.add(ttft.0 / 1_000, 1);
    }

    /// One token after another: steps in a row, each of which gave so many requests a token. Every one is counted where it
    /// ended and by what it took, so that it does not matter how a row was cut.
    pub fn gaps(&mut self, steps: &StepReport) {
        let StepReport { ramp, tokens_each, .. } = *steps;
        if tokens_each == 0 {
            return;
        }
        let ends = |step: u64| (steps.begun_fs + ramp.total_fs(step)).div_ceil(FS_PER_NS);
        let us = |step: u64| ramp.step_fs(step) / FS_PER_US;
        let mut done = 0;
        while done < steps.steps {
            let at = Nanos(u64::try_from(ends(done + 1)).unwrap_or(u64::MAX));
            let next_bin = self.end_of_bin(at);
            // Those that end before the next bin begins, and are no longer than their eighth.
            let span_fs = (u128::from(next_bin.0.saturating_sub(1)) * FS_PER_NS + 1).saturating_sub(steps.begun_fs);
            let in_bin = match ramp.total_fs(steps.steps) < span_fs {
                true => steps.steps,
                false => ramp.steps_to(span_fs, steps.steps) - 1,
            };
            let longer_fs = Eighths::beyond(us(done)).saturating_mul(FS_PER_US);
            let alike = match ramp.growth_fs {
                0 => steps.steps,
                growth => done + longer_fs.saturating_sub(ramp.step_fs(done)).div_ceil(growth),
            };
            let until = in_bin.min(alike).clamp(done + 1, steps.steps);
            self.bin(at).gaps.add(us(done), (until - done) * tokens_each);
            done = until;
        }
    }

    /// When the bin of a moment ends.
    fn end_of_bin(&mut self, at: Nanos) -> Nanos {
        self.bin(at);
        let origin = self.origin.unwrap_or(at);
        origin + Nanos((at.since(origin).0 / self.width.0 + 1).saturating_mul(self.width.0))
    }

    /// A single gap that ended at `end`.
    pub fn gap(&mut self, end: Nanos, gap: Nanos) {
        self.bin(end).gaps.add(gap.0 / 1_000, 1);
    }

    /// A request of a class has ended, however it did.
    pub fn ended(&mut self, at: Nanos, class: Class, good: bool) {
        let bin = self.bin(at);
        bin.ended[class as usize] += 1;
        bin.good[class as usize] += u64::from(good);
    }

    pub fn completed(&mut self, at: Nanos, output_tokens: u64) {
        let bin = self.bin(at);
        bin.completed += 1;
        bin.output_tokens += output_tokens;
    }

    pub fn sample(&mut self, at: Nanos, sample: Sample) {
        let bin = self.bin(at);
        bin.samples += 1;
        bin.running += sample.running;
        bin.waiting += sample.waiting;
        bin.kv_tokens += sample.kv_tokens;
        bin.fullest += sample.fullest_kv_tokens;
        bin.instances += sample.instances;
        bin.serving += sample.serving;
    }

    #[must_use]
    pub fn columns(&self) -> Columns {
        let width_s = self.width.as_secs_f64();
        let rate = |of: fn(&Bin) -> u64| self.bins.iter().map(|bin| of(bin) as f64 / width_s).collect();
        let ratio = |over: fn(&Bin) -> u64, under: fn(&Bin) -> u64| {
            let one = |bin: &Bin| (under(bin) > 0).then(|| over(bin) as f64 / under(bin) as f64);
            self.bins.iter().map(one).collect()
        };
        let ms = |of: fn(&Bin) -> &Eighths, share: f64| {
            self.bins.iter().map(|bin| of(bin).at(share).map(|us| us / 1e3)).collect()
        };
        let attained = |class: Class| {
            let of = class as usize;
            let one = |bin: &Bin| (bin.ended[of] > 0).then(|| bin.good[of] as f64 / bin.ended[of] as f64);
            self.bins.iter().map(one).collect::<Vec<_>>()
        };
        let there = |class: &Class| self.bins.iter().any(|bin| bin.ended[*class as usize] > 0);
        let classes = Class::ALL.into_iter().filter(there);
        Columns {
            bin_s: width_s,
            arrived_per_s: rate(|bin| bin.arrived),
            completed_per_s: rate(|bin| bin.completed),
            refused_per_s: rate(|bin| bin.refused),
            failed_per_s: rate(|bin| bin.failed),
            output_tokens_per_s: rate(|bin| bin.output_tokens),
            ttft_p50_ms: ms(|bin| &bin.ttft, 0.5),
            ttft_p90_ms: ms(|bin| &bin.ttft, 0.9),
            itl_p50_ms: ms(|bin| &bin.gaps, 0.5),
            itl_p90_ms: ms(|bin| &bin.gaps, 0.9),
            attainment: classes.map(|class| (class.as_str().to_owned(), attained(class))).collect(),
            hit_rate: ratio(|bin| bin.cached_tokens, |bin| bin.prompt_tokens),
            held_by_fleet: ratio(|bin| bin.best_tokens, |bin| bin.known_tokens),
            held_where_placed: ratio(|bin| bin.believed_tokens, |bin| bin.known_tokens),
            moved_per_s: rate(|bin| bin.moved),
            running: ratio(|bin| bin.running, |bin| bin.samples),
            waiting: ratio(|bin| bin.waiting, |bin| bin.samples),
            kv_tokens: ratio(|bin| bin.kv_tokens, |bin| bin.samples),
            fullest_over_mean: ratio(|bin| bin.fullest * bin.serving, |bin| bin.kv_tokens * bin.samples),
            instances: ratio(|bin| bin.instances, |bin| bin.samples),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_time::Ramp;

    /// Found in review: bins began at 0, so a trace of one hour that began at noon had one wide bin.
    #[test]
    fn bins_begin_with_the_first_arrival() {
        let (mut early, mut late) = (Series::default(), Series::default());
        for second in 0..60 {
            early.arrived(Nanos::from_secs(second));
            late.arrived(Nanos::from_secs(second + 86_400));
        }
        assert_eq!(early.columns(), late.columns());
        assert_eq!(early.columns().bin_s, 0.25);
    }

    #[test]
    fn bins_double_and_lose_nothing() {
        let mut series = Series::default();
        for second in 0..10_000 {
            series.arrived(Nanos::from_secs(second));
            let found = Found { prompt_tokens: 100, cached_tokens: 40, held: Some((80, 60)) };
            series.first_token(Nanos::from_secs(second), Nanos::from_millis(second % 100 + 1), found);
            series.moved(Nanos::from_secs(second));
            series.sample(Nanos::from_secs(second), Sample { running: 3, instances: 2, ..Sample::default() });
        }
        let columns = series.columns();
        assert!(columns.arrived_per_s.len() <= MOST_BINS && columns.bin_s == 64.0, "{}", columns.bin_s);
        let total: f64 = columns.arrived_per_s.iter().map(|rate| rate * columns.bin_s).sum();
        assert_eq!(total, 10_000.0);
        assert!(columns.hit_rate.iter().all(|rate| *rate == Some(0.4)));
        assert!(columns.held_by_fleet.iter().all(|rate| *rate == Some(0.8)));
        assert!(columns.held_where_placed.iter().all(|rate| *rate == Some(0.6)));
        assert_eq!(columns.moved_per_s.iter().map(|rate| rate * columns.bin_s).sum::<f64>(), 10_000.0);
        assert!(columns.running.iter().all(|running| *running == Some(3.0)));
        let p50 = columns.ttft_p50_ms[3].unwrap();
        assert!((30.0..70.0).contains(&p50), "{p50}");
    }

    /// A run of steps gives its gaps to the bins in which they ended, and none is lost or counted twice.
    #[test]
    fn gaps_lie_where_they_ended() {
        let mut series = Series::default();
        series.arrived(Nanos::ZERO);
        // 100 steps of 20 ms and a little more each, up to 2.05 s; three tokens each.
        let ramp = Ramp { first_fs: 20_000_000_000_000, growth_fs: 10_000_000_000 };
        let whole = StepReport { begun_fs: 0, ramp, steps: 100, tokens_each: 3 };
        series.gaps(&whole);
        series.gap(Nanos::from_secs(1), Nanos::from_millis(900));
        let counts: Vec<u64> = series.bins.iter().map(|bin| bin.gaps.count()).collect();
        assert_eq!((counts.len(), counts.iter().sum::<u64>()), (9, 301));
        assert!(counts[..8].iter().all(|count| (33..=40).contains(count)), "{counts:?}");
        let columns = series.columns();
        assert!(columns.itl_p50_ms.iter().all(|gap| (19.0..22.5).contains(&gap.unwrap())), "{:?}", columns.itl_p50_ms);
        // Step by step.
        let mut single = Series::default();
        single.arrived(Nanos::ZERO);
        for step in 0..100 {
            let ramp = Ramp { first_fs: ramp.step_fs(step), growth_fs: 7 };
            single.gaps(&StepReport { begun_fs: whole.ramp.total_fs(step), ramp, steps: 1, tokens_each: 3 });
        }
        single.gap(Nanos::from_secs(1), Nanos::from_millis(900));
        let same = series.bins.iter().zip(&single.bins).all(|(one, other)| one.gaps == other.gaps);
        assert!(same && series.bins.len() == single.bins.len());
    }

    #[test]
    fn attainment_is_of_those_that_ended_then() {
        let mut series = Series::default();
        for (ms, good) in [(0, true), (100, false), (600, true), (700, true)] {
            series.ended(Nanos::from_millis(ms), Class::Low, good);
        }
        let columns = series.columns();
        assert_eq!(columns.attainment.keys().collect::<Vec<_>>(), ["low"]);
        assert_eq!(columns.attainment["low"], [Some(0.5), None, Some(1.0)]);
    }
}
