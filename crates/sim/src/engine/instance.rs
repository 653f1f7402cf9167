//! One instance: ranks that step together, on the virtual clock.
//!
//! Ranks of a data-parallel instance wait for each other in every layer, so a step takes as long as the slowest of them (workload
//! notes, section 2). A run of decode steps ends at the first request that ends, at the first page that is missing, or
//! where another rank becomes the slowest; an arrival that would be admitted cuts it at the next boundary.

use super::job::{Job, Key};
use super::plan::{Planned, Planning};
use super::rank::{Happened, Rank};
use super::{ContextWait, EngineShape};
use crate::step_time::{FS_PER_NS, Ramp, StepClock};
use plimsoll_core::{LoadReport, Nanos, Rank as RankId};
use plimsoll_timing::StepShape;

/// Figures of an instance since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstanceTotals {
    /// Femtoseconds spent in steps, and of them in steps with prefill.
    pub busy_fs: u128,
    pub prefill_fs: u128,
    pub steps: u64,
    pub output_tokens: u64,
    pub prefilled_tokens: u64,
    /// Loaded from below in place of being computed.
    pub loaded_tokens: u64,
    pub preemptions: u64,
}

/// Steps that are over, for the distribution of gaps between tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Exact, when the first of them began.
    pub begun_fs: u128,
    pub ramp: Ramp,
    pub steps: u64,
    /// Requests that got a token in each of them, besides those that got their first.
    pub tokens_each: u64,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    ramp: Ramp,
    steps: u64,
    prefill: bool,
    /// Nothing is computed: a load from below is waited for.
    waits: bool,
    hold: Option<Hold>,
}

/// An engine with one or more ranks.
#[derive(Debug)]
pub struct Instance {
    ranks: Vec<Rank>,
    /// Exact end of the last step.
    edge_fs: u128,
    run: Option<Run>,
    /// Counts runs, so that an event of a run that was cut is known as such.
    generation: u32,
    totals: InstanceTotals,
    shape: StepShape,
    /// Whose clients have gone; they leave at the end of the step.
    gone: Vec<(RankId, Key)>,
    /// Steps take so many times as long; 1 but under a fault.
    slowdown: u64,
    /// Steps for which prompts have been held back: until every rank had one, and for more of them.
    waited: u64,
    gathered: u64,
}

/// Why prompts are held back, and for how many steps at most.
#[derive(Clone, Copy, Debug)]
enum Hold {
    ForOthers(u64),
    ForMore(u64),
}

impl Instance {
    /// `tells`: its ranks keep KV events.
    #[must_use]
    pub fn new(shape: EngineShape, ranks: u16, tells: bool) -> Self {
        Instance {
            ranks: (0..ranks.max(1)).map(|_| Rank::new(shape, tells)).collect(),
            edge_fs: 0,
            run: None,
            generation: 0,
            totals: InstanceTotals::default(),
            shape: StepShape::default(),
            gone: Vec::new(),
            slowdown: 1,
            waited: 0,
            gathered: 0,
        }
    }

    #[must_use]
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    pub fn rank_mut(&mut self, rank: RankId) -> &mut Rank {
        &mut self.ranks[usize::from(rank.0)]
    }

