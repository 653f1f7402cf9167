//! Engines in timing mode: step times are the same cost model's on both sides.
//!
//! Engines really compute, so lengths are divided by `--scale` and steps take `--slow` times as long: two busy cores then
//! keep up.

use super::verdict::{Machine, Real};
use super::{Simulated, Verdict, Workload, fleet, policy, with_children};
use crate::commands::demo::children::Children;
use crate::commands::sim::{FidelityArgs, run as one};
use crate::{Failure, output};
use fleet::EngineTime;
use plimsoll_core::Nanos;
use plimsoll_sim::Question;

pub(super) fn verdict(args: &FidelityArgs) -> Result<Verdict, Failure> {
    let workload = Workload::read(args, args.rate)?;
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
    let measured = with_children(async |children| measure(args, &question, &workload, children).await)?;
    let mut simulated = Simulated(Vec::new());
    let report =
        question.answer_sessions(workload.sessions, workload.block_tokens, &mut simulated).map_err(one::failure)?;
    Ok(Verdict::new(args, &profile.name, args.rate, measured, (&simulated.0, &report)))
}

fn question(args: &FidelityArgs) -> Result<Question, Failure> {
    let usual = Question::new(&args.trace, &args.profile, args.instances, policy(args)?);
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

async fn measure(
    args: &FidelityArgs,
    question: &Question,
    workload: &Workload,
    children: &mut Children,
) -> Result<Real, Failure> {
    let profile = question.profile().map_err(one::failure)?;
    let time = EngineTime::Profile { name: args.profile.clone(), speedup: question.speedup };
    children.start_engines(args.instances, &fleet::engine_args(&time, &profile)).await?;
    let gateway = children.start_gateway(&fleet::settings(args, question.poll, &children.engine_urls())).await?;
    let drive = super::drive::Drive::new(&gateway, question.longest_pause)?;
    let (requests, failed, sent_late) = drive.run(&workload.sessions).await;
    Ok(Real { requests, failed, sent_late, machine: Machine::Schedule(children.lateness().await) })
}
