//! The funnel on every trace that names its blocks, against LRU caches simulated block by block, and against the curves that were
//! printed for them. (The other traces have lengths only: nothing of theirs can be a hit.)

use plimsoll_cache::chain::NameFormat;
use plimsoll_cache::funnel::{Arrival, CURVE_EIGHTHS, CellKey, Curve, Funnel, FunnelConfig, Layer, Reported, RunStack};
use plimsoll_cache::view::Family;
use plimsoll_core::{Class, InstanceId, Nanos, Rank, RequestId, Target};
use plimsoll_workload::traces::{Format, Trace};
use plimsoll_workload::{Prompt, Session, Spread, timeline};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

const MOONCAKE: &str = "mooncake_conversation.jsonl.zst";
const AGENTIC: &str = "agentic_weka_compact.jsonl.zst";

fn trace(test: &str, name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("PLIMSOLL_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")), PathBuf::from);
    let path = root.join("traces").join(name);
    if !path.is_file() {
        println!("skipped: {test} (no PLIMSOLL_SHARED)");
        return None;
    }
    Some(path)
}

/// A prompt's block ids as chained names; `whole`: without the incomplete last block.
fn names(prompt: &Prompt, whole: bool) -> Vec<u64> {
    let mut hash = 0u64;
    let tail = prompt.tail.filter(|_| !whole).map(|tail| tail.id);
    let next = |id: u64| {
        let mut x = hash.rotate_left(23) ^ id.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash = x ^ (x >> 31);
        hash
    };
    prompt.block_ids().chain(tail).map(next).collect()
}

/// Blocks by number, in the order they were first seen, so that caches of blocks are plain lists.
#[derive(Default)]
struct Numbers(HashMap<u64, usize>);

impl Numbers {
    fn of(&mut self, path: &[u64]) -> Vec<usize> {
        let mut next = self.0.len();
        let mut number = |name: &u64| {
            *self.0.entry(*name).or_insert_with(|| {
                next += 1;
                next - 1
            })
        };
        path.iter().map(&mut number).collect()
    }
}

/// LRU, block by block: a ring of those held, from the youngest to the oldest. Nothing of the funnel's own method is in it.
struct Lru {
    capacity: usize,
    held: usize,
    /// By block: the one touched before it and the one touched after it; itself where it is not held. The first place is
    /// the ring's beginning and end, the block behind it the youngest.
    older: Vec<u32>,
    younger: Vec<u32>,
}

impl Lru {
    fn new(capacity: usize) -> Lru {
        Lru { capacity, held: 0, older: vec![0], younger: vec![0] }
    }

    /// Leading blocks held; then touches all, leaf first.
    fn touch(&mut self, path: &[usize]) -> u64 {
        let most = path.iter().max().map_or(0, |block| block + 2);
        for at in self.older.len()..most {
            self.older.push(at as u32);
            self.younger.push(at as u32);
        }
        let hits = path.iter().take_while(|block| self.older[**block + 1] as usize != **block + 1).count();
        for block in path.iter().rev() {
            self.take_out(block + 1);
            self.put_in(block + 1);
        }
        while self.held > self.capacity {
            self.take_out(self.younger[0] as usize);
        }
        hits as u64
    }

    fn take_out(&mut self, at: usize) {
        let (older, younger) = (self.older[at] as usize, self.younger[at] as usize);
        if older == at {
            return;
        }
        (self.younger[older], self.older[younger]) = (younger as u32, older as u32);
        (self.older[at], self.younger[at]) = (at as u32, at as u32);
        self.held -= 1;
    }

    fn put_in(&mut self, at: usize) {
        let youngest = self.older[0] as usize;
        (self.older[at], self.younger[at]) = (youngest as u32, 0);
        (self.younger[youngest], self.older[0]) = (at as u32, at as u32);
        self.held += 1;
    }
}

