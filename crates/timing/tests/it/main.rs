//! The model against measurements that it was not made from.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod skew;
