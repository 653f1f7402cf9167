//! One run, with a bar while it goes on.

use super::progress::Progress;
use super::{RunArgs, write};
use crate::{Failure, output};
use plimsoll_core::Nanos;
use plimsoll_sim::baselines::Policy;
use plimsoll_sim::question::KernelFamily;
use plimsoll_sim::{InputOptions, Question, QuestionError, RunError, Slo, compare, html};
use std::io::BufWriter;

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let question = question(args)?;
    let log = args.requests.as_ref().map(|path| {
        let why = |error| Failure::failed(format!("{}: cannot be written: {error}", path.display()));
        std::fs::File::create(path).map(BufWriter::new).map_err(why)
    });
    let mut progress = Progress::new(&question, log.transpose()?);
    let answer = question.answer(&mut progress);
    progress.end()?;
    let report = answer.map_err(|error| match error {
        QuestionError::Asked(what) => Failure::usage(what),
        QuestionError::Run(RunError::Interrupted) => Failure::interrupted(),
        QuestionError::Run(error @ RunError::Input(_)) => {
            Failure::failed(error).hint("`--skip-bad` passes over rows that cannot be used")
        }
        QuestionError::Run(error) => Failure::failed(error),
    })?;
    if report.setup.skipped_rows > 0 {
        output::note(&format!("{} rows could not be used and were passed over", report.setup.skipped_rows));
    }
    if let Some(path) = &args.html {
        write(path, &html::page(std::slice::from_ref(&report)))?;
    }
    if let Some(path) = &args.json {
        write(path, &report.to_json())?;
    }
    if args.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        output::data(&compare::table(&[report.setup.policy.clone()], &[&report]))?;
    }
    Ok(())
}

fn question(args: &RunArgs) -> Result<Question, Failure> {
    let policy = Policy::of_name(&args.policy).ok_or_else(|| Failure::usage("no such policy"))?;
    let kernel = args.kernel.as_deref().map(|name| match name {
        "K1" => KernelFamily::K1,
        "K2" => KernelFamily::K2,
        _ => KernelFamily::K0,
    });
    Ok(Question {
        seed: args.seed,
        input: InputOptions {
            limit: args.limit,
            rate: args.rate,
            starts_per_s: args.starts_per_s,
            skip_bad: args.skip_bad,
            ..InputOptions::default()
        },
        ranks: args.ranks,
        kv_tokens: args.kv_tokens,
        max_running: args.max_running,
        token_budget: args.token_budget,
        kernel,
        cache_view: !args.no_cache_view,
        longest_pause: args.longest_pause_s.map(Nanos::from_secs_f64),
        slo: Slo { ttft: Nanos::from_millis(args.slo_ttft_ms), tpot: Nanos::from_millis(args.slo_tpot_ms) },
        ..Question::new(&args.trace, &args.profile, args.instances, policy)
    })
}
