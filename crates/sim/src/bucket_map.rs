//! Where contexts of which length run: for each instance and window of time the median of those that it ran.
//!
//! Under a policy that gives lengths to instances by buckets this shows bands, under any other what the policy made of it. It is
//! what was observed and knows no policy. Four looks at the fleet in every window are enough for a median, and bounded: windows
//! double as the run grows longer, and so do the instances of a row where there are many.

use crate::eighths::Eighths;
use plimsoll_core::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most rows and windows.
pub const MOST_ROWS: usize = 64;
pub const MOST_WINDOWS: usize = 96;
/// Width of the first windows.
const FIRST_WIDTH: Nanos = Nanos::from_secs(2);
const LOOKS_A_WINDOW: u64 = 4;

/// The map, as the report has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BucketMap {
    /// Seconds.
    pub window_s: f64,
    /// Neighbours by number that share a row; 1 for fleets of up to 64.
    pub instances_a_row: u32,
    /// By row and window, median tokens of context (prompts that are computed count whole) of the requests that ran there; `None`
    /// where none did.
    pub median_context_tokens: Vec<Vec<Option<f64>>>,
}

/// What is looked at while a run goes on.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    origin: Option<Nanos>,
    width: Nanos,
    instances_a_row: u32,
    looked_at: Option<Nanos>,
    /// By row and window.
    rows: Vec<Vec<Eighths>>,
}

impl Default for Observed {
    fn default() -> Self {
        Observed { origin: None, width: FIRST_WIDTH, instances_a_row: 1, looked_at: None, rows: Vec::new() }
    }
}

impl Observed {
    /// Whether it is time to look again; if so, it is taken to be done.
    pub(crate) fn due(&mut self, now: Nanos) -> bool {
        let due = self.looked_at.is_none_or(|at| now.since(at).0 >= self.width.0 / LOOKS_A_WINDOW);
        if due {
            self.looked_at = Some(now);
            self.origin.get_or_insert(now);
        }
        due
    }

    /// An instance runs a request with so much context.
    pub(crate) fn see(&mut self, now: Nanos, instance: u32, context_tokens: u64) {
        let since = now.since(*self.origin.get_or_insert(now));
        while (since.0 / self.width.0) as usize >= MOST_WINDOWS {
            self.width = Nanos(self.width.0.saturating_mul(2));
            self.rows.iter_mut().for_each(|row| *row = halved(row, Eighths::merge));
        }
        while (instance / self.instances_a_row) as usize >= MOST_ROWS {
            self.instances_a_row *= 2;
            self.rows = halved(&self.rows, |own, more| {
                if own.len() < more.len() {
                    own.resize(more.len(), Eighths::default());
                }
                own.iter_mut().zip(more).for_each(|(own, more)| own.merge(more));
            });
        }
        let (row, window) = ((instance / self.instances_a_row) as usize, (since.0 / self.width.0) as usize);
        if self.rows.len() <= row {
            self.rows.resize(row + 1, Vec::new());
        }
        let row = &mut self.rows[row];
        if row.len() <= window {
            row.resize(window + 1, Eighths::default());
        }
        row[window].add(context_tokens, 1);
    }

    /// `instances` there were in all.
    pub(crate) fn map(&self, instances: u32) -> BucketMap {
        let windows = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let rows = (instances.div_ceil(self.instances_a_row) as usize).clamp(self.rows.len(), MOST_ROWS);
        let cell = |row: usize, window: usize| self.rows.get(row)?.get(window)?.at(0.5);
        let median = |row| (0..windows).map(|window| cell(row, window)).collect();
        BucketMap {
            window_s: self.width.as_secs_f64(),
            instances_a_row: self.instances_a_row,
            median_context_tokens: (0..rows).map(median).collect(),
        }
    }
}

/// Neighbours as one.
fn halved<T: Clone>(list: &[T], merge: impl Fn(&mut T, &T)) -> Vec<T> {
    let one = |pair: &[T]| {
        let mut sum = pair[0].clone();
        pair[1..].iter().for_each(|more| merge(&mut sum, more));
        sum
    };
    list.chunks(2).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_shows_who_ran_what_and_when() {
        let mut map = Observed::default();
        for second in 0..20 {
            let now = Nanos::from_secs(100 + second);
            assert!(map.due(now) && !map.due(now));
            for tokens in [900, 1_000, 50_000] {
                map.see(now, 0, tokens);
            }
            if second >= 10 {
                map.see(now, 2, 20_000);
            }
        }
        let seen = map.map(4);
        assert_eq!((seen.window_s, seen.instances_a_row, seen.median_context_tokens.len()), (2.0, 1, 4));
        let near = |found: Option<f64>, wanted: f64| (found.unwrap() / wanted - 1.0).abs() < 0.07;
        assert!(seen.median_context_tokens[0].iter().all(|median| near(*median, 1_000.0)));
        assert_eq!(seen.median_context_tokens[2][..5], [None; 5]);
        assert!(seen.median_context_tokens[2][5..].iter().all(|median| near(*median, 20_000.0)));
        assert!(seen.median_context_tokens[1].iter().all(Option::is_none), "it ran nothing");
        assert!(seen.median_context_tokens[3].iter().all(Option::is_none), "nor did the last one");
    }

    #[test]
    fn a_large_fleet_and_a_long_run_stay_small_and_lose_nothing() {
        let mut map = Observed::default();
        for hour in 0..100 {
            for instance in 0..1_000 {
                map.see(Nanos::from_secs(hour * 3_600), instance, if instance < 512 { 1_000 } else { 30_000 });
            }
        }
        let seen = map.map(1_000);
        assert_eq!((seen.instances_a_row, seen.median_context_tokens.len()), (16, 63));
        assert!(seen.window_s * MOST_WINDOWS as f64 >= 99.0 * 3_600.0);
        assert!(seen.median_context_tokens.iter().all(|row| row.len() <= MOST_WINDOWS));
        let count: u64 = map.rows.iter().flatten().map(|cell| cell.at(1.0).is_some() as u64).sum();
        assert!(count > 0);
        let bands = seen.median_context_tokens.iter().enumerate();
        for (row, tokens) in bands.flat_map(|(row, cells)| cells.iter().flatten().map(move |cell| (row, *cell))) {
            let wanted = if row < 32 { 1_000.0 } else { 30_000.0 };
            assert!((tokens / wanted - 1.0).abs() < 0.07, "row {row}: {tokens}");
        }
    }
}
