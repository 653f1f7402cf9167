//! What has been sent and what came back, shared between the driver and the progress display.

use super::stream::{Answer, Refusal};
use crate::Failure;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Times are kept in microseconds with three digits, up to an hour.
const HIGHEST_US: u64 = 3_600_000_000;

pub(super) struct Tally {
    counts: Mutex<Counts>,
}

/// The state of the count; `requests_done` is always `completed` plus the errors.
#[derive(Clone)]
pub(super) struct Counts {
    pub(super) begun: Instant,
    /// Set with the last answer.
    pub(super) ended: Option<Instant>,
    /// Calls that the workload has.
    pub(super) total: u64,
    pub(super) running: u64,
    pub(super) completed: u64,
    pub(super) repeats: u64,
    pub(super) errors: BTreeMap<String, u64>,
    /// One message per code, for a person.
    pub(super) messages: BTreeMap<String, String>,
    pub(super) ttft_us: Histogram<u64>,
    pub(super) itl_us: Histogram<u64>,
    pub(super) output_tokens: u64,
    pub(super) prompt_tokens: u64,
    /// Of the answers that said so.
    cached_tokens: u64,
    cached_of_tokens: u64,
    pub(super) engines: BTreeMap<String, EngineCounts>,
}

#[derive(Clone, Default)]
pub(super) struct EngineCounts {
    /// Empty where the gateway did not say.
    pub(super) url: String,
    pub(super) requests: u64,
    pub(super) output_tokens: u64,
    pub(super) prompt_tokens: u64,
    cached_tokens: u64,
    cached_of_tokens: u64,
}

impl EngineCounts {
    /// `None` before its first answer.
    pub(super) fn hit_rate(&self) -> Option<f64> {
        (self.cached_of_tokens > 0).then(|| self.cached_tokens as f64 / self.cached_of_tokens as f64)
    }
}

impl Counts {
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }
    pub(super) fn done(&self) -> u64 {
        self.completed + self.failed()
    }
    pub(super) fn elapsed(&self) -> Duration {
        self.ended.map_or_else(|| self.begun.elapsed(), |ended| ended - self.begun)
    }
    pub(super) fn output_tokens_per_s(&self) -> f64 {
        self.output_tokens as f64 / self.elapsed().as_secs_f64().max(1e-9)
    }
    /// Share of prompt tokens that engines took from their cache; `None` while none has said.
    pub(super) fn hit_rate(&self) -> Option<f64> {
        (self.cached_of_tokens > 0).then(|| self.cached_tokens as f64 / self.cached_of_tokens as f64)
    }
}

/// A request in flight; dropping it ends that.
pub(super) struct Running<'a>(&'a Tally);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
    }
}

impl Tally {
    /// `engines`: id and address of those known from the start, so that an idle one shows too.
    pub(super) fn new(total: u64, engines: BTreeMap<String, String>) -> Result<Self, Failure> {
        let engines = engines.into_iter().map(|(id, url)| (id, EngineCounts { url, ..EngineCounts::default() }));
        Ok(Tally {
            counts: Mutex::new(Counts {
                begun: Instant::now(),
                ended: None,
                total,
                running: 0,
                completed: 0,
                repeats: 0,
                errors: BTreeMap::new(),
                messages: BTreeMap::new(),
                ttft_us: histogram()?,
                itl_us: histogram()?,
                output_tokens: 0,
                prompt_tokens: 0,
                cached_tokens: 0,
                cached_of_tokens: 0,
                engines: engines.collect(),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn snapshot(&self) -> Counts {
        self.lock().clone()
    }

    pub(super) fn started(&self) -> Running<'_> {
        self.lock().running += 1;
        Running(self)
    }

    pub(super) fn repeated(&self) {
        self.lock().repeats += 1;
    }

    pub(super) fn completed(&self, answer: &Answer) {
        let mut counts = self.lock();
        counts.ended = Some(Instant::now());
        counts.completed += 1;
        record(&mut counts.ttft_us, answer.ttft);
        answer.gaps.iter().for_each(|gap| record(&mut counts.itl_us, *gap));
        let usage = answer.usage;
        let output = usage.map_or(answer.gaps.len() as u64 + 1, |usage| usage.completion_tokens);
        let prompt = usage.map_or(0, |usage| usage.prompt_tokens);
        let cached = usage.and_then(|usage| usage.cached_tokens());
        counts.output_tokens += output;
        counts.prompt_tokens += prompt;
        if let Some(cached) = cached {
            counts.cached_tokens += cached;
            counts.cached_of_tokens += prompt;
        }
        if let Some(id) = &answer.engine {
            let engine = counts.engines.entry(id.clone()).or_default();
            engine.requests += 1;
            engine.output_tokens += output;
            engine.prompt_tokens += prompt;
            if let Some(cached) = cached {
                engine.cached_tokens += cached;
                engine.cached_of_tokens += prompt;
            }
        }
    }

    pub(super) fn failed(&self, refusal: &Refusal) {
        let mut counts = self.lock();
        counts.ended = Some(Instant::now());
        *counts.errors.entry(refusal.code.clone()).or_default() += 1;
        counts.messages.entry(refusal.code.clone()).or_insert_with(|| refusal.message.clone());
        if let Some(id) = &refusal.engine {
            counts.engines.entry(id.clone()).or_default().requests += 1;
        }
    }
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_micros()).unwrap_or(HIGHEST_US).clamp(1, HIGHEST_US));
}

fn histogram() -> Result<Histogram<u64>, Failure> {
    Histogram::new_with_bounds(1, HIGHEST_US, 3).map_err(|error| Failure::failed(format!("histogram: {error:?}")))
}
