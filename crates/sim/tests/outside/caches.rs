//! OC4 and OC5: the prefix cache on real block ids, against published and recomputed hit rates.

use crate::shared::file;
use plimsoll_sim::names;
use plimsoll_sim::prefix_cache::PrefixCache;
use plimsoll_workload::Prompt;
use plimsoll_workload::traces::Trace;

/// Every block of a prompt, the incomplete last one included, as the published replay counts them.
fn chain(prompt: &Prompt, whole: bool) -> Vec<u64> {
    let mut chain = Vec::new();
    names::extend(&mut chain, prompt);
    if let Some(tail) = prompt.tail.filter(|_| !whole) {
        chain.push(names::name(chain.last().copied().unwrap_or(0), tail.id));
    }
    chain
}

/// Touches a chain; returns leading blocks that were there.
fn touch(cache: &mut PrefixCache, chain: &[u64], capacity: u64) -> u64 {
    let probe = cache.probe(chain);
    let end = cache.pin(chain, probe.blocks);
    let committed = cache.commit(end, chain, probe.blocks as usize);
    cache.release(committed.end);
    cache.evict(cache.blocks().saturating_sub(capacity), None);
    probe.blocks
}

#[test]
fn oc4_one_lru_over_the_conversation_trace() {
    let Some(path) = file("OC4", "traces/mooncake_conversation.jsonl.zst") else { return };
    // Blocks of 512 and the share of block references that hit, as printed with one decimal (two for no limit).
    let cases = [(5_859, 13.6, 0.05), (20_000, 28.8, 0.05), (50_000, 35.5, 0.05), (u64::MAX, 36.64, 0.005)];
    let mut caches = cases.map(|_| PrefixCache::default());
    let (mut hits, mut asked, mut shares, mut requests) = ([0u64; 4], 0u64, 0.0, 0u32);
    for session in Trace::open(&path).unwrap() {
        let prompt = &session.unwrap().calls[0].prompt;
        let chain = chain(prompt, false);
        asked += chain.len() as u64;
        requests += 1;
        for (at, cache) in caches.iter_mut().enumerate() {
            let hit = touch(cache, &chain, cases[at].0);
            hits[at] += hit;
            if cases[at].0 == u64::MAX {
                // In tokens: the last block is rarely a whole one.
                shares += (hit * prompt.block_tokens).min(prompt.tokens()) as f64 / prompt.tokens() as f64;
            }
        }
    }
    assert_eq!((requests, asked), (12_031, 288_500));
    let rate = |at: usize| hits[at] as f64 / asked as f64 * 100.0;
    for (at, (blocks, percent, tolerance)) in cases.into_iter().enumerate() {
        println!("OC4 {blocks} blocks: {:.3} %, expected {percent}", rate(at));
        assert!((rate(at) - percent).abs() <= tolerance, "{blocks}: {}", rate(at));
    }
    let mean = shares / f64::from(requests) * 100.0;
    println!("OC4 mean over requests, no limit: {mean:.2} %, expected 40.9");
    assert!((mean - 40.9).abs() <= 0.05);
    // FAST'25, figure 9: 41 % of the most at 3 M tokens, all of it at 50 M; 5,859 blocks are 3 M tokens.
    let of_most = rate(0) / rate(3) * 100.0;
    println!("OC4 at 3 M tokens: {of_most:.1} % of the most, printed 41");
    assert!((of_most - 41.0).abs() <= 5.0);
}

#[test]
fn oc5_sessions_of_agents_without_a_limit() {
    let Some(path) = file("OC5", "traces/agentic_weka_compact.jsonl.zst") else { return };
    let (mut calls, mut tokens, mut hit) = (0u64, 0u64, 0u64);
    for session in Trace::open(&path).unwrap() {
        let mut cache = PrefixCache::default();
        for call in &session.unwrap().calls {
            calls += 1;
            tokens += call.prompt.tokens();
            hit += touch(&mut cache, &chain(&call.prompt, true), u64::MAX) * call.prompt.block_tokens;
        }
    }
    let rate = hit as f64 / tokens as f64 * 100.0;
    println!("OC5 {calls} calls, {rate:.3} % of tokens, expected 96.38");
    assert_eq!(calls, 33_825);
    assert!((rate - 96.38).abs() <= 0.01, "{rate}");
}
