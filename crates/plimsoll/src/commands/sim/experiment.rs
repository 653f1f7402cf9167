//! Several questions of one trace, one after the other.

use super::progress::Progress;
use super::{ExperimentArgs, run as one, write};
use crate::{Failure, output};
use plimsoll_sim::experiment::variants;
use plimsoll_sim::{Report, compare, html};

pub(super) fn run(args: &ExperimentArgs) -> Result<(), Failure> {
    let base = one::question(&args.run)?;
    let questions = variants(&args.name, &base).ok_or_else(|| Failure::usage("there is no such experiment"))?;
    let (mut names, mut reports) = (Vec::new(), Vec::<Report>::new());
    for (name, question) in questions {
        output::note(&format!("{name} ..."));
        let mut progress = Progress::new(&question, None);
        let answer = question.answer(&mut progress);
        progress.end()?;
        let mut report = answer.map_err(one::failure)?;
        // On the page they are told apart by the name of the variant.
        report.setup.settings.insert("variant".to_owned(), name.clone());
        report.setup.policy =
            if report.setup.policy == name { name.clone() } else { format!("{name} ({})", report.setup.policy) };
        names.push(name);
        reports.push(report);
    }
    if let Some(path) = &args.run.html {
        write(path, &html::page(&reports))?;
    }
    if let Some(path) = &args.run.json {
        let all: String = reports.iter().map(Report::to_json).collect();
        write(path, &all)?;
    }
    output::data(&compare::table(&names, &reports.iter().collect::<Vec<_>>()))
}
