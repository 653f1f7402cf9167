//! Reports side by side.

use super::CompareArgs;
use crate::commands::outputs::{Output, apart};
use crate::{Failure, output};
use plimsoll_sim::{answers, compare, html};

pub(super) fn run(args: &CompareArgs) -> Result<(), Failure> {
    apart(args.reports.iter().map(std::path::PathBuf::as_path), &[args.html.as_ref()])?;
    let page = args.html.as_deref().map(Output::open).transpose()?;
    let (mut names, mut reports) = (Vec::new(), Vec::new());
    for path in &args.reports {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::failed(format!("{}: cannot be read: {error}", path.display())))?;
        let name =
            path.file_stem().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        let read = answers::read(&name, &text);
        for (name, report) in read.map_err(|why| Failure::failed(format!("{}: {why}", path.display())))? {
            names.push(name);
            reports.push(report);
        }
    }
    if let Some(file) = page {
        file.put(&html::page(&reports))?;
    }
    output::data(&compare::page(&names, &reports.iter().collect::<Vec<_>>()))
}
