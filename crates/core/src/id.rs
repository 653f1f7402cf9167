//! Names of things: requests, instances, ranks.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One engine instance for as long as this process knows it. Never reused, so a removed and re-added engine is a
/// new instance and nothing of the old one can be settled against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub u32);

/// Data-parallel rank inside an instance; 0 where the engine has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u16);

/// Where a request can run: DP ranks are candidates of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    pub instance: InstanceId,
    pub rank: Rank,
}

/// A request's 128-bit identity inside Plimsoll. Shown as 32 lower-case hex digits: fixed length, so that no id is
/// the prefix of another (SGLang's `/abort_request` matches by prefix).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u128);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
