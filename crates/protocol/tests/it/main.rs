//! Templates and tokenizers against the programs whose results they must repeat.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod jinja;
mod openings;
mod segments;
mod templates;
mod tokenizers_under_test;
