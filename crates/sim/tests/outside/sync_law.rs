//! OC11 and OC12: what ranks in lock-step lose to mixed lengths, cell by cell of the table in `workloads.md` section 3.
//!
//! Static draws of batches, as there: in-flight lengths weighted with their output, ranks filled in turn, a step as long as the
//! slowest rank needs. Against that: four instances of four length ranges, and the same requests packed by KV.

use crate::shared::file;
use plimsoll_sim::step_time::{DecodeLoad, StepClock, StepTime};
use plimsoll_timing::StepShape;
use plimsoll_workload::traces::Trace;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const DRAWS: usize = 400;

/// Input and output of requests, with sums of outputs for drawing one weighted with its output.
struct Lengths {
    requests: Vec<(f64, f64)>,
    until: Vec<f64>,
}

impl Lengths {
    fn new(requests: Vec<(f64, f64)>) -> Self {
        let mut sum = 0.0;
        let until = requests.iter().map(|(_, output)| {
            sum += output;
            sum
        });
        Lengths { until: until.collect(), requests }
    }

    /// A context in flight: somewhere in the answer of a request that is in flight for as long as its answer.
    fn draw(&self, rng: &mut ChaCha8Rng) -> u64 {
        let at = rng.random::<f64>() * self.until.last().unwrap();
        let (input, output) =
            self.requests[self.until.partition_point(|until| *until <= at).min(self.requests.len() - 1)];
        (input + rng.random::<f64>() * output) as u64
    }
}

/// Some draws of a mix of `share` of `a` by requests, the rest of `b`.
fn mix(a: &[(f64, f64)], b: &[(f64, f64)], share: f64, rng: &mut ChaCha8Rng) -> Lengths {
    let one = |_| {
        let from = if rng.random::<f64>() < share { a } else { b };
        from[rng.random_range(0..from.len())]
    };
    Lengths::new((0..40_000).map(one).collect())
}

fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

fn chat(rng: &mut ChaCha8Rng) -> Vec<(f64, f64)> {
    let mut one = || {
        let input = 1_500.0 * (normal(rng)).exp() + 16.0;
        let output = 300.0 * (0.8 * normal(rng)).exp();
        (input.round(), output.round().max(1.0))
    };
    (0..40_000).map(|_| one()).collect()
}

fn calls(path: &std::path::Path, most: u64) -> Vec<(f64, f64)> {
    let mut calls = Vec::new();
    for session in Trace::open(path).unwrap() {
        for call in session.unwrap().calls {
            if call.prompt.tokens() <= most {
                calls.push((call.prompt.tokens() as f64, call.output_tokens as f64));
            }
        }
    }
    calls
}

/// Tokens per second of one instance whose ranks hold these contexts.
fn rate(clock: &StepClock, ranks: &[Vec<u64>]) -> f64 {
    let step = |contexts: &Vec<u64>| {
        let load = DecodeLoad {
            requests: contexts.len() as u64,
            context_tokens: contexts.iter().sum(),
            longest_tokens: contexts.iter().max().copied().unwrap_or(0),
        };
        clock.decode(load).0.first_fs
    };
    let slowest = ranks.iter().map(step).max().unwrap();
    ranks.iter().map(Vec::len).sum::<usize>() as f64 / (slowest as f64 / 1e15)
}

/// What buckets gain, and what packing by KV gains, over ranks filled in turn.
struct Gains {
    buckets: f64,
    balance: f64,
}

/// A step as the table has it: fixed, 20 us for each request of the fullest rank, and a cost per token of context.
#[derive(Clone, Copy, Debug)]
struct Law {
    fixed_ms: f64,
    ns_per_token: f64,
}

impl StepTime for Law {
    fn step_us(&self, shape: &StepShape) -> f64 {
        let requests = shape.decodes() as f64;
        self.fixed_ms * 1e3 + 20.0 * requests + self.ns_per_token / 1e3 * shape.decode_tokens() as f64
    }

