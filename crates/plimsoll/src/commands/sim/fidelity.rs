//! `plimsoll sim fidelity`: does the simulator say what real processes do?
//!
//! The same requests, at the same times, under the same policy with the same seed: once through a gateway and built-in engines in
//! timing mode, as processes with sockets between them, and once simulated. The engine's step times are the same
//! cost model's in both, so what is compared is everything else: batching, chunks, pages, caches, the queue, what the
//! gateway hears when, and what it chooses.
//!
//! Engines really compute, so lengths are divided by `--scale` and steps take `--slow` times as long: two busy cores then keep up. Whether
//! they did is part of the answer, because late engines measure the machine and not the simulator.

mod drive;
mod fleet;
mod verdict;

use super::outputs::apart;
use super::{FidelityArgs, run as one, write};
use crate::commands::demo::children::Children;
use crate::commands::demo::signals::Signals;
use crate::{Failure, output, runtime};
use drive::Drive;
use fleet::PAGE_TOKENS;
use plimsoll_core::Nanos;
use plimsoll_sim::baselines::Policy;
use plimsoll_sim::{Finished, Input, InputOptions, Question, Watcher};
use plimsoll_workload::{Scale, Session};
use std::time::Duration;
use verdict::{Request, Verdict};

/// Rows of one moment begin so far apart, in both: in which order sockets would deliver them is the machine's chance.
const APART: Nanos = Nanos::from_millis(10);

pub(super) fn run(args: &FidelityArgs) -> Result<(), Failure> {
    apart(std::iter::once(args.trace.as_path()), &[args.json.as_ref()])?;
    let workload = Workload::read(args)?;
    let question = question(args)?;
    let profile = question.profile().map_err(one::failure)?;
    output::note(&format!(
        "plimsoll sim fidelity: {} calls, lengths / {}, {} engines at 1/{} of {}, about {:.0} s",
        workload.calls(),
        args.scale,
        args.instances,
        args.slow,
        profile.name,
        workload.seconds(),
    ));
    let runtime = runtime::multi_thread()?;
    let measured = runtime.block_on(with_fleet(args, &question, &workload));
    runtime.shutdown_timeout(Duration::from_secs(1));
    let measured = measured?;
    let mut simulated = Simulated(Vec::new());
    let report =
        question.answer_sessions(workload.sessions, workload.block_tokens, &mut simulated).map_err(one::failure)?;
    let verdict = Verdict::new(args, &profile, measured, &simulated.0, &report);
    if let Some(path) = &args.json {
        write(path, &verdict.json())?;
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
    fn read(args: &FidelityArgs) -> Result<Workload, Failure> {
        let options = InputOptions {
            limit: Some(args.limit),
            rate: args.rate,
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

fn question(args: &FidelityArgs) -> Result<Question, Failure> {
    let policy = Policy::of_name(&args.policy).ok_or_else(|| Failure::usage("no such policy"))?;
    let usual = Question::new(&args.trace, &args.profile, args.instances, policy);
    let mut profile = usual.profile().map_err(one::failure)?;
    fleet::divide(&mut profile, args.scale);
    let sizes = &profile.serving;
    Ok(Question {
        seed: args.seed,
        kv_tokens: Some(sizes.kv_tokens),
        max_running: Some(sizes.max_running),
        token_budget: Some(sizes.token_budget),
        context_tokens: Some(sizes.context_tokens),
        longest_pause: args.longest_pause_s.map(Nanos::from_secs_f64),
        speedup: 1.0 / args.slow,
        ..usual
    })
}

async fn with_fleet(args: &FidelityArgs, question: &Question, workload: &Workload) -> Result<verdict::Real, Failure> {
    let mut signals = Signals::listen()?;
    let mut children = Children::new("sim")?;
    let worked = tokio::select! {
        worked = measure(args, question, workload, &mut children) => worked,
        () = signals.recv() => Err(Failure::interrupted()),
    };
    children.stop(worked.is_err()).await;
    worked
}

async fn measure(
    args: &FidelityArgs,
    question: &Question,
    workload: &Workload,
    children: &mut Children,
) -> Result<verdict::Real, Failure> {
    runtime::raise_open_files();
    let profile = question.profile().map_err(one::failure)?;
    children.start_engines(args.instances, &fleet::engine_args(args, &profile)).await?;
    let urls: Vec<String> = children.engines.iter().map(|engine| engine.listening.clone()).collect();
    let gateway = children.start_gateway(&fleet::settings(args, question.poll, &urls)).await?;
    let pause_limit = question.longest_pause;
    let (requests, failed, sent_late) = Drive::new(&gateway, pause_limit)?.run(&workload.sessions).await;
    Ok(verdict::Real { requests, failed, sent_late, late: children.lateness().await })
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
