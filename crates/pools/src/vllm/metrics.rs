//! vLLM's load from its Prometheus gauges.
//!
//! Gauges of one DP rank carry `engine="N"`; before data parallelism there was no such label, which is rank 0. Held KV
//! tokens are the usage fraction times the capacity: `kv_cache_size_tokens` where `vllm:cache_config_info` has it,
//! else blocks times block size, else unknown. The usage gauge was once called `vllm:gpu_cache_usage_perc`.

use crate::prometheus::{self, Sample};
use plimsoll_core::{LoadReport, Nanos, Rank};
use std::collections::BTreeMap;

/// What does not change while an engine runs.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Constants {
    pub(crate) block_size_tokens: Option<u32>,
    pub(crate) capacity_kv_tokens: Option<u64>,
    /// Distinct `engine` labels; 0 where there is no gauge.
    pub(crate) ranks: u16,
    pub(crate) has_gauges: bool,
}

/// Reads the constants of a scrape; of several ranks those of the first.
pub(crate) fn constants(text: &str) -> Constants {
    let mut out = Constants::default();
    let mut ranks = Vec::new();
    for sample in prometheus::samples(text) {
        match sample.name {
            "vllm:cache_config_info" if out.block_size_tokens.is_none() => {
                out.block_size_tokens = label(&sample, "block_size").and_then(|n| u32::try_from(n).ok());
                out.capacity_kv_tokens = capacity(&sample);
            }
            "vllm:num_requests_running" => {
                out.has_gauges = true;
                if let Some(rank) = rank(&sample)
                    && !ranks.contains(&rank)
                {
                    ranks.push(rank);
                }
            }
            _ => {}
        }
    }
    out.ranks = u16::try_from(ranks.len()).unwrap_or(u16::MAX);
    out
}

/// One report per rank, and the start time of the process where the scrape has it. `None` where the scrape has no
/// running gauge at all: that is no report, not an idle engine.
pub(crate) fn reports(text: &str, capacity_kv_tokens: Option<u64>, now: Nanos) -> Option<Vec<LoadReport>> {
    let mut ranks: BTreeMap<Rank, (LoadReport, Option<f64>)> = BTreeMap::new();
    let mut seen = false;
    for sample in prometheus::samples(text) {
        let Some(name) = sample.name.strip_prefix("vllm:") else { continue };
        let gauge = matches!(
            name,
            "num_requests_running"
                | "num_requests_waiting"
                | "kv_cache_usage_perc"
                | "gpu_cache_usage_perc"
                | "cache_config_info"
        );
        let Some(rank) = rank(&sample).filter(|_| gauge) else { continue };
        let (report, usage) = ranks.entry(rank).or_default();
        report.rank = rank;
        report.received = now;
        match name {
            // An engine that serves several names has one series for each; they add up.
            "num_requests_running" => {
                seen = true;
                report.running_requests = sum(report.running_requests, sample.count());
            }
            "num_requests_waiting" => report.waiting_requests = sum(report.waiting_requests, sample.count()),
            "cache_config_info" => report.capacity_kv_tokens = capacity(&sample).or(report.capacity_kv_tokens),
            _ => *usage = Some(sample.value).filter(|u| (0.0..=1.0).contains(u)).or(*usage),
        }
    }
    let finish = |(mut report, usage): (LoadReport, Option<f64>)| {
        report.capacity_kv_tokens = report.capacity_kv_tokens.or(capacity_kv_tokens);
        report.used_kv_tokens = usage.zip(report.capacity_kv_tokens).map(|(u, c)| (u * c as f64).round() as u64);
        report
    };
    seen.then(|| ranks.into_values().map(finish).collect())
}

fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    }
}

fn rank(sample: &Sample<'_>) -> Option<Rank> {
    match sample.label("engine") {
        None => Some(Rank(0)),
        Some(engine) => engine.parse().ok().map(Rank),
    }
}

/// vLLM writes `None` for what is not set.
fn label(sample: &Sample<'_>, key: &str) -> Option<u64> {
    sample.label(key)?.parse().ok()
}

fn capacity(sample: &Sample<'_>) -> Option<u64> {
    let blocks = || label(sample, "num_gpu_blocks")?.checked_mul(label(sample, "block_size")?);
    label(sample, "kv_cache_size_tokens").or_else(blocks).filter(|n| *n > 0)
}
