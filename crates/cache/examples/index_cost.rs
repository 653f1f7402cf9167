//! What the prefix index costs: ingest, match, memory. `cargo run --release -p plimsoll-cache --example index_cost`
//!
//! Goals: at least 10 M blocks/s ingest on one core, at most 1 us for a 512-block match, flat to 1,024 instances, at most 40 bytes per block and
//! instance, memory back after everything is removed. CPU time of this thread is what is printed, so that a busy machine changes little.

use plimsoll_cache::index::{Holder, PrefixIndex};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

fn cpu_s() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Chained ids: as good as hashes here, and made in no time.
fn chain(prefix: u64, session: u64, shared: usize, blocks: usize) -> Vec<u64> {
    let mut hash = prefix;
    (0..blocks)
        .map(|at| {
            let id = if at < shared { at as u64 } else { session << 20 | at as u64 };
            let mut x = hash.rotate_left(23) ^ id.wrapping_add(0x9e37_79b9_7f4a_7c15);
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            hash = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            hash
        })
        .collect()
}

fn main() {
    println!(
        "| instances | distinct blocks | block-instances | ingest M blocks/s | remove M blocks/s | 512-block match ns | bytes per block-instance | left when empty |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for instances in [1u16, 8, 64, 256, 1_024] {
        let sessions: Vec<Vec<u64>> = (0..4_000u64).map(|s| chain(s % 8, s, 32, 512)).collect();
        let mut index = PrefixIndex::default();
        let mut ingest = Vec::new();
        let mut blocks = 0u64;
        // Each session lives on one instance, every eighth on another one too; the system prompts on all.
        for (at, session) in sessions.iter().enumerate() {
            let homes = [(at as u16 * 7) % instances, (at as u16 * 13 + 5) % instances];
            let homes = if at % 8 == 0 { &homes[..] } else { &homes[..1] };
            for home in homes {
                let began = cpu_s();
                // As engines report them: a prefill's blocks, then turns of 16.
                let mut parent = None;
                for piece in [&session[..256], &session[256..]].into_iter().flat_map(|half| half.chunks(64)) {
                    blocks += index.store(*home, parent, piece).new;
                    parent = piece.last().copied();
                }
                ingest.push(cpu_s() - began);
            }
        }
        let ingested: f64 = ingest.iter().sum();
        for prefix in 0..8 {
            for instance in 0..instances {
                index.store(instance, None, &chain(prefix, 0, 32, 32));
            }
        }
        let (bytes, block_instances, distinct) = (index.bytes(), index.block_instances(), index.blocks());
        let began = cpu_s();
        let mut sum = 0u64;
        let rounds = 20;
        for _ in 0..rounds {
            for session in &sessions {
                sum += u64::from(black_box(index.matched(black_box(session))).longest());
            }
        }
        let match_ns = (cpu_s() - began) * 1e9 / (rounds * sessions.len()) as f64;
        assert_eq!(sum, (rounds * sessions.len() * 512) as u64);
        let began = cpu_s();
        let mut removed = 0u64;
        for (at, session) in sessions.iter().enumerate() {
            let home = (at as u16 * 7) % instances;
            for hash in session.iter().rev() {
                removed += u64::from(index.remove(home as Holder, *hash));
            }
        }
        let removing = cpu_s() - began;
        for instance in 0..instances {
            index.clear(instance);
        }
        println!(
            "| {instances} | {distinct} | {block_instances} | {:.1} | {:.1} | {match_ns:.0} | {:.1} | {:.1} % |",
            blocks as f64 / ingested / 1e6,
            removed as f64 / removing / 1e6,
            bytes as f64 / block_instances as f64,
            index.bytes() as f64 / bytes as f64 * 100.0
        );
    }
}
