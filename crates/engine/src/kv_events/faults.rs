//! Faults of the event stream: what a network, an overrun buffer or a restart do to it.

use crate::faults::FaultSwitch;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// Every so many batches one is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropEvents {
    /// At least 1, which drops all.
    pub every: u64,
    #[serde(default)]
    pub mode: DropMode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DropMode {
    /// Not sent; its number is missing and the replay has it.
    #[default]
    Live,
    /// Not sent and not kept: its number is missing and stays so.
    Lost,
    /// Not even its number is missing: nobody can know.
    Silent,
}

/// A false number, once. To be had again after `null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WrongSeq {
    /// From 0 again, and nothing is kept, as after a restart; but the cache is what it was.
    Reset,
    /// So many further on (or back).
    Jump(i64),
}

/// What becomes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Sent,
    /// Kept for replay only.
    Kept,
    /// Its number is used, nothing else.
    Lost,
    /// It never was.
    Unheard,
}

/// Applies the faults in force to one stream.
#[derive(Debug)]
pub(crate) struct Disorder {
    switch: FaultSwitch,
    batches: u64,
    applied: Option<WrongSeq>,
}

impl Disorder {
    pub(crate) fn new(switch: FaultSwitch) -> Self {
        Disorder { switch, batches: 0, applied: None }
    }

    /// Seconds since 1970, as this engine tells time.
    pub(crate) fn now_s(&self) -> f64 {
        self.switch.wall_clock_s()
    }

    /// The fate of the next batch, and its number changed if that is to be wrong.
    pub(crate) fn next(&mut self, number: &mut u64) -> Fate {
        let (drop, wrong) = self.switch.kv_events();
        if wrong != self.applied {
            self.applied = wrong;
            match wrong {
                Some(WrongSeq::Reset) => *number = 0,
                Some(WrongSeq::Jump(by)) => *number = number.saturating_add_signed(by),
                None => {}
            }
        }
        let Some(drop) = drop else {
            self.batches = 0;
            return Fate::Sent;
        };
        self.batches += 1;
        if !self.batches.is_multiple_of(drop.every) {
            return Fate::Sent;
        }
        match drop.mode {
            DropMode::Live => Fate::Kept,
            DropMode::Lost => Fate::Lost,
            DropMode::Silent => Fate::Unheard,
        }
    }
}
