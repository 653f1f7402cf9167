//! Several questions of one trace, one after the other.

use super::progress::{Progress, can_be_read_twice};
use super::{ExperimentArgs, RunArgs, run as one};
use crate::{Failure, output};
use plimsoll_sim::experiment::variants;
use plimsoll_sim::{Answers, Question, Report, compare, html};

pub(super) fn run(args: &ExperimentArgs) -> Result<(), Failure> {
    if let Some(flag) = ignored(&args.name, &args.run) {
        return Err(Failure::usage(format!("{flag} says nothing here: {}", why(flag, &args.name)))
            .hint("`plimsoll sim run` takes it"));
    }
    let base = one::question(&args.run)?;
    if !can_be_read_twice(&base) {
        let what = "an experiment reads its traces once for every variant, and a pipe is empty the second time";
        return Err(Failure::usage(what).hint("write it to a file first"));
    }
    let questions = variants(&args.name, &base).ok_or_else(|| Failure::usage("there is no such experiment"))?;
    let questions = unlike(questions);
    if questions.len() < 2 {
        return Err(Failure::usage(format!("{} engine gives nothing to vary; ask for more", base.instances)));
    }
    let one::Files { json, html, .. } = one::files(&args.run, &base)?;
    let (mut names, mut reports) = (Vec::new(), Vec::<Report>::new());
    for (name, question) in questions {
        output::note(&format!("{name} ..."));
        let mut progress = Progress::new(&question, None);
        let answer = question.answer(&mut progress);
        progress.end()?;
        let mut report = answer.map_err(|error| one::failure_of(error, &question))?;
        // On the page they are told apart by it.
        report.setup.settings.insert("variant".to_owned(), name.clone());
        names.push(name);
        reports.push(report);
    }
    if let Some(file) = html {
        file.put(&html::page(&reports))?;
    }
    if let Some(file) = json {
        file.put(&Answers::new(&args.name, &names, &reports).to_json())?;
    }
    if args.run.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        output::data(&compare::page(&names, &reports.iter().collect::<Vec<_>>()))?;
    }
    Ok(())
}

/// Without those that come out as one before, of a small fleet; says which.
fn unlike(questions: Vec<(String, Question)>) -> Vec<(String, Question)> {
    let mut kept: Vec<(String, Question)> = Vec::new();
    for (name, question) in questions {
        match kept.iter().find(|(_, other)| *other == question) {
            Some((other, _)) if *other == name => {
                output::note(&format!("{name}: comes out again of so few engines; asked once"));
            }
            Some((other, _)) => output::note(&format!("{name}: with so few engines the same as {other}; asked once")),
            None => kept.push((name, question)),
        }
    }
    kept
}

const REQUESTS: &str = "--requests";

/// The first flag that was given and would change nothing: what the experiment sets itself, and what it does not write.
fn ignored(name: &str, run: &RunArgs) -> Option<&'static str> {
    let changes =
        [("--kill", !run.kill.is_empty()), ("--slow", !run.slow.is_empty()), ("--join", !run.join.is_empty())];
    let policy = ("--policy", run.policy != "least_delay");
    let set: Vec<(&'static str, bool)> = match name {
        "policies" => vec![policy],
        "knowledge" => vec![("--no-cache-view", run.no_cache_view)],
        "traffic" => vec![("--admission", run.admission)],
        "tiers" => vec![("--host-tokens", run.host_tokens.is_some()), ("--pool-tokens", run.pool_tokens.is_some())],
        "migration" => vec![policy, ("--balance-kv", run.balance_kv)],
        "split" => vec![("--decode-instances", run.decode_instances > 0)],
        "failure" | "coldstart" => changes.into(),
        _ => Vec::new(),
    };
    let all = std::iter::once((REQUESTS, run.requests.is_some())).chain(set);
    all.filter(|(_, given)| *given).map(|(flag, _)| flag).next()
}

fn why(flag: &str, name: &str) -> String {
    match flag {
        REQUESTS => "an experiment writes no requests".to_owned(),
        _ => format!("the experiment `{name}` sets it itself"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn what_comes_out_alike_is_asked_once() {
        let base =
            Question::new(std::path::Path::new("t"), "h100-llama3-8b", 1, plimsoll_sim::baselines::Policy::Random);
        let of = |name: &str| {
            let names = unlike(variants(name, &base).unwrap()).into_iter().map(|(name, _)| name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(of("sizes"), ["1 engines", "2 engines"]);
        assert_eq!(of("coldstart"), ["all there"]);
    }

    #[test]
    fn flags_that_would_change_nothing_are_named() {
        let of = |name: &str, line: &str| {
            let words = ["line", "--trace", "t"].into_iter().chain(line.split_whitespace());
            ignored(name, &Line::parse_from(words).run)
        };
        for (name, line, flag) in [
            ("policies", "--policy random", "--policy"),
            ("tiers", "--host-tokens 5", "--host-tokens"),
            ("split", "--decode-instances 2", "--decode-instances"),
            ("failure", "--kill 0@5", "--kill"),
            ("coldstart", "--join 5+5", "--join"),
            ("sizes", "--requests r", "--requests"),
        ] {
            assert_eq!(of(name, line), Some(flag), "{name} {line}");
            let other = if name == "traffic" { "sizes" } else { "traffic" };
            assert_eq!(of(other, line), (flag == "--requests").then_some(flag), "{other} {line}");
        }
    }
}
