//! Data-parallel ranks that step together.
//!
//! Under data-parallel attention every layer ends in an exchange between all ranks, so a step takes as long as its
//! slowest rank and the others wait. How long they wait is what a better spread of long and short requests could win,
//! which is why it is measured here, per rank.
//!
//! The ranks share weights and nothing else: each has its own KV, queue and batch ([`Core`]). They are computed one after
//! another on the step thread; on hardware of its own each would take its own time, and that is what counts as busy. In
//! timing mode it is the cost model's.

use crate::clock::{Clock, SystemClock, processor_time};
use crate::config::{EngineConfig, EngineError};
use crate::core::{Computed, Core};
use crate::driver::Size;
use crate::faults::SlowStep;
use crate::mailbox::postman::Postman;
use crate::stats::Stats;
use crate::step_log::StepLog;
use crate::timing::{Pacer, Timing};
use crate::transfer::Identity;
use plimsoll_timing::StepShape;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

#[derive(Debug)]
pub(crate) struct Lockstep {
    /// By rank.
    pub(crate) ranks: Vec<Core>,
    clock: Box<dyn Clock>,
    timing: Option<Timing>,
    pacer: Pacer,
    log: Option<StepLog>,
    /// Scratch.
    shape: StepShape,
    /// Of the step thread, when it was last counted.
    processor_time: Option<Duration>,
}

/// A step that is computed and not yet posted: by rank, what came out and how long it took.
#[derive(Debug)]
pub(crate) struct Begun {
    parts: Vec<(Option<Computed>, Duration)>,
    slowest: Duration,
    ended: Instant,
    /// What the step counts as having taken.
    spent: Duration,
}

impl Lockstep {
    pub(crate) fn new(config: &EngineConfig) -> Result<Self, EngineError> {
        Lockstep::with_clock(config, Box::new(SystemClock))
    }

    pub(crate) fn with_clock(config: &EngineConfig, clock: Box<dyn Clock>) -> Result<Self, EngineError> {
        let model = config.build_model()?;
        let mut ranks: Vec<Core> = (0..config.dp_size).map(|_| Core::with_model(config, model.clone())).collect();
        if config.offload.is_on() {
            // Found out once: it takes a prefill.
            let identity = ranks[0].identity(config.page_tokens);
            ranks.iter_mut().for_each(|core| core.open_offload(config, &identity));
        }
        let log = config.step_log.as_ref().map(|path| {
            let opened = std::fs::File::create(path).and_then(StepLog::new);
            opened.map_err(|error| EngineError::StepLog { path: path.clone(), error })
        });
        Ok(Lockstep {
            ranks,
            clock,
            log: log.transpose()?,
            timing: config.timing.clone(),
            pacer: Pacer::default(),
            shape: StepShape::default(),
            processor_time: None,
        })
    }

    pub(crate) fn size(&self, page_tokens: usize) -> Size {
        self.ranks[0].size(page_tokens)
    }

    pub(crate) fn identity(&mut self, page_tokens: usize) -> Identity {
        self.ranks[0].identity(page_tokens)
    }

    pub(crate) fn stats(&self) -> impl Iterator<Item = Stats> {
        self.ranks.iter().map(|core| core.stats)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.ranks.iter().all(Core::is_idle)
    }

    /// A transfer's task has news for one of the ranks.
    pub(crate) fn ring(&mut self) {
        self.ranks.iter_mut().for_each(Core::ring);
    }

    /// Every rank tells what entered and left its cache.
    pub(crate) fn publish(&mut self) {
        self.ranks.iter_mut().for_each(Core::publish);
    }

    /// Counts what the loop's thread did since the last time, besides arithmetic, once for all ranks. Call it from that thread.
    pub(crate) fn count_processor_time(&mut self) {
        let now = processor_time();
        let arithmetic: Duration = self.ranks.iter_mut().map(|core| std::mem::take(&mut core.arithmetic)).sum();
        if let Some(before) = self.processor_time.replace(now) {
            let rest = (now - before).saturating_sub(arithmetic).as_nanos() as u64;
            if let Some(first) = self.ranks.first_mut() {
                first.stats.loop_cpu_ns += rest;
            }
            if let Some(log) = &mut self.log {
                log.end(now - before);
            }
        }
    }