    fn context_token_us(&self) -> Option<f64> {
        Some(self.ns_per_token / 1e3)
    }
}

/// What a context token costs with each kind of attention (`workloads.md` section 3).
const GQA: Law = Law { fixed_ms: 14.0, ns_per_token: 44.6 };
const MLA: Law = Law { fixed_ms: 13.0, ns_per_token: 18.3 };

fn gains(law: Law, lengths: &Lengths, edges: [u64; 3], per_rank: usize, ranks: usize) -> Gains {
    let clock = StepClock::new(Box::new(law));
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let fill = |draw: &mut dyn FnMut() -> u64| -> Vec<Vec<u64>> {
        (0..ranks).map(|_| (0..per_rank).map(|_| draw()).collect()).collect()
    };
    // Mean time per token, so that rates add up as work does.
    let (mut mixed_s, mut balanced_s) = (0.0, 0.0);
    let mut sample = Vec::new();
    for _ in 0..DRAWS {
        let mixed = fill(&mut || lengths.draw(&mut rng));
        mixed_s += 1.0 / rate(&clock, &mixed);
        balanced_s += 1.0 / rate(&clock, &packed(&mixed));
        sample.extend(mixed.into_iter().flatten());
    }
    let bucket = |length: u64| edges.partition_point(|edge| *edge <= length);
    let mut by_bucket: [Vec<u64>; 4] = Default::default();
    sample.iter().for_each(|length| by_bucket[bucket(*length)].push(*length));
    let mut bucket_s = 0.0;
    for lengths in by_bucket.iter().filter(|lengths| !lengths.is_empty()) {
        let share = lengths.len() as f64 / sample.len() as f64;
        let mut sum = 0.0;
        for _ in 0..DRAWS {
            let filled = fill(&mut || lengths[rng.random_range(0..lengths.len())]);
            sum += 1.0 / rate(&clock, &filled);
        }
        bucket_s += share * sum;
    }
    Gains { buckets: (mixed_s / bucket_s - 1.0) * 100.0, balance: (mixed_s / balanced_s - 1.0) * 100.0 }
}

/// Longest first, each to the rank with the least KV.
fn packed(ranks: &[Vec<u64>]) -> Vec<Vec<u64>> {
    let mut all: Vec<u64> = ranks.iter().flatten().copied().collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    let mut packed: Vec<(u64, Vec<u64>)> = vec![(0, Vec::new()); ranks.len()];
    for length in all {
        let least = packed.iter_mut().min_by_key(|(sum, _)| *sum).unwrap();
        least.0 += length;
        least.1.push(length);
    }
    packed.into_iter().map(|(_, contexts)| contexts).collect()
}

struct Data {
    conversation: Lengths,
    mixed_90: Lengths,
    mixed_70: Lengths,
    agentic: Lengths,
}

fn data(test: &str) -> Option<Data> {
    let conversation = calls(&file(test, "traces/mooncake_conversation.jsonl.zst")?, u64::MAX);
    let agentic = calls(&file(test, "traces/agentic_weka_compact.jsonl.zst")?, 131_072);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let chat = chat(&mut rng);
    Some(Data {
        mixed_90: mix(&chat, &agentic, 0.9, &mut rng),
        mixed_70: mix(&chat, &agentic, 0.7, &mut rng),
        conversation: Lengths::new(conversation),
        agentic: Lengths::new(agentic),
    })
}

const CONVERSATION: [u64; 3] = [6_000, 20_000, 50_000];
const MIXES: [u64; 3] = [8_000, 60_000, 100_000];
const AGENTIC: [u64; 3] = [60_000, 90_000, 110_000];