    /// Of the run whose end was announced last.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.run.is_none()
    }

    #[must_use]
    pub fn totals(&self) -> InstanceTotals {
        let mut totals = self.totals;
        for rank in &self.ranks {
            totals.prefilled_tokens += rank.prefilled_tokens;
            totals.loaded_tokens += rank.loaded_tokens();
            totals.preemptions += rank.preemptions;
        }
        totals
    }

    /// The process is gone, and everything in it; returns who was. What it was is left empty.
    pub fn die(&mut self) -> Vec<Key> {
        self.totals = self.totals();
        let keys = self.ranks.iter().flat_map(Rank::keys).collect();
        for rank in &mut self.ranks {
            *rank = Rank::new(rank.shape, rank.events.is_some());
        }
        self.run = None;
        self.gone.clear();
        self.generation = self.generation.wrapping_add(1);
        keys
    }

    /// KV of a decoding request at a time within the run; `None` when it does not decode.
    #[must_use]
    pub fn kv_of(&self, now: Nanos, rank: RankId, key: Key) -> Option<u64> {
        let (_, kv_tokens) = self.ranks[usize::from(rank.0)].decoding().find(|(other, _)| *other == key)?;
        Some(kv_tokens + self.steps_over(now))
    }

    /// Takes a decoding request out, between two steps.
    pub fn take_out(&mut self, rank: RankId, key: Key) -> Option<Job> {
        debug_assert!(self.run.is_none());
        self.ranks[usize::from(rank.0)].take_out(key)
    }

    /// Steps of the run that are over.
    fn steps_over(&self, now: Nanos) -> u64 {
        self.run.filter(|run| !run.prefill && !run.waits).map_or(0, |run| {
            let span = (u128::from(now.0) * FS_PER_NS + 1).saturating_sub(self.edge_fs);
            run.ramp.steps_to(span, run.steps).saturating_sub(1)
        })
    }

    /// From the next step on.
    pub fn set_slowdown(&mut self, times: u64) {
        self.slowdown = times.max(1);
    }

    /// A request comes. Returns when the step or run that is under way ends now, if that has changed or it begins with
    /// this request; [`Self::generation`] then names it.
    ///
    /// # Errors
    /// Gives a request back that can never fit.
    pub fn submit(
        &mut self,
        now: Nanos,
        rank: RankId,
        job: Job,
        clock: &StepClock,
        out: &mut Vec<Happened>,
    ) -> Result<Option<Nanos>, Box<Job>> {
        let at = usize::from(rank.0);
        let admits = self.ranks[at].would_admit();
        self.ranks[at].submit(job)?;
        Ok(if self.run.is_none() {
            self.edge_fs = u128::from(now.0) * FS_PER_NS;
            self.begin(clock, out)
        } else if admits {
            self.cut(now)
        } else {
            None
        })
    }

    /// Ends the run at the next boundary after `now`. Returns when that is, where it has changed.
    pub fn cut(&mut self, now: Nanos) -> Option<Nanos> {
        let run = self.run.as_mut()?;
        if run.waits {
            let span = (u128::from(now.0) * FS_PER_NS).saturating_sub(self.edge_fs);
            run.ramp.first_fs = u64::try_from(span).unwrap_or(u64::MAX).min(run.ramp.first_fs);
            return Some(self.announce());
        }
        // A boundary at this very nanosecond is in the past: its event came first.
        let span = (u128::from(now.0) * FS_PER_NS + 1).saturating_sub(self.edge_fs);
        let steps = run.ramp.steps_to(span, run.steps).max(1);
        if steps == run.steps {
            return None;
        }
        run.steps = steps;
        Some(self.announce())
    }

    /// The client of a request has gone: one that waits leaves at once, one that runs at the end of the step. Returns when that is, where it has changed;
    /// [`Self::generation`] then names it. Nothing more should be made of what still happens to it.
    pub fn abort(&mut self, now: Nanos, rank: RankId, key: Key) -> Option<Nanos> {
        if self.ranks[usize::from(rank.0)].drop_waiting(key) {
            return None;
        }
        self.gone.push((rank, key));
        self.cut(now)
    }

    /// The run that was announced last is over: what became of whom. Call [`Self::begin`] then.
    pub fn end(&mut self, out: &mut Vec<Happened>) -> StepReport {
        let Some(run) = self.run.take() else { return StepReport::default() };
        let (took, begun_fs) = (run.ramp.total_fs(run.steps), self.edge_fs);
        self.edge_fs += took;
        if run.waits {
            for (rank, key) in std::mem::take(&mut self.gone) {
                self.ranks[usize::from(rank.0)].drop_running(key);
            }
            return StepReport::default();
        }
        match run.hold {
            // Whoever found no pages need not wait anew.
            None if run.prefill => (self.waited, self.gathered) = (0, 0),
            None => {}
            Some(Hold::ForOthers(_)) => self.waited += run.steps,
            Some(Hold::ForMore(_)) => self.gathered += run.steps,
        }
        self.totals.busy_fs += took;
        self.totals.steps += run.steps;
        if run.prefill {
            self.totals.prefill_fs += took;
        }
        let decoding: u64 = self.ranks.iter().map(|rank| rank.batch.requests()).sum();
        // Gaps of those who came with their KV are longer than this step, and told apart.
        let newcomers: u64 = self.ranks.iter().map(|rank| rank.newcomers.len() as u64).sum();
        let tokens_each = decoding - newcomers;
        let first = out.len();
        for rank in &mut self.ranks {
            rank.advance(run.steps, out);
        }
        for (rank, key) in std::mem::take(&mut self.gone) {
            self.ranks[usize::from(rank.0)].drop_running(key);
        }
        let firsts = out[first..].iter().filter(|one| !matches!(one, Happened::Finished { .. })).count();
        self.totals.output_tokens += tokens_each * run.steps + firsts as u64;
        debug_assert!(newcomers == 0 || run.steps == 1);
        StepReport { begun_fs, ramp: run.ramp, steps: run.steps, tokens_each }
    }

    /// Plans and begins the next step or run. Returns when it ends; `None` when there is nothing to do.
    pub fn begin(&mut self, clock: &StepClock, out: &mut Vec<Happened>) -> Option<Nanos> {
        let hold = self.hold();
        let (mut mixed, mut decode) = (None::<u64>, None::<(Ramp, u64)>);
        let mut wake = None::<u128>;
        for rank in &mut self.ranks {
            let mut with = Planning { clock, shape: &mut self.shape, now_fs: self.edge_fs, hold: hold.is_some() };
            let (planned, loaded) = rank.plan(&mut with, out);
            wake = wake.into_iter().chain(loaded).min();
            match planned {
                Planned::Idle => {}
                Planned::Mixed { fs } => mixed = Some(mixed.unwrap_or(0).max(fs)),
                Planned::Decode { ramp, steps } => {
                    decode = Some(match decode {
                        None => (ramp, steps),
                        Some((slowest, most)) => slower(slowest, ramp, most.min(steps)),
                    });
                }
            }
        }
        let slow = |ramp: Ramp| Ramp {
            first_fs: ramp.first_fs.saturating_mul(self.slowdown),
            growth_fs: ramp.growth_fs.saturating_mul(self.slowdown),
        };
        let until = wake.map(|at| at.saturating_sub(self.edge_fs).max(1));
        self.run = Some(match (mixed, decode) {
            (None, None) => {
                let first_fs = u64::try_from(until?).unwrap_or(u64::MAX);
                Run { ramp: Ramp { first_fs, growth_fs: 0 }, steps: 1, prefill: false, waits: true, hold: None }
            }
            (None, Some((ramp, steps))) => {
                let ramp = slow(ramp);
                let steps = until.map_or(steps, |until| ramp.steps_to(until, steps).max(1));
                let steps = match hold {
                    None => steps,
                    Some(Hold::ForOthers(most) | Hold::ForMore(most)) => steps.min(most),
                };
                Run { ramp, steps, prefill: false, waits: false, hold }
            }
            (Some(fs), decode) => {
                let first_fs = fs.max(decode.map_or(0, |(ramp, _)| ramp.first_fs));
                Run { ramp: slow(Ramp { first_fs, growth_fs: 0 }), steps: 1, prefill: true, waits: false, hold: None }
            }
        });
        Some(self.announce())
    }

    /// Whether the next step holds prompts back. Not while a rank has nothing to decode: it would stand still.
    fn hold(&mut self) -> Option<Hold> {
        let ContextWait { timeout_steps, batching_steps } = self.ranks.first()?.shape.context_wait?;
        let with_prompt = self.ranks.iter().filter(|rank| rank.has_prompt()).count();
        if with_prompt == 0 {
            (self.waited, self.gathered) = (0, 0);
        }
        if with_prompt == 0 || self.ranks.len() == 1 || self.ranks.iter().any(|rank| rank.batch.requests() == 0) {
            return None;
        }
        let left = |most: u64, so_far: u64| most.checked_sub(so_far).filter(|left| *left > 0);
        if with_prompt < self.ranks.len() {
            return left(timeout_steps, self.waited).map(Hold::ForOthers);
        }
        left(batching_steps, self.gathered).map(Hold::ForMore)
    }

    fn announce(&mut self) -> Nanos {
        self.generation = self.generation.wrapping_add(1);
        let span = self.run.map_or(0, |run| run.ramp.total_fs(run.steps));
        Nanos(u64::try_from((self.edge_fs + span).div_ceil(FS_PER_NS)).unwrap_or(u64::MAX))
    }

    /// Context of everybody who runs, at a time within the run.
    pub fn contexts(&self, now: Nanos) -> impl Iterator<Item = u64> + '_ {
        let ahead = self.steps_over(now);
        self.ranks.iter().flat_map(move |rank| rank.contexts(ahead))
    }

    /// What each rank tells of its load.
    pub fn reports(&self, now: Nanos) -> impl Iterator<Item = LoadReport> + '_ {
        let ahead = self.steps_over(now);
        self.ranks.iter().enumerate().map(move |(at, rank)| rank.report(RankId(at as u16), now, ahead))
    }

    /// See [`Rank::check`].
    ///
    /// # Errors
    /// Says which counter of which rank is wrong.
    pub fn check(&self) -> Result<(), String> {
        let check = |(at, rank): (usize, &Rank)| rank.check().map_err(|why| format!("rank {at}: {why}"));
        self.ranks.iter().enumerate().try_for_each(check)
    }
}

/// The slower of two, and for how long it stays that.
fn slower(a: Ramp, b: Ramp, most: u64) -> (Ramp, u64) {
    let (lead, other) = if a >= b { (a, b) } else { (b, a) };
    if other.growth_fs <= lead.growth_fs {
        return (lead, most);
    }
    let closing = other.growth_fs - lead.growth_fs;
    let until = (lead.first_fs - other.first_fs).div_ceil(closing).max(1);
    (lead, most.min(until))
}