    /// Work begins after a pause.
    pub(crate) fn resume(&mut self) {
        self.ranks.iter_mut().for_each(Core::resume);
        self.pacer.resume();
        if let Some(log) = &mut self.log {
            log.resume();
        }
    }

    /// Keeps this share of every rank's pages away from everybody.
    pub(crate) fn press(&mut self, share: f32) {
        self.ranks.iter_mut().for_each(|core| core.press(share));
    }

    /// One step of every rank.
    #[cfg(test)]
    pub(crate) fn step(&mut self, least: Duration) {
        if let Some(begun) = self.begin(least, None) {
            self.end(begun);
            self.tell_readers();
        }
    }

    /// Who brings the readers what [`Self::end`] posted, by rank.
    pub(crate) fn postmen(&self) -> Vec<Postman> {
        self.ranks.iter().map(Core::postman).collect()
    }

    /// Sends the readers what [`Self::end`] posted. [`Self::begin`] does it too, so this is for before a pause.
    pub(crate) fn tell_readers(&mut self) {
        self.ranks.iter_mut().for_each(Core::tell_readers);
    }

    /// Computes a step of every rank, which takes at least `least` where there is anything to compute, and longer still
    /// when it is slowed. Nothing is posted before the slowest rank is done, and not before [`Self::end`].
    pub(crate) fn begin(&mut self, least: Duration, slow: Option<SlowStep>) -> Option<Begun> {
        let slowed = |took: Duration| slow.map_or(took, |slow| slow.stretch(took)).max(least);
        // The first rank tells when it has planned; the others need not wait for what it computes, and it is not charged for theirs.
        self.ranks.iter_mut().skip(1).for_each(Core::tell_readers);
        let started = self.clock.now();
        let mut begun = started;
        let mut parts = Vec::with_capacity(self.ranks.len());
        for (rank, core) in self.ranks.iter_mut().enumerate() {
            let computed = core.compute(begun);
            let now = self.clock.now();
            if let (Some(log), true) = (&mut self.log, computed.is_some()) {
                core.shape(&mut self.shape);
                log.computes(rank, self.shape.clone());
            }
            let own = match (&computed, &self.timing) {
                (None, _) => Duration::ZERO,
                (Some(_), None) => slowed(now - begun),
                (Some(_), Some(timing)) => {
                    core.shape(&mut self.shape);
                    slowed(timing.step_time(&self.shape))
                }
            };
            parts.push((computed, own));
            begun = now;
        }
        if parts.iter().all(|(computed, _)| computed.is_none()) {
            self.pacer.resume();
            return None;
        }
        let slowest = parts.iter().map(|(_, own)| *own).max().unwrap_or_default();
        if self.timing.is_some() {
            self.pacer.wait(self.clock.as_ref(), started, slowest);
        } else {
            self.clock.sleep_until(started + slowed(begun - started));
        }
        let ended = self.clock.now();
        let spent = if self.timing.is_some() { slowest } else { ended - started };
        Some(Begun { parts, slowest, ended, spent })
    }

    /// Counts and posts what [`Self::begin`] computed. Readers are told by the next [`Self::begin`].
    pub(crate) fn end(&mut self, begun: Begun) {
        for (core, (computed, own)) in self.ranks.iter_mut().zip(begun.parts) {
            core.stats.joint_steps += 1;
            core.stats.busy_ns += own.as_nanos() as u64;
            core.stats.idle_ns += (begun.slowest - own).as_nanos() as u64;
            core.stats.late_steps = self.pacer.late_steps;
            core.stats.lost_ns = self.pacer.lost.as_nanos() as u64;
            if let Some(computed) = computed {
                core.finish(&computed, begun.ended, begun.spent);
                core.give_back(computed);
            }
        }
    }
}
