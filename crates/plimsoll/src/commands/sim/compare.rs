//! Reports side by side.

use super::{CompareArgs, write};
use crate::{Failure, output};
use plimsoll_sim::{Report, compare, html};

pub(super) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let mut reports = Vec::new();
    for path in &args.reports {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::failed(format!("{}: cannot be read: {error}", path.display())))?;
        let report = Report::from_json(&text);
        reports.push(report.map_err(|why| Failure::failed(format!("{}: {why}", path.display())))?);
    }
    if let Some(path) = &args.html {
        write(path, &html::page(&reports))?;
    }
    let name = |path: &std::path::PathBuf| {
        path.file_stem().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
    };
    let names: Vec<String> = args.reports.iter().map(name).collect();
    output::data(&compare::table(&names, &reports.iter().collect::<Vec<_>>()))
}
