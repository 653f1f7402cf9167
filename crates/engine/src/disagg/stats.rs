//! What SGLang reports about transfers.

use std::time::Duration;

/// Counts in buckets with these upper bounds.
#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    pub(crate) bounds: &'static [f64],
    /// Not cumulated; the last one is +Inf.
    pub(crate) counts: Vec<u64>,
    pub(crate) sum: f64,
}

impl Buckets {
    fn new(bounds: &'static [f64]) -> Self {
        Buckets { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn observe(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }
}

const GB_S: &[f64] = &[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];
const MS: &[f64] =
    &[0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0, 100_000.0, 300_000.0];
const MB: &[f64] = &[0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0];

/// Of all transfers of one engine since its start.
#[derive(Clone, Debug)]
pub(crate) struct TransferStats {
    pub(crate) bootstrap_failed: u64,
    pub(crate) transfer_failed: u64,
    pub(crate) speed_gb_s: Buckets,
    /// First page to last word.
    pub(crate) latency_ms: Buckets,
    /// Arrival to both legs being there.
    pub(crate) bootstrap_ms: Buckets,
    /// From there to decode having pages.
    pub(crate) alloc_ms: Buckets,
    pub(crate) total_mb: Buckets,
    /// Of the last transfer; 0 before the first.
    pub(crate) last_speed_gb_s: f64,
    pub(crate) last_latency_ms: f64,
}

impl Default for TransferStats {
    fn default() -> Self {
        TransferStats {
            bootstrap_failed: 0,
            transfer_failed: 0,
            speed_gb_s: Buckets::new(GB_S),
            latency_ms: Buckets::new(MS),
            bootstrap_ms: Buckets::new(MS),
            alloc_ms: Buckets::new(MS),
            total_mb: Buckets::new(MB),
            last_speed_gb_s: 0.0,
            last_latency_ms: 0.0,
        }
    }
}

impl TransferStats {
    pub(crate) fn met(&mut self, after: Duration) {
        self.bootstrap_ms.observe(ms(after));
    }

    pub(crate) fn allocated(&mut self, after: Duration) {
        self.alloc_ms.observe(ms(after));
    }

    pub(crate) fn landed(&mut self, bytes: u64, took: Duration) {
        self.total_mb.observe(bytes as f64 / 1e6);
        self.latency_ms.observe(ms(took));
        self.last_latency_ms = ms(took);
        if bytes > 0 && !took.is_zero() {
            self.last_speed_gb_s = bytes as f64 / 1e9 / took.as_secs_f64();
            self.speed_gb_s.observe(self.last_speed_gb_s);
        }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
