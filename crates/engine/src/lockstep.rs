//! Data-parallel ranks that step together.
//!
//! Under data-parallel attention every layer ends in an exchange between all ranks, so a step takes as long as its
//! slowest rank and the others wait. How long they wait is what a better spread of long and short requests could win,
//! which is why it is measured here, per rank.
//!
//! The ranks share weights and nothing else: each has its own KV, queue and batch ([`Core`]). They are computed one after
//! another on the step thread; on hardware of its own each would take its own time, and that is what counts as busy.

use crate::config::{EngineConfig, EngineError};
use crate::core::{Computed, Core};
use crate::driver::Size;
use crate::stats::Stats;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

#[derive(Debug)]
pub(crate) struct Lockstep {
    /// By rank.
    pub(crate) ranks: Vec<Core>,
}

/// A step that is computed and not yet posted: by rank, what came out and how long it took.
#[derive(Debug)]
pub(crate) struct Begun {
    parts: Vec<(Option<Computed>, Duration)>,
    ended: Instant,
}

impl Lockstep {
    pub(crate) fn new(config: &EngineConfig) -> Result<Self, EngineError> {
        let model = config.build_model()?;
        Ok(Lockstep { ranks: (0..config.dp_size).map(|_| Core::with_model(config, model.clone())).collect() })
    }

    pub(crate) fn size(&self, page_tokens: usize) -> Size {
        self.ranks[0].size(page_tokens)
    }

    pub(crate) fn stats(&self) -> impl Iterator<Item = Stats> {
        self.ranks.iter().map(|core| core.stats)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.ranks.iter().all(|core| core.scheduler.is_idle())
    }

    /// Work begins after a pause.
    pub(crate) fn resume(&mut self) {
        self.ranks.iter_mut().for_each(Core::resume);
    }

    /// One step of every rank.
    #[cfg(test)]
    pub(crate) fn step(&mut self, least: Duration) {
        if let Some(begun) = self.begin(least) {
            self.end(begun);
        }
    }

    /// Computes a step of every rank, which takes at least `least` where there is anything to compute. Nothing is posted
    /// before the slowest rank is done, and not before [`Self::end`].
    pub(crate) fn begin(&mut self, least: Duration) -> Option<Begun> {
        let started = Instant::now();
        let mut begun = started;
        let mut parts = Vec::with_capacity(self.ranks.len());
        for core in &mut self.ranks {
            let computed = core.compute(begun);
            let now = Instant::now();
            let own = if computed.is_some() { (now - begun).max(least) } else { Duration::ZERO };
            parts.push((computed, own));
            begun = now;
        }
        if parts.iter().all(|(computed, _)| computed.is_none()) {
            return None;
        }
        let rest = least.saturating_sub(started.elapsed());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
        Some(Begun { parts, ended: Instant::now() })
    }

    /// Counts and posts what [`Self::begin`] computed.
    pub(crate) fn end(&mut self, Begun { parts, ended }: Begun) {
        let slowest = parts.iter().map(|(_, own)| *own).max().unwrap_or_default();
        for (core, (computed, own)) in self.ranks.iter_mut().zip(parts) {
            core.stats.joint_steps += 1;
            core.stats.busy_ns += own.as_nanos() as u64;
            core.stats.idle_ns += (slowest - own).as_nanos() as u64;
            if let Some(computed) = computed {
                core.finish(&computed, ended);
            }
        }
    }
}
