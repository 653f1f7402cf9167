//! One pass over a trace: lay its calls out in time, feed the stack, cut the curve.

use super::FunnelArgs;
use crate::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_cache::funnel::{Curve, RunStack};
use plimsoll_core::Nanos;
use plimsoll_workload::traces::{Format, Trace};
use plimsoll_workload::{Prompt, Session, Spread, timeline};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sizes that need no thought.
const DECADES: std::ops::RangeInclusive<u32> = 2..=9;

/// What the command prints; blocks are the trace's own.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub trace: String,
    pub format: &'static str,
    pub block_tokens: u64,
    pub requests: u64,
    /// Blocks asked for.
    pub accesses_blocks: u64,
    /// Distinct blocks among them.
    pub unique_blocks: u64,
    /// Share of the accesses that a cache without limit has.
    pub ceiling: f64,
    pub capacities: Vec<Point>,
    /// Requests per second of the laid-out trace; `None` where all came at once.
    pub requests_per_s: Option<f64>,
    /// Work of the curve alone, without reading and hashing.
    pub us_per_request: f64,
    pub memory_bytes: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Point {
    pub capacity: u64,
    pub hit_rate: f64,
}

pub(super) fn report(args: &FunnelArgs, file: &Path) -> Result<Report, Failure> {
    let (format, sessions) = read(args, file)?;
    let spread = (format == Format::Agentic).then(|| Spread {
        window: Nanos::from_secs_f64(args.window_h * 3600.0),
        longest_pause: Nanos::from_secs(args.longest_pause_s),
        seed: args.seed,
    });
    let moments = timeline(&sessions, spread);
    let capacities = match args.capacity.as_slice() {
        [] => DECADES.flat_map(|decade| [1, 2, 5].map(|times| times * 10u64.pow(decade))).collect(),
        given => given.to_vec(),
    };
    let (mut stack, mut curve) = (RunStack::new(u64::MAX), Curve::new(&capacities));
    let bar = progress(moments.len() as u64, "replaying", args.json);
    let (mut path, mut spent) = (Vec::new(), Duration::ZERO);
    for moment in &moments {
        fingerprints(&sessions[moment.session].calls[moment.call].prompt, format, &mut path);
        let began = Instant::now();
        let pieces = stack.touch(&path, moment.at);
        curve.add(path.len() as u64, &pieces);
        spent += began.elapsed();
        bar.inc(1);
    }
    bar.finish_and_clear();
    let requests = moments.len() as u64;
    let took = moments.last().map_or(Nanos::ZERO, |last| last.at.since(moments[0].at));
    let rate = |hits: u64| if curve.accesses() == 0 { 0.0 } else { hits as f64 / curve.accesses() as f64 };
    let mut points: Vec<Point> =
        curve.points().map(|(capacity, hits)| Point { capacity, hit_rate: rate(hits) }).collect();
    if args.capacity.is_empty() {
        // From the first size that holds everything on, nothing changes any more.
        let enough = points.partition_point(|point| point.capacity < stack.blocks());
        points.truncate(enough + 1);
    }
    Ok(Report {
        trace: file.display().to_string(),
        format: format.name(),
        block_tokens: sessions.first().and_then(|s| s.calls.first()).map_or(0, |call| call.prompt.block_tokens),
        requests,
        accesses_blocks: curve.accesses(),
        unique_blocks: stack.blocks(),
        ceiling: rate(curve.ceiling_hits()),
        capacities: points,
        requests_per_s: (took > Nanos::ZERO).then(|| requests as f64 / took.as_secs_f64()),
        us_per_request: spent.as_secs_f64() * 1e6 / requests.max(1) as f64,
        memory_bytes: stack.bytes(),
    })
}

fn read(args: &FunnelArgs, path: &Path) -> Result<(Format, Vec<Session>), Failure> {
    let trace = Trace::open(path).map_err(Failure::failed)?;
    let format = trace.format();
    let bar = ProgressBar::new_spinner().with_message("reading the trace");
    if args.json {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let limit = args.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let sessions = trace.take(limit).inspect(|_| bar.tick()).collect::<Result<Vec<_>, _>>().map_err(Failure::failed)?;
    bar.finish_and_clear();
    Ok((format, sessions))
}

fn progress(len: u64, what: &'static str, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::new(len).with_message(what);
    if quiet {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    match ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len} {eta}") {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// Chained fingerprints of a prompt's blocks. Mooncake numbers the incomplete last block too, and counts it.
fn fingerprints(prompt: &Prompt, format: Format, path: &mut Vec<u64>) {
    let tail = prompt.tail.filter(|_| format == Format::Mooncake).map(|tail| tail.id);
    let mut hash = 0u64;
    path.clear();
    path.extend(prompt.block_ids().chain(tail).map(|id| {
        // splitmix64's finaliser over what came before and this id.
        let mut x = hash.rotate_left(23) ^ id.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash = x ^ (x >> 31);
        hash
    }));
}
