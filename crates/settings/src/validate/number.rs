//! Bounds of numbers.
//!
//! A zero wait is a time-out that always fires, and one of centuries is a wait without a bound, which rule "everything
//! bounded" forbids; both are slips of a unit far more often than meant.

use crate::problem::Problem;
use std::fmt;

/// Seven days in milliseconds: longer than any request, short enough for every clock's arithmetic.
const LONGEST_MS: u64 = 7 * 24 * 3_600 * 1_000;
/// The HTTP/1 reader does not work with a smaller buffer.
const LEAST_HEAD_BYTES: u64 = 8_192;
const MOST_HEAD_BYTES: u64 = 16 << 20;

/// Checks of single numbers, each of which adds a problem.
pub(super) struct Numbers<'a> {
    pub(super) found: &'a mut Vec<Problem>,
}

impl Numbers<'_> {
    pub(super) fn say(&mut self, path: &str, what: impl fmt::Display) {
        self.found.push(Problem::at(path, what));
    }

    pub(super) fn above_zero(&mut self, path: &str, value: u64) {
        if value == 0 {
            self.say(path, "must be above zero");
        }
    }

    pub(super) fn between(&mut self, path: &str, value: u64, least: u64, most: u64) {
        if !(least..=most).contains(&value) {
            self.say(path, format!("must be from {least} to {most}"));
        }
    }

    /// A wait: above zero, at most seven days.
    pub(super) fn wait_ms(&mut self, path: &str, value: u64) {
        self.above_zero(path, value);
        self.at_most_ms(path, value);
    }

    pub(super) fn at_most_ms(&mut self, path: &str, value: u64) {
        if value > LONGEST_MS {
            self.say(path, format!("must be at most {LONGEST_MS} (seven days)"));
        }
    }

    pub(super) fn head_bytes(&mut self, path: &str, value: usize) {
        self.between(path, value as u64, LEAST_HEAD_BYTES, MOST_HEAD_BYTES);
    }

    pub(super) fn fraction(&mut self, path: &str, value: f64) {
        if !(0.0..=1.0).contains(&value) {
            self.say(path, "must be a fraction from 0 to 1");
        }
    }

    pub(super) fn positive(&mut self, path: &str, value: f64) {
        if !(value.is_finite() && value > 0.0) {
            self.say(path, "must be a number above zero");
        }
    }

    pub(super) fn at_least_zero(&mut self, path: &str, value: f64) {
        if !(value.is_finite() && value >= 0.0) {
            self.say(path, "must be a number of at least zero");
        }
    }
}
