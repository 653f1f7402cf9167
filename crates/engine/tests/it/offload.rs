//! KV that was evicted comes back from the tier, over HTTP: what is reported, what is damaged, what is slow.

use crate::client::{PATIENCE, Server, config};
use plimsoll_engine::EngineConfig;
use plimsoll_engine::offload::{KvTier, MemoryTier, OffloadConfig, PER_PAGE_BYTES, PageKey, PageSlot, TierUsage};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// 16 pages, and a tier of many more.
fn small() -> EngineConfig {
    let offload = OffloadConfig { bytes: 4 << 20, deadline: PATIENCE, ..OffloadConfig::default() };
    EngineConfig { kv_tokens: 256, context_tokens: 256, offload, ..config() }
}

fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| 300 + (seed * 131 + i * 7) % 700).collect()
}

fn generate(server: &Server, ids: &[u32]) -> Value {
    server.ask("/generate", &json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 8, "temperature": 0}}))
}

fn metric(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn wait_metric(server: &Server, name: &str, wanted: impl Fn(f64) -> bool) {
    let until = Instant::now() + PATIENCE;
    while !wanted(metric(server, name)) {
        assert!(Instant::now() < until, "{name} stays at {}", metric(server, name));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Puts others in the place of whatever is cached, and waits until that is in the tier.
fn evict(server: &Server, seed: u32) {
    for seed in [seed, seed + 1] {
        let filler = generate(server, &prompt(seed, 240));
        assert_eq!(filler["meta_info"]["cached_tokens"], 0);
    }
    wait_metric(server, "sglang:hicache_backup_tokens_total", |tokens| tokens >= 240.0);
}

#[test]
fn a_second_turn_after_eviction_reports_host_hits() {
    let server = Server::start(small());
    let first = prompt(1, 100);
    let answer = generate(&server, &first);
    assert_eq!(answer["meta_info"]["cached_tokens_details"], json!({"device": 0, "host": 0}));
    evict(&server, 20);
    // The same, and what the conversation would say next.
    let mut second = first;
    second.extend(answer["output_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32));
    second.extend(prompt(2, 10));
    let without = Server::start(EngineConfig { offload: OffloadConfig::default(), ..small() });
    let expected = generate(&without, &second);
    let again = generate(&server, &second);
    assert_eq!(again["output_ids"], expected["output_ids"]);
    let meta = &again["meta_info"];
    assert_eq!(meta["cached_tokens_details"], json!({"device": 0, "host": 96}));
    assert_eq!(meta["cached_tokens"], 96);
    // On OpenAI's routes too, where it is asked for.
    evict(&server, 22);
    let body = json!({"prompt": second, "max_tokens": 4, "temperature": 0, "return_cached_tokens_details": true});
    let completion = server.ask("/v1/completions", &body);
    assert_eq!(completion["usage"]["prompt_tokens_details"]["cached_tokens"], 112);
    assert_eq!(completion["sglext"]["cached_tokens_details"], json!({"device": 0, "host": 112}));
    server.wait_empty();
    let of = |label: &str| {
        let text = server.get("/metrics").text();
        let line = text.lines().find(|line| line.contains(label)).unwrap_or_else(|| panic!("no {label}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(of("mode=\"host_hit\""), 208.0);
    assert_eq!(of("cache_source=\"host\""), 208.0);
    assert_eq!(of("sglang:load_back_tokens_total{"), 208.0);
    assert_eq!(of("sglang:load_back_duration_seconds_count{"), 2.0);
    assert_eq!(
        of("sglang:hicache_host_total_tokens{"),
        ((4 << 20) / (config().page_bytes() + PER_PAGE_BYTES) * 16) as f64
    );
    let info = server.get("/server_info").json();
    assert_eq!(info["enable_hierarchical_cache"], true);
    // Without a tier nothing is said of one.
    assert!(!without.get("/metrics").text().contains("hicache"));
    // A flush empties the tier as well.
    assert_eq!(server.get("/flush_cache").status, 200);
    wait_metric(&server, "sglang:hicache_host_used_tokens{", |tokens| tokens == 0.0);
    assert_eq!(generate(&server, &second)["meta_info"]["cached_tokens"], 0);
}

#[test]
fn a_corrupt_block_costs_a_recomputation_and_is_counted() {
    let server = Server::start(small());
    let first = prompt(1, 100);
    let answer = generate(&server, &first);
    evict(&server, 24);
    let faults = server.ask("/admin/faults", &json!({"corrupt_block": {"nth": 3}}));
    assert_eq!(faults["corrupt_block"], json!({"nth": 3}));
    let again = generate(&server, &first);
    assert_eq!(again["output_ids"], answer["output_ids"]);
    assert_eq!(again["meta_info"]["cached_tokens_details"], json!({"device": 0, "host": 32}));
    wait_metric(&server, "plimsoll_engine_offload_corrupt_pages_total", |count| count == 1.0);
    // It was computed anew and evicted again: now it is sound.
    evict(&server, 26);
    assert_eq!(generate(&server, &first)["meta_info"]["cached_tokens_details"], json!({"device": 0, "host": 96}));
    assert_eq!(metric(&server, "plimsoll_engine_offload_corrupt_pages_total"), 1.0);
    // Every one of them.
    evict(&server, 28);
    server.ask("/admin/faults", &json!({"corrupt_block": {}}));
    let last = generate(&server, &first);
    assert_eq!(last["output_ids"], answer["output_ids"]);
    assert_eq!(last["meta_info"]["cached_tokens"], 0);
    server.wait_empty();
}

/// Memory that takes its time.
#[derive(Debug)]
struct Slow {
    memory: MemoryTier,
    read: Duration,
}

impl KvTier for Slow {
    fn tells_all(&self) -> bool {
        true
    }
    fn put(&self, key: &PageKey, page: &[u8], crc: u32, gone: &mut Vec<PageKey>) -> bool {
        self.memory.put(key, page, crc, gone)
    }
    fn exists_prefix(&self, keys: &[PageKey]) -> usize {
        self.memory.exists_prefix(keys)
    }
    fn get(&self, keys: &[PageKey], into: &mut [PageSlot<'_>]) -> usize {
        std::thread::sleep(self.read);
        self.memory.get(keys, into)
    }
    fn remove(&self, key: &PageKey) {
        self.memory.remove(key);
    }
    fn clear(&self) {
        self.memory.clear();
    }
    fn usage(&self) -> TierUsage {
        self.memory.usage()
    }
}

#[test]
fn a_slow_tier_costs_its_deadline_and_no_more() {
    // Far longer than anybody's patience: whoever waited for it would be seen.
    let tier = Slow { memory: MemoryTier::new(4 << 20), read: 10 * PATIENCE };
    let offload =
        OffloadConfig { tier: Some(Arc::new(tier)), deadline: Duration::from_millis(50), ..OffloadConfig::default() };
    let server = Server::start(EngineConfig { offload, ..small() });
    let first = prompt(1, 100);
    let answer = generate(&server, &first);
    evict(&server, 30);
    let again = generate(&server, &first);
    assert_eq!(again["output_ids"], answer["output_ids"]);
    assert_eq!(again["meta_info"]["cached_tokens"], 0);
    assert_eq!(metric(&server, "plimsoll_engine_offload_late_loads_total"), 1.0);
    server.wait_empty();
    // One that waits in vain does not hold up the others, and can be cancelled. The worker is stuck, so nothing is lost but
    // pages; stopping does not wait for it either.
    server.ask("/admin/faults", &json!({"step_delay_us": 100}));
    let body = json!({"input_ids": prompt(20, 240), "rid": "gone", "stream": true,
        "sampling_params": {"max_new_tokens": 8, "temperature": 0}});
    drop(server.post("/generate", &body));
    server.post("/abort_request", &json!({"rid": "gone"}));
    assert_eq!(generate(&server, &prompt(3, 40))["meta_info"]["completion_tokens"], 8);
    server.wait_empty();
}

#[test]
fn the_tier_stays_within_its_bytes_however_much_is_evicted() {
    // Room for 20 pages.
    let bytes = 20 * (config().page_bytes() + PER_PAGE_BYTES);
    let offload = OffloadConfig { bytes, deadline: PATIENCE, ..OffloadConfig::default() };
    let server = Server::start(EngineConfig { offload, ..small() });
    for seed in 0..12 {
        generate(&server, &prompt(seed, 200));
        assert!(metric(&server, "sglang:hicache_host_used_tokens{") <= 320.0);
    }
    wait_metric(&server, "plimsoll_engine_offload_evicted_pages_total", |pages| pages > 50.0);
    wait_metric(&server, "sglang:hicache_host_used_tokens{", |tokens| tokens == 320.0);
    assert_eq!(metric(&server, "sglang:hicache_host_total_tokens{"), 320.0);
}
