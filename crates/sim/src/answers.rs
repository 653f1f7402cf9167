//! The answers of an experiment as one document.

use crate::report::{FORMAT, Report, rounded};
use serde::{Deserialize, Serialize};

/// What an experiment found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answers {
    pub format: u32,
    /// Its name.
    pub experiment: String,
    pub variants: Vec<Variant>,
}

/// The answer to one of its questions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    pub name: String,
    pub report: Report,
}

impl Answers {
    #[must_use]
    pub fn new(experiment: &str, names: &[String], reports: &[Report]) -> Self {
        let variant = |(name, report): (&String, &Report)| Variant { name: name.clone(), report: report.clone() };
        Answers {
            format: FORMAT,
            experiment: experiment.to_owned(),
            variants: names.iter().zip(reports).map(variant).collect(),
        }
    }

    /// As a file; numbers as in a report's.
    #[must_use]
    pub fn to_json(&self) -> String {
        rounded(serde_json::to_value(self).unwrap_or_default())
    }
}

/// Reads a report, named `name`, or all those of an experiment, named by their variants behind it.
///
/// # Errors
/// When it is neither, or of another format.
pub fn read(name: &str, text: &str) -> Result<Vec<(String, Report)>, String> {
    #[derive(Deserialize)]
    struct Kind {
        format: Option<u32>,
        variants: Option<serde::de::IgnoredAny>,
    }
    let kind: Kind = serde_json::from_str(text).map_err(|error| format!("not a report: {error}"))?;
    if kind.variants.is_none() {
        return Ok(vec![(name.to_owned(), Report::from_json(text)?)]);
    }
    if let Some(format) = kind.format.filter(|format| *format != FORMAT) {
        return Err(format!("an experiment of format {format}; this program reads format {FORMAT}"));
    }
    let answers: Answers =
        serde_json::from_str(text).map_err(|error| format!("not the document of an experiment: {error}"))?;
    Ok(answers.variants.into_iter().map(|one| (format!("{name}: {}", one.name), one.report)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_is_one_document_and_read_as_its_reports() {
        let reports = [Report { duration_s: 1.5, ..Report::empty() }, Report::empty()];
        let answers = Answers::new("sizes", &["4 engines".to_owned(), "8 engines".to_owned()], &reports);
        let read_back = read("a", &answers.to_json()).unwrap();
        let names: Vec<&str> = read_back.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a: 4 engines", "a: 8 engines"]);
        assert_eq!(read_back[0].1, reports[0]);
        assert_eq!(read("b", &reports[0].to_json()).unwrap(), [("b".to_owned(), reports[0].clone())]);
        let other = answers.to_json().replacen(&format!("\"format\": {FORMAT}"), "\"format\": 999", 1);
        assert!(read("a", &other).unwrap_err().contains("format 999"), "{:?}", read("a", &other));
    }
}
