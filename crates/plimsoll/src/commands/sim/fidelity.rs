//! `plimsoll sim fidelity`: does the simulator say what real processes do?
//!
//! The same requests, at the same times, under the same policy with the same seed: once through a gateway and built-in engines,
//! as processes with sockets between them, and once simulated. What the engines' steps take is either the same cost
//! model's in both ([`timed`]), so that what is compared is everything else: batching, chunks, pages, caches, the queue, what
//! the gateway hears when, and what it chooses. Or it is the engines' own, and the simulator is told what was measured
//! before ([`real_time`]). Whether the machine kept up is part of the answer, because a late engine measures the machine and not
//! the simulator.

mod calibrate;
mod drive;
mod fleet;
mod real_time;
mod steps;
mod timed;
mod verdict;

use super::FidelityArgs;
use crate::commands::demo::children::Children;
use crate::commands::demo::signals::Signals;
use crate::commands::outputs::{Output, apart};
use crate::{Failure, output, runtime};
use fleet::PAGE_TOKENS;
use plimsoll_core::Nanos;
use plimsoll_sim::baselines::Policy;
use plimsoll_sim::{Finished, Input, InputOptions, Watcher};
use plimsoll_workload::{Scale, Session};
use std::time::Duration;
use verdict::{Request, Verdict};

/// Rows of one moment begin so far apart, in both: in which order sockets would deliver them is the machine's chance.
const APART: Nanos = Nanos::from_millis(10);

pub(super) fn run(args: &FidelityArgs) -> Result<(), Failure> {
    apart(std::iter::once(args.trace.as_path()), &[args.json.as_ref(), args.profile_out.as_ref()])?;
    let open = |path: &Option<std::path::PathBuf>| path.as_deref().map(Output::open).transpose();
    let (json, profile_out) = (open(&args.json)?, open(&args.profile_out)?);
    let verdict = if args.real_time { real_time::verdict(args, profile_out)? } else { timed::verdict(args)? };
    if let Some(file) = json {
        file.put(&verdict.json())?;
    }
    if args.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        output::data(&verdict.table())?;
    }
    Ok(())
}

/// What is asked of both.
struct Workload {
    sessions: Vec<Session>,
    block_tokens: u64,
}

impl Workload {
    fn read(args: &FidelityArgs, rate: f64) -> Result<Workload, Failure> {
        let options = InputOptions {
            limit: Some(args.limit),
            rate,
            starts_per_s: args.starts_per_s,
            seed: args.seed,
            // Whole pages after the division.
            block_tokens: PAGE_TOKENS * args.scale,
            ..InputOptions::default()
        };
        let input = Input::open(&args.trace, options).map_err(Failure::usage)?;
        let scale = Scale { prompt_divisor: args.scale, output_divisor: args.scale, ..Scale::NONE };
        let sessions = input.map(|session| {
            let mut session = scale.lengths(session?);
            for call in &mut session.calls {
                // What the client will ask for, so that both gateways reserve the same.
                call.max_output_tokens = Some(call.output_tokens);
            }
            Ok(session)
        });
        let mut sessions: Vec<Session> = sessions.collect::<Result<_, String>>().map_err(Failure::failed)?;
        let mut earliest = Nanos::ZERO;
        for session in &mut sessions {
            session.start = session.start.max(earliest);
            earliest = session.start + APART;
        }
        let block_tokens =
            sessions.first().and_then(|one| one.calls.first()).map_or(0, |call| call.prompt.block_tokens);
        if block_tokens == 0 || !block_tokens.is_multiple_of(PAGE_TOKENS) {
            return Err(Failure::usage(format!(
                "blocks of this trace have {block_tokens} tokens at scale {}: engines cache pages of {PAGE_TOKENS}",
                args.scale
            ))
            .hint("a smaller `--scale` that leaves whole pages: 4, 2 or 1 for blocks of 64 tokens"));
        }
        Ok(Workload { sessions, block_tokens })
    }

    fn calls(&self) -> usize {
        self.sessions.iter().map(|session| session.calls.len()).sum()
    }

    /// Until the last session begins.
    fn seconds(&self) -> f64 {
        self.sessions.last().map_or(0.0, |last| last.start.as_secs_f64())
    }
}

fn policy(args: &FidelityArgs) -> Result<Policy, Failure> {
    Policy::of_name(&args.policy).ok_or_else(|| Failure::usage("no such policy"))
}

/// Runs `work` with processes that end with it, however it ends.
fn with_children<T>(work: impl AsyncFnOnce(&mut Children) -> Result<T, Failure>) -> Result<T, Failure> {
    let runtime = runtime::multi_thread()?;
    let worked = runtime.block_on(async {
        runtime::raise_open_files();
        let mut signals = Signals::listen()?;
        let mut children = Children::new("sim")?;
        let worked = tokio::select! {
            worked = work(&mut children) => worked,
            () = signals.recv() => Err(Failure::interrupted()),
        };
        children.stop(worked.is_err()).await;
        worked
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    worked
}

/// Every answer of the simulated run.
struct Simulated(Vec<Request>);

impl Watcher for Simulated {
    fn finished(&mut self, one: &Finished) {
        let ms = |ns: u64| ns as f64 / 1e6;
        self.0.push(Request {
            ttft_ms: ms(one.first_token_ns - one.arrived_ns),
            decode_ms: ms(one.ended_ns - one.first_token_ns),
            output_tokens: one.output_tokens,
            prompt_tokens: one.prompt_tokens,
            cached_tokens: Some(one.cached_tokens),
            engine: one.instance,
        });
    }
}