/// Four ranks; a session's calls go to one of them, every seventh to the next. `points`: those of the curve that are simulated, the
/// fleet's own size always first.
fn compare(sessions: &[Session], format: Format, rank_blocks: u64, points: &[usize]) {
    let block = sessions[0].calls[0].prompt.block_tokens;
    let spread = Spread { window: Nanos::from_secs(4 * 3_600), longest_pause: Nanos::from_secs(60), seed: 11 };
    let moments = timeline(sessions, (format == Format::Agentic).then_some(spread));
    let target = |at: usize| Target { instance: InstanceId(at as u32), rank: Rank(0) };
    let config = FunnelConfig { max_blocks: 1 << 24, max_nodes: 1 << 22, ..FunnelConfig::default() };
    let mut funnel = Funnel::new(config);
    let mut ranks: Vec<Lru> = (0..4).map(|_| Lru::new(rank_blocks as usize)).collect();
    for at in 0..ranks.len() {
        funnel.set_capacity(target(at), Some(rank_blocks * block));
    }
    let size = |point: &usize| (4 * rank_blocks * CURVE_EIGHTHS[*point] / 8) as usize;
    let mut pools: Vec<Lru> = points.iter().map(|point| Lru::new(size(point))).collect();
    let mut all = Lru::new(usize::MAX);
    let mut numbers = Numbers::default();
    let (mut curve, mut ceiling, mut placed, mut tokens) = (vec![0; points.len()], 0, 0, 0);
    for (number, moment) in moments.iter().enumerate() {
        let prompt = &sessions[moment.session].calls[moment.call].prompt;
        let path = names(prompt, true);
        let blocks = numbers.of(&path);
        let most = prompt.tokens().saturating_sub(1) / block;
        let home = (moment.session + usize::from(number % 7 == 0)) % 4;
        tokens += prompt.tokens();
        ceiling += all.touch(&blocks).min(most) * block;
        for (sum, pool) in curve.iter_mut().zip(&mut pools) {
            *sum += pool.touch(&blocks).min(most) * block;
        }
        placed += ranks[home].touch(&blocks).min(most) * block;
        let request = RequestId(number as u128);
        funnel.arrived(
            moment.at,
            &Arrival {
                request,
                attempt: 0,
                key: CellKey { class: Class::Medium, tenant: "t".into() },
                family: Family { format: NameFormat::Own, block_tokens: block as u32 },
                names: &path,
                prompt_tokens: prompt.tokens(),
                target: target(home),
                believed: None,
                answer: None,
            },
        );
        funnel.ended(moment.at, request, Some(Reported { tokens: 0, tiers: None }));
    }
    let report = funnel.report(Nanos::ZERO);
    assert!(!report.bounded);
    let sums = report.cells[0].1;
    sums.check().expect("layers and causes agree");
    assert_eq!(sums.requests, moments.len() as u64);
    assert_eq!(CURVE_EIGHTHS[points[0]], 8);
    let found: Vec<u64> = points.iter().map(|point| report.curve[*point].1).collect();
    assert_eq!(found, curve);
    let found = [Layer::Prompt, Layer::Ceiling, Layer::Entrance, Layer::Placed].map(|layer| sums[layer]);
    assert_eq!(found, [tokens, ceiling, curve[0], placed]);
    // Layers that differ, or nothing was compared.
    assert!(found[3] < found[2] && found[2] < found[1] && found[3] > 0, "{found:?}");
    println!("{} requests: {:?} of {tokens} tokens", moments.len(), &found[1..]);
}

fn read(path: &Path, limit: usize) -> (Format, Vec<Session>) {
    let trace = Trace::open(path).expect("a trace");
    (trace.format(), trace.take(limit).collect::<Result<_, _>>().expect("whole rows"))
}

#[test]
fn the_conversation_trace_layer_by_layer() {
    let Some(path) = trace("the_conversation_trace_layer_by_layer", MOONCAKE) else { return };
    let (format, sessions) = read(&path, 4_000);
    compare(&sessions, format, 2_000, &[4, 0, 2, 6, 7, 9]);
}

#[test]
fn the_agentic_trace_layer_by_layer() {
    let Some(path) = trace("the_agentic_trace_layer_by_layer", AGENTIC) else { return };
    let (format, sessions) = read(&path, 4);
    compare(&sessions, format, 1_200, &[4]);
}

#[test]
#[ignore = "14 s of CPU with optimisation, minutes without: the whole traces, block by block"]
fn the_whole_traces_layer_by_layer() {
    for (name, blocks) in [(MOONCAKE, 5_000), (AGENTIC, 40_000)] {
        let Some(path) = trace("the_whole_traces_layer_by_layer", name) else { return };
        let (format, sessions) = read(&path, usize::MAX);
        compare(&sessions, format, blocks, &[4, 2, 7]);
    }
}

#[test]
fn the_printed_curves_to_four_digits() {
    let Some(path) = trace("the_printed_curves_to_four_digits", MOONCAKE) else { return };
    let printed =
        [(1_000, 0.0445), (3_000, 0.0653), (10_000, 0.2116), (30_000, 0.3257), (50_000, 0.3546), (100_000, 0.3637)];
    let (_, sessions) = read(&path, usize::MAX);
    let mut curve = Curve::new(&printed.map(|(blocks, _)| blocks));
    let (mut stack, mut seen) = (RunStack::new(u64::MAX), BTreeSet::new());
    for (at, session) in sessions.iter().enumerate() {
        let path = names(&session.calls[0].prompt, false);
        curve.add(path.len() as u64, &stack.touch(&path, Nanos(at as u64)));
        seen.extend(path);
    }
    assert_eq!((curve.accesses(), stack.blocks(), seen.len()), (288_500, 182_790, 182_790));
    let share = |hits: u64| (hits as f64 / curve.accesses() as f64 * 1e4).round() / 1e4;
    assert_eq!(share(curve.ceiling_hits()), 0.3664);
    assert_eq!(curve.points().map(|(blocks, hits)| (blocks, share(hits))).collect::<Vec<_>>(), printed);
}
