//! One thing that a check found, with its place and what to do.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Complaint {
    /// File, or package, relative to the root.
    pub place: String,
    pub what: String,
}

impl Complaint {
    pub fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Complaint { place: place.into(), what: what.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}
