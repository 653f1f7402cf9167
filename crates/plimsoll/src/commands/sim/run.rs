//! One run, with a bar while it goes on.

use super::RunArgs;
use super::progress::{Progress, can_be_read_twice};
use crate::commands::outputs::{Output, apart};
use crate::{Failure, output};
use plimsoll_core::Nanos;
use plimsoll_sim::baselines::Policy;
use plimsoll_sim::engine::ContextWait;
use plimsoll_sim::question::KernelFamily;
use plimsoll_sim::tier::TierConfig;
use plimsoll_sim::world::{Change, StartUp};
use plimsoll_sim::{InputOptions, Question, QuestionError, RunError, Slo, Warp, compare, html};
use std::path::{Path, PathBuf};

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let question = question(args)?;
    let Files { json, html, requests } = files(args, &question)?;
    let mut progress = Progress::new(&question, requests);
    let answer = question.answer(&mut progress);
    let requests = progress.end()?;
    let report = answer.map_err(|error| failure_of(error, &question))?;
    if report.setup.skipped_rows > 0 {
        output::note(&format!("{} rows could not be used and were passed over", report.setup.skipped_rows));
    }
    requests.map_or(Ok(()), Output::keep)?;
    if let Some(file) = html {
        file.put(&html::page(std::slice::from_ref(&report)))?;
    }
    if let Some(file) = json {
        file.put(&report.to_json())?;
    }
    if args.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        output::data(&compare::page(std::slice::from_ref(&report.setup.policy), &[&report]))?;
    }
    Ok(())
}

/// An error as the program ends with it.
pub(super) fn failure(error: QuestionError) -> Failure {
    match error {
        QuestionError::Asked(what) => Failure::usage(what),
        QuestionError::Run(RunError::Interrupted) => Failure::interrupted(),
        QuestionError::Run(error) => Failure::failed(error),
    }
}

/// The same, with a hint where it would help.
pub(super) fn failure_of(error: QuestionError, question: &Question) -> Failure {
    let of_input = matches!(error, QuestionError::Run(RunError::Input(_)));
    let failure = failure(error);
    if of_input && !question.input.skip_bad && can_be_read_twice(question) && skipping_helps(question) {
        return failure.hint("`--skip-bad` passes over rows that cannot be used");
    }
    failure
}

/// All of it can be read, but for rows that are passed over.
fn skipping_helps(question: &Question) -> bool {
    let input = InputOptions { skip_bad: true, ..question.input };
    let sessions = Question { input, ..question.clone() }.sessions();
    sessions.is_ok_and(|sessions| {
        let mut some = false;
        sessions.source.inspect(|_| some = true).all(|session| session.is_ok()) && some
    })
}

/// What is written.
pub(super) struct Files {
    pub(super) json: Option<Output>,
    pub(super) html: Option<Output>,
    pub(super) requests: Option<Output>,
}

/// Opens them, where none is among what is read.
pub(super) fn files(args: &RunArgs, question: &Question) -> Result<Files, Failure> {
    let traces = std::iter::once(&question.trace).chain(question.also.iter().map(|(path, _)| path));
    let profile = Some(Path::new(&question.profile)).filter(|path| path.is_file());
    apart(
        traces.map(PathBuf::as_path).chain(profile),
        &[args.json.as_ref(), args.html.as_ref(), args.requests.as_ref()],
    )?;
    let open = |path: &Option<PathBuf>| path.as_deref().map(Output::open).transpose();
    Ok(Files { json: open(&args.json)?, html: open(&args.html)?, requests: open(&args.requests)? })
}

pub(super) fn question(args: &RunArgs) -> Result<Question, Failure> {
    let policy = Policy::of_name(&args.policy).ok_or_else(|| Failure::usage("no such policy"))?;
    let kernel = args.kernel.as_deref().map(|name| match name {
        "K1" => KernelFamily::K1,
        "K2" => KernelFamily::K2,
        _ => KernelFamily::K0,
    });
    let mut traces = args.trace.iter().map(|text| trace(text));
    let (first, times) = traces.next().ok_or_else(|| Failure::usage("give --trace"))?;
    Ok(Question {
        seed: args.seed,
        // Rates of the others are told in terms of the first one's.
        also: traces.map(|(path, rate)| (path, rate / times)).collect(),
        warp: args
            .warp
            .as_deref()
            .map(Warp::parse)
            .transpose()
            .map_err(|why| Failure::usage(format!("--warp {why}")))?,
        regions: args.regions.clone(),
        input: InputOptions {
            limit: args.limit,
            rate: args.rate * times,
            starts_per_s: args.starts_per_s * times,
            skip_bad: args.skip_bad,
            ..InputOptions::default()
        },
        ranks: args.ranks,
        context_wait: args.context_wait.as_deref().map(context_wait).transpose()?,
        kv_tokens: args.kv_tokens,
        max_running: args.max_running,
        token_budget: args.token_budget,
        kernel,
        cache_view: !args.no_cache_view,
        longest_pause: args.longest_pause_s.map(Nanos::from_secs_f64),
        decode_instances: args.decode_instances,
        network_bytes_per_s: args.network_gb_s.map(|gb| gb * 1e9),
        host: args.host_tokens.map(|tokens| tier(tokens, args.host_gb_s)),
        pool: args.pool_tokens.map(|tokens| tier(tokens, args.pool_gb_s)),
        admission: args.admission,
        balance_kv: args.balance_kv,
        changes: changes(args)?,
        slo: Slo { ttft: Nanos::from_millis(args.slo_ttft_ms), tpot: Nanos::from_millis(args.slo_tpot_ms) },
        ..Question::new(&first, &args.profile, args.instances, policy)
    })
}

