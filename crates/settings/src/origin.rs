//! Where a value came from, so that an error can point there.
//!
//! With four layers "`gateway.listen` is wrong" is not enough: the operator has to know whether to look into the file,
//! the unit's environment or the command line.

use std::collections::BTreeMap;
use std::fmt;

/// Source of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Line and column count from 1; the column counts characters.
    File { name: String, line: usize, column: usize },
    /// Name of the environment variable.
    Env(String),
    /// `--set KEY=VALUE`.
    Set,
    /// A flag such as `--listen`.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Origin::Env(name) => write!(f, "environment {name}"),
            Origin::Set => f.write_str("--set"),
            Origin::Flag(flag) => f.write_str(flag),
        }
    }
}

/// Origins by key path. A value without an entry has the origin of the nearest table above it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(BTreeMap<String, Origin>);

impl Origins {
    pub(crate) fn record(&mut self, path: &str, origin: Origin) {
        self.0.insert(path.to_owned(), origin);
    }

    /// Records that a later layer replaced everything at and below `path`.
    pub(crate) fn replace(&mut self, path: &str, origin: Origin) {
        self.0.retain(|known, _| !is_below(known, path));
        self.record(path, origin);
    }

    pub(crate) fn of(&self, path: &str) -> Option<&Origin> {
        let mut path = path;
        loop {
            if let Some(origin) = self.0.get(path) {
                return Some(origin);
            }
            path = parent(path)?;
        }
    }
}

fn parent(path: &str) -> Option<&str> {
    path.rfind(['.', '[']).map(|end| &path[..end])
}

fn is_below(path: &str, table: &str) -> bool {
    path.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
