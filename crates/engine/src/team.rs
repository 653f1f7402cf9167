//! The threads that share the arithmetic of a step.
//!
//! Work is cut into tasks that write disjoint places, so results do not depend on who does what. A step of a large
//! model runs inside the pool, where handing a task over costs about a microsecond; a tiny model has no pool at all, for
//! which the step thread would have to be woken.

use rayon::prelude::*;
use std::num::NonZero;

/// Weights above this are shared by all cores unless told otherwise; below, handing over costs more than it brings.
const LARGE_MODEL_BYTES: usize = 16 << 20;

/// Multiply-adds (or as much other work) worth a second thread.
const WORTH_SHARING: usize = 1 << 19;

#[derive(Debug)]
pub struct Team {
    pool: Option<rayon::ThreadPool>,
    /// Shares even what is not worth it, so that tests of small models are tests of sharing too.
    eager: bool,
}

impl Team {
    /// One thread: the caller's.
    #[must_use]
    pub fn alone() -> Self {
        Team { pool: None, eager: false }
    }

    /// # Errors
    /// When threads cannot be started.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        if threads <= 1 {
            return Ok(Team::alone());
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("engine-math-{index}"))
            .build()
            .map_err(std::io::Error::other)?;
        Ok(Team { pool: Some(pool), eager: false })
    }

    #[cfg(test)]
    pub(crate) fn eager(threads: usize) -> std::io::Result<Self> {
        Ok(Team { eager: true, ..Team::new(threads)? })
    }

    /// Threads for a model of this size where none were asked for: all cores, or one for a tiny model.
    #[must_use]
    pub fn default_threads(weight_bytes: usize) -> usize {
        if weight_bytes < LARGE_MODEL_BYTES {
            return 1;
        }
        std::thread::available_parallelism().map_or(1, NonZero::get)
    }

    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.as_ref().map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Runs a step in the pool, so that [`Self::each`] need not wake anybody to begin.
    pub(crate) fn enter<T: Send>(&self, step: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            None => step(),
            Some(pool) => pool.install(step),
        }
    }

    /// Into how many parts to cut `work`, of which `least` is worth a thread of its own.
    pub(crate) fn parts(&self, work: usize, least: usize) -> usize {
        let least = if self.eager { 1 } else { least.max(1) };
        self.threads().min(work / least).max(1)
    }

    /// As [`Self::each`], on one thread where the work (in multiply-adds) is small.
    pub(crate) fn each_if<T: Send, S: Default>(&self, work: usize, tasks: Vec<T>, act: impl Fn(&mut S, T) + Sync) {
        if self.parts(work, WORTH_SHARING) == 1 {
            let mut scratch = S::default();
            tasks.into_iter().for_each(|task| act(&mut scratch, task));
        } else {
            self.each(tasks, act);
        }
    }

    /// Calls `act` on every task; each thread has a scratch space, made when it first needs one.
    pub(crate) fn each<T: Send, S: Default>(&self, mut tasks: Vec<T>, act: impl Fn(&mut S, T) + Sync) {
        if self.pool.is_none() || tasks.len() <= 1 {
            let mut scratch = S::default();
            for task in tasks {
                act(&mut scratch, task);
            }
            return;
        }
        tasks.par_drain(..).for_each_init(S::default, |scratch, task| act(scratch, task));
    }
}