/// `FILE` or `FILE*X`. A name that ends in such a way and is there is a name.
fn trace(text: &str) -> (PathBuf, f64) {
    let whole = || (PathBuf::from(text), 1.0);
    match text.rsplit_once('*').and_then(|(path, times)| Some((path, times.parse::<f64>().ok()?))) {
        Some((path, times)) if !Path::new(text).exists() => (PathBuf::from(path), times),
        _ => whole(),
    }
}

fn tier(capacity_tokens: u64, gb_s: f64) -> TierConfig {
    TierConfig { capacity_tokens, bytes_per_s: gb_s * 1e9, latency: Nanos::from_millis(1) }
}

fn context_wait(text: &str) -> Result<ContextWait, Failure> {
    let (timeout, batching) = text.split_once('+').unwrap_or((text, "0"));
    let read = || Some(ContextWait { timeout_steps: timeout.parse().ok()?, batching_steps: batching.parse().ok()? });
    read().ok_or_else(|| Failure::usage(format!("--context-wait {text:?}: expected STEPS or STEPS+STEPS")))
}

fn slowdown(text: &str) -> Option<u64> {
    text.parse().ok().filter(|times| (1..=1_000).contains(times))
}

/// What happens to engines.
fn changes(args: &RunArgs) -> Result<Vec<(Nanos, Change)>, Failure> {
    let wrong = |text: &str, form: &str| Failure::usage(format!("{text:?}: expected {form}"));
    let seconds =
        |text: &str| text.parse::<f64>().ok().filter(|s| *s >= 0.0 && s.is_finite()).map(Nanos::from_secs_f64);
    let start_up = |time: Nanos| StartUp(vec![("start".to_owned(), time)]);
    let mut changes = Vec::new();
    for text in &args.kill {
        let read = || {
            let (instance, when) = text.split_once('@')?;
            let (at, back) = when.split_once('+').map_or((when, None), |(at, back)| (at, Some(back)));
            let back = match back {
                Some(back) => Some(seconds(back)?),
                None => None,
            };
            Some((instance.parse::<u32>().ok()?, seconds(at)?, back))
        };
        let (instance, at, back) = read().ok_or_else(|| wrong(text, "ENGINE@SECOND or ENGINE@SECOND+SECONDS"))?;
        changes.push((at, Change::Die { instance }));
        changes.extend(back.map(|back| (at, Change::Return { instance, start_up: start_up(back) })));
    }
    for text in &args.slow {
        let read = || {
            let (instance, rest) = text.split_once('@')?;
            let (at, times) = rest.split_once('*')?;
            Some((seconds(at)?, Change::Slow { instance: instance.parse().ok()?, times: slowdown(times)? }))
        };
        changes.push(read().ok_or_else(|| wrong(text, "ENGINE@SECOND*TIMES, TIMES a whole number from 1 to 1000"))?);
    }
    for text in &args.join {
        let read = || {
            let (at, time) = text.split_once('+')?;
            Some((seconds(at)?, Change::Join { start_up: start_up(seconds(time)?) }))
        };
        changes.push(read().ok_or_else(|| wrong(text, "SECOND+SECONDS"))?);
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_told_from_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("trace*2").display().to_string();
        assert_eq!(trace(&named), (folder.path().join("trace"), 2.0));
        std::fs::write(&named, "").unwrap();
        assert_eq!(trace(&named), (PathBuf::from(&named), 1.0));
        for whole in ["a.jsonl.zst", "a*b", "a*"] {
            assert_eq!(trace(whole), (PathBuf::from(whole), 1.0));
        }
        assert_eq!(trace("a.zst*0.25"), (PathBuf::from("a.zst"), 0.25));
    }
}
