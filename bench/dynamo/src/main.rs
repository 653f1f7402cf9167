//! Our prefix index beside that of `dynamo-kv-router`, doing the same work in the same process.
//!
//! `cargo run --release --manifest-path bench/dynamo/Cargo.toml` prints a table with the median of interleaved rounds. CPU
//! time is what is compared, so that a busy machine changes little; the machine is printed with it.

mod measure;
mod ours;
mod theirs;
mod work;

use clap::Parser;
use measure::{Index, cpu_s, live_bytes, median};
use ours::Ours;
use std::hint::black_box;
use theirs::Theirs;

#[derive(Parser)]
struct Args {
    /// Rounds; in each both are measured, in turns first.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Sessions of 512 blocks.
    #[arg(long, default_value_t = 4_000)]
    sessions: u64,
    /// Engines to measure with.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64, 256, 1_024])]
    engines: Vec<u16>,
}

/// One round's figures of one contender.
#[derive(Clone, Copy, Default)]
struct Round {
    ingest_blocks_per_s: f64,
    bytes_per_block_instance: f64,
    /// 512 blocks that one or two engines hold, behind a system prompt that all hold.
    session_match_ns: f64,
    /// 512 blocks that all engines hold.
    shared_match_ns: f64,
    /// Live bytes after four rounds of eviction and new sessions, and after everything is removed, over those when full.
    churned: f64,
    emptied: f64,
}

fn main() {
    let args = Args::parse();
    println!("{}\n", machine());
    println!(
        "| engines | index | ingest M blocks/s | B per block-instance | match 512, own session ns | match 512, held by all ns | after churn | when empty |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for engines in &args.engines {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..args.rounds {
            if round % 2 == 0 {
                ours.push(measured::<Ours>(*engines, args.sessions));
                theirs.push(measured::<Theirs>(*engines, args.sessions));
            } else {
                theirs.push(measured::<Theirs>(*engines, args.sessions));
                ours.push(measured::<Ours>(*engines, args.sessions));
            }
        }
        for (name, rounds) in [("plimsoll", &ours), ("dynamo", &theirs)] {
            let of = |figure: fn(&Round) -> f64| median(&mut rounds.iter().map(figure).collect::<Vec<_>>());
            println!(
                "| {engines} | {name} | {:.1} | {:.1} | {:.0} | {:.0} | {:.0} % | {:.1} % |",
                of(|r| r.ingest_blocks_per_s) / 1e6,
                of(|r| r.bytes_per_block_instance),
                of(|r| r.session_match_ns),
                of(|r| r.shared_match_ns),
                of(|r| r.churned) * 100.0,
                of(|r| r.emptied) * 100.0,
            );
        }
    }
    println!("\n{}", machine());
}

fn measured<I: Index>(engines: u16, sessions: u64) -> Round {
    let mut round = Round::default();
    let events = work::sessions(0, engines, sessions);
    let told: usize = events.iter().map(|event| event.blocks.len()).sum();
    let mut distinct: Vec<(u16, u64)> =
        events.iter().flat_map(|event| event.blocks.iter().map(|block| (event.engine, block.chained))).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let block_instances = distinct.len();
    drop(distinct);
    let kept = events.clone();
    let asked: Vec<I::Asked> =
        (0..sessions.min(1_000)).map(|nth| I::asked(&work::session(0, nth, work::SESSION_BLOCKS))).collect();
    // Events are consumed by `apply`; what is alive before is counted without them.
    let before = live_bytes() - bytes(&events);
    let mut index = I::new();
    round.ingest_blocks_per_s = told as f64 / index.apply(events);
    let full = live_bytes() - before;
    round.bytes_per_block_instance = full as f64 / block_instances as f64;

    round.session_match_ns = match_ns(&index, &asked, 20, work::SESSION_BLOCKS as u64);

    // Churn: everything goes, as much of something new comes.
    let mut last = kept;
    for era in 1..=4 {
        index.remove(&last);
        let new = work::sessions(era, engines, sessions);
        last = new.clone();
        index.apply(new);
    }
    // `last` took the place of `kept`, and is as large.
    round.churned = (live_bytes() - before) as f64 / full as f64;
    index.remove(&last);
    round.emptied = (live_bytes() - before) as f64 / full as f64;
    drop(index);

    let mut index = I::new();
    index.apply(work::shared(engines));
    let asked = [I::asked(&work::session(1 << 20, 0, work::SESSION_BLOCKS))];
    round.shared_match_ns = match_ns(&index, &asked, 2_000, u64::from(engines) * work::SESSION_BLOCKS as u64);
    round
}

/// Mean CPU time of a match; each has to find at least so much.
fn match_ns<I: Index>(index: &I, asked: &[I::Asked], rounds: usize, least: u64) -> f64 {
    for one in asked {
        assert!(index.matched(one) >= least, "a match is missing");
    }
    let began = cpu_s();
    for _ in 0..rounds {
        for one in asked {
            black_box(index.matched(black_box(one)));
        }
    }
    (cpu_s() - began) * 1e9 / (rounds * asked.len()) as f64
}

fn bytes(events: &Vec<work::Stored>) -> i64 {
    let blocks: usize = events.iter().map(|event| event.blocks.capacity() * size_of::<work::Block>()).sum();
    (events.capacity() * size_of::<work::Stored>() + blocks) as i64
}

fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown").to_owned();
    let cores = info.matches("processor\t").count();
    let load = read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ");
    format!("{}, {cores} cores, load {load}", model.trim_start_matches(['\t', ' ', ':']))
}
