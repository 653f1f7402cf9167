//! The offload tier, under SGLang's names for its host memory where it has them.

use super::{Page, Reading};
use crate::driver::Size;
use crate::offload::{OffloadStats, PER_PAGE_BYTES};
use crate::stats::Stats;

/// Nothing for an engine that does not offload.
pub(super) fn write(page: &mut Page<'_>, size: &Size) {
    if page.ranks.iter().all(|stats| stats.offload.is_none()) {
        return;
    }
    let of = |stats: &Stats| stats.offload.unwrap_or_default();
    let tokens = |pages: u64| (pages * size.page_tokens as u64) as f64;
    let page_bytes = size.kv_bytes / (size.kv_tokens / size.page_tokens).max(1);
    let bytes = |pages: u64| (pages * page_bytes as u64) as f64;
    let room = |s: &OffloadStats| s.capacity_bytes.map_or(0, |bytes| bytes / (page_bytes + PER_PAGE_BYTES));
    let gauge: Reading<'_> = &|s| tokens(of(s).held_pages as u64);
    page.one("sglang:hicache_host_used_tokens", "gauge", "KV tokens in the offload tier", gauge);
    if page.ranks.iter().all(|stats| of(stats).capacity_bytes.is_some()) {
        let help = "KV tokens that fit into the offload tier";
        page.one("sglang:hicache_host_total_tokens", "gauge", help, |s| tokens(room(&of(s)) as u64));
    }
    let counters: [(&str, &str, Reading<'_>); 5] = [
        ("hicache_backup_tokens_total", "KV tokens offloaded", &|s| tokens(of(s).put_pages)),
        ("hicache_backup_bytes_total", "Bytes offloaded", &|s| bytes(of(s).put_pages)),
        ("hicache_backup_dropped_tokens_total", "Evicted KV tokens lost because offloading was behind", &|s| {
            tokens(of(s).lost_pages)
        }),
        ("load_back_tokens_total", "KV tokens loaded back", &|s| tokens(of(s).loaded_pages)),
        ("load_back_bytes_total", "Bytes loaded back", &|s| bytes(of(s).loaded_pages)),
    ];
    for (name, help, value) in counters {
        page.one(&format!("sglang:{name}"), "counter", help, value);
    }
    let durations: Vec<_> = page.ranks.iter().map(|stats| of(stats).load_time).collect();
    page.histograms("sglang:load_back_duration_seconds", "First page asked for to last one taken", &durations);
    let counters: [(&str, &str, Reading<'_>); 5] = [
        ("evicted_pages_total", "Pages that the offload tier dropped for newer ones", &|s| of(s).evicted_pages as f64),
        ("refused_pages_total", "Evicted pages that the offload tier did not take", &|s| of(s).refused_pages as f64),
        ("corrupt_pages_total", "Pages that came back with a wrong checksum and were computed", &|s| {
            of(s).corrupt_pages as f64
        }),
        ("late_loads_total", "Loads that were given up at their deadline", &|s| of(s).late_loads as f64),
        ("refused_loads_total", "Loads that were not begun because too many were", &|s| of(s).refused_loads as f64),
    ];
    for (name, help, value) in counters {
        page.one(&format!("plimsoll_engine_offload_{name}"), "counter", help, value);
    }
}
