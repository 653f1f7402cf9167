//! What is wrong with a config, all of it at once.
//!
//! An operator who fixes one key only to be told the next one at the following start loses minutes per round, so every
//! check collects. A message never contains a value: a value may be a secret that stands in the wrong place.

use crate::Origin;
use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Key path such as `gateway.listen` or `engines[0].url`; empty where the text could not be read at all.
    pub path: String,
    /// A sentence that names the key and says what to do.
    pub message: String,
    /// Where the value came from; `None` for a default or where it is not known.
    pub origin: Option<Origin>,
}

impl Problem {
    /// A problem with the value at `path`; `what` follows the quoted path: "must be above zero".
    #[must_use]
    pub fn at(path: impl Into<String>, what: impl fmt::Display) -> Self {
        let path = path.into();
        Problem { message: format!("`{path}` {what}"), path, origin: None }
    }

    /// A problem that its message describes in full.
    #[must_use]
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Problem { path: path.into(), message: message.into(), origin: None }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Some(origin) => write!(f, "{origin}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// At least one [`Problem`], in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Problems(vec![problem])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
