//! What the engine counts, for `/v1/loads` and `/metrics`.

use crate::core::LegCounts;
use crate::offload::OffloadStats;

/// Upper bounds of SGLang's latency buckets in use here, in seconds.
pub const BUCKETS_S: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0];

#[derive(Clone, Copy, Debug, Default)]
pub struct Histogram {
    /// Observations per bucket, not cumulated; the last one is +Inf.
    pub counts: [u64; BUCKETS_S.len() + 1],
    pub sum_s: f64,
}

impl Histogram {
    pub fn observe(&mut self, seconds: f64) {
        self.observe_times(seconds, 1);
    }

    /// So many equal ones.
    pub fn observe_times(&mut self, seconds: f64, times: u64) {
        let bucket = BUCKETS_S.partition_point(|bound| *bound < seconds);
        self.counts[bucket] += times;
        self.sum_s += seconds * times as f64;
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Prompt tokens of the last requests that were prefilled, and what of them was cached; older ones count less and less.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecentHits {
    prompt: f64,
    cached: f64,
}

impl RecentHits {
    /// What a request counts, when the next one comes: half after 34 of them.
    const KEPT: f64 = 0.98;

    pub fn observe(&mut self, prompt_tokens: usize, cached_tokens: usize) {
        self.prompt = self.prompt * Self::KEPT + prompt_tokens as f64;
        self.cached = self.cached * Self::KEPT + cached_tokens as f64;
    }

    /// Share of prompt tokens that had to be computed: all, as long as nothing is known.
    #[must_use]
    pub fn miss_rate(&self) -> f64 {
        if self.prompt > 0.0 { (1.0 - self.cached / self.prompt).clamp(0.0, 1.0) } else { 1.0 }
    }
}

/// A snapshot of one rank, taken after every step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    // Now.
    pub running: usize,
    pub waiting: usize,
    /// Prompt tokens that wait for prefill: whole prompts in the queue, the rest of those in chunks.
    pub waiting_tokens: usize,
    /// Of them, those that will have to be computed, as far as can be told.
    pub waiting_uncached_tokens: usize,
    /// What the last requests say of the cache.
    pub recent: RecentHits,
    pub held_pages: usize,
    pub idle_cached_pages: usize,
    pub total_pages: usize,
    /// Requests on their way to or from another engine; they are not among the waiting and the running.
    pub(crate) legs: LegCounts,
    /// `None`: evicted pages are forgotten.
    pub offload: Option<OffloadStats>,
    /// Tokens per second over the last second with work.
    pub generation_rate: f64,
    // Since the start.
    pub steps: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// Of the cached ones, those that came from the offload tier.
    pub host_tokens: u64,
    pub computed_prompt_tokens: u64,
    pub generated_tokens: u64,
    pub requests: u64,
    pub aborted: u64,
    pub refused: u64,
    pub retractions: u64,
    pub evicted_pages: u64,
    /// Steps of all ranks together, this one's part in them empty or not.
    pub joint_steps: u64,
    /// Time of its own in those steps, and time it waited for the slowest rank; the sum is the same for every rank.
    pub busy_ns: u64,
    pub idle_ns: u64,
    /// Timing mode: joint steps that were not done when they should have been, and time given up for them.
    pub late_steps: u64,
    pub lost_ns: u64,
    /// Time of steps outside the model: deciding what to compute, pages, counting, posting; and choosing tokens.
    pub scheduling_ns: u64,
    pub sampling_ns: u64,
    /// Processor time of the step loop, outside the model and the sampling: what a schedule costs however busy the machine
    /// is. One thread steps all ranks, so the first rank has it and the others have none.
    pub loop_cpu_ns: u64,
    /// Processor time of the task that puts tokens into mailboxes and wakes readers.
    pub delivery_cpu_ns: u64,
    pub prefill_busy_us: u64,
    /// Steps, sum of batch, of time in us, of batch squared, of batch x time, of generated tokens; decode-only steps.
    pub decode_moments: [u64; 6],
    pub ttft: Histogram,
    pub itl: Histogram,
    pub e2e: Histogram,
    pub queue_time: Histogram,
}

impl Stats {
    /// Share of prompt tokens that came from the cache since the start.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.prompt_tokens == 0 { 0.0 } else { self.cached_tokens as f64 / self.prompt_tokens as f64 }
    }
}
