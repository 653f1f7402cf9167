//! The words of the settings' enumerations, for flags and listings.

use crate::tree::{LogFormat, PolicyName};
use std::fmt;

impl PolicyName {
    pub const ALL: [PolicyName; 4] =
        [PolicyName::LeastDelay, PolicyName::LeastWait, PolicyName::RoundRobin, PolicyName::PowerOfTwo];

    /// The name as a config file and `--policy` spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            PolicyName::LeastDelay => "least_delay",
            PolicyName::LeastWait => "least_wait",
            PolicyName::RoundRobin => "round_robin",
            PolicyName::PowerOfTwo => "power_of_two",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl LogFormat {
    pub const ALL: [LogFormat; 2] = [LogFormat::Text, LogFormat::Json];

    /// The name as a config file spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}
