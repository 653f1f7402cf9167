//! The three traffic classes of the article.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Priority class of a request, derived from input length and predicted cache hits (`plimsoll-traffic`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Class {
    High,
    Medium,
    Low,
}

impl Class {
    pub const ALL: [Class; 3] = [Class::High, Class::Medium, Class::Low];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Class::High => "high",
            Class::Medium => "medium",
            Class::Low => "low",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
