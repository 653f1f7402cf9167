//! SGLang's load from its Prometheus gauges, for engines whose load endpoints are shut.
//!
//! The gauges move with each prefill batch and every 40 decode steps. Only the first rank of a tensor-parallel group
//! exports them unless the engine is told otherwise, so of several series of one DP rank the first is read.

use crate::prometheus;
use plimsoll_core::{LoadReport, Nanos, Rank};
use std::collections::BTreeMap;

/// `None` where the scrape has no running gauge.
pub(crate) fn reports(text: &str, now: Nanos) -> Option<Vec<LoadReport>> {
    let mut ranks: BTreeMap<Rank, LoadReport> = BTreeMap::new();
    let mut seen = false;
    for sample in prometheus::samples(text) {
        let Some(name) = sample.name.strip_prefix("sglang:") else { continue };
        if !matches!(name, "num_running_reqs" | "num_queue_reqs" | "num_used_tokens" | "max_total_num_tokens") {
            continue;
        }
        let rank = match sample.label("dp_rank") {
            None => Some(Rank(0)),
            Some(rank) => rank.parse().ok().map(Rank),
        };
        let Some(rank) = rank else { continue };
        let report = ranks.entry(rank).or_insert_with(|| LoadReport { rank, received: now, ..LoadReport::default() });
        let field = match name {
            "num_running_reqs" => {
                seen = true;
                &mut report.running_requests
            }
            "num_queue_reqs" => &mut report.waiting_requests,
            "num_used_tokens" => &mut report.used_kv_tokens,
            _ => &mut report.capacity_kv_tokens,
        };
        *field = field.or_else(|| sample.count());
    }
    seen.then(|| ranks.into_values().collect())
}