#[test]
fn oc11_the_law_of_lock_step() {
    let Some(data) = data("OC11") else { return };
    // Workload, model, requests a rank, ranks: gain of buckets and of balance in percent, `None` where the table has none.
    type Cell<'a> = (&'a str, &'a Lengths, [u64; 3], Law, usize, usize, f64, Option<f64>);
    let cells: [Cell<'_>; 17] = [
        ("conv, GQA", &data.conversation, CONVERSATION, GQA, 16, 8, 14.0, Some(19.0)),
        ("conv, GQA", &data.conversation, CONVERSATION, GQA, 16, 32, 22.0, Some(30.0)),
        ("conv, MLA", &data.conversation, CONVERSATION, MLA, 64, 8, 9.0, Some(12.0)),
        ("conv, MLA", &data.conversation, CONVERSATION, MLA, 64, 32, 14.0, Some(18.0)),
        ("90/10, GQA", &data.mixed_90, MIXES, GQA, 16, 8, 28.0, Some(32.0)),
        ("90/10, GQA", &data.mixed_90, MIXES, GQA, 16, 32, 42.0, Some(51.0)),
        ("90/10, GQA", &data.mixed_90, MIXES, GQA, 16, 128, 56.0, None),
        ("90/10, GQA", &data.mixed_90, MIXES, GQA, 64, 8, 24.0, Some(29.0)),
        ("90/10, GQA", &data.mixed_90, MIXES, GQA, 64, 32, 38.0, Some(44.0)),
        ("90/10, GQA", &data.mixed_90, MIXES, GQA, 64, 128, 47.0, None),
        ("90/10, MLA", &data.mixed_90, MIXES, MLA, 64, 32, 27.0, Some(31.0)),
        ("90/10, MLA", &data.mixed_90, MIXES, MLA, 64, 128, 34.0, None),
        ("70/30, GQA", &data.mixed_70, MIXES, GQA, 16, 8, 25.0, Some(31.0)),
        ("70/30, GQA", &data.mixed_70, MIXES, GQA, 16, 32, 38.0, Some(47.0)),
        ("agentic, GQA", &data.agentic, AGENTIC, GQA, 16, 8, 7.0, None),
        ("agentic, GQA", &data.agentic, AGENTIC, GQA, 16, 32, 10.0, None),
        ("agentic, GQA", &data.agentic, AGENTIC, GQA, 16, 128, 12.0, None),
    ];
    let mut off = Vec::new();
    for (name, lengths, edges, law, per_rank, ranks, buckets, balance) in cells {
        let found = gains(law, lengths, edges, per_rank, ranks);
        let text = format!(
            "OC11 {name}, {per_rank} a rank, {ranks} ranks: buckets {:+.1} % (table {buckets:+}), balance {:+.1} % (table \
             {balance:?})",
            found.buckets, found.balance
        );
        println!("{text}");
        let balanced = balance.is_none_or(|wanted| (found.balance - wanted).abs() <= 3.0);
        if (found.buckets - buckets).abs() > 3.0 || !balanced {
            off.push(text);
        }
    }
    assert!(off.is_empty(), "beyond 3 points:\n{}", off.join("\n"));
}

#[test]
fn oc12_linear_attention_gains_less() {
    let Some(data) = data("OC12") else { return };
    // A context costs an eighth.
    let linear = Law { ns_per_token: GQA.ns_per_token / 8.0, ..GQA };
    for (name, lengths, per_rank) in
        [("90/10", &data.mixed_90, 16), ("90/10", &data.mixed_90, 64), ("70/30", &data.mixed_70, 16)]
    {
        let [full, eighth] = [GQA, linear].map(|law| gains(law, lengths, MIXES, per_rank, 32).buckets);
        println!("OC12 {name}, {per_rank} a rank, 32 ranks: linear {eighth:+.1} %, softmax {full:+.1} %");
        assert!(eighth < full / 2.0 && eighth > 0.0, "{name} {per_rank}: {eighth} {full}");
        assert!((2.0..=16.0).contains(&eighth), "{eighth}");
        assert!((35.0..=59.0).contains(&full), "{full}");
    }
}
