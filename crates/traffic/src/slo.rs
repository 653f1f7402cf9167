//! Which of the requests that wait can still meet their deadlines, and in which order (`design/traffic.md`, SLO).
//!
//! Under overload somebody is late. Serving everybody in turn makes nearly all late; refusing a few at once keeps the
//! rest in time, and those few can go elsewhere while that still helps. Moore's rule (J. M. Moore, "An n job, one
//! machine sequencing algorithm for minimizing the number of late jobs", Management Science 15(1), 1968, with
//! Hodgson's simplification) refuses the fewest: go in deadline order and add up service times; when a deadline is
//! passed, drop the longest of those kept so far. O(n log n).
//!
//! Three things are added, and compared with brute force like the rule itself (what stands fixed costs more time: [`exact`]):
//! - a pool of `capacity` equal engines is one engine of that speed, but no request is served faster than one engine can
//!   serve it. (With jobs that cannot be shared out, the exact problem is NP-hard from two machines on.)
//! - work that is not up for refusal: what has begun ([`Standing::Begun`]) keeps its place and, if it can meet its
//!   deadline at all, its deadline;
//! - work without a deadline ([`Standing::Unbound`]) takes time at its place in the order and is never refused.

use plimsoll_core::Nanos;
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

mod by_class;
mod engines;
mod exact;
mod parts;
#[cfg(test)]
mod tests;

pub use by_class::{ByClass, feasible_by_class};
pub use engines::Engines;

/// What may be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It waits and has a deadline: served in time or refused.
    Promised,
    /// It has a deadline and is paid for: never refused. Its deadline counts if it can be met with every promised
    /// request gone.
    Begun,
    /// It has no deadline, only a place in the order: never refused, never late.
    Unbound,
}

/// A request as the rule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job<K> {
    /// Unique. Ties are broken by it, the smaller first, so make it grow with arrival.
    pub key: K,
    /// When it must be done; for an unbound one, its place in the order.
    pub deadline: Nanos,
    /// How long one engine that does nothing else takes for it.
    pub service: Nanos,
    pub standing: Standing,
}

impl<K> Job<K> {
    /// When its service must begin at the latest; zero when that was before time began.
    #[must_use]
    pub fn latest_start(&self) -> Nanos {
        self.deadline - self.service
    }

    /// How long it can still wait.
    #[must_use]
    pub fn slack(&self, now: Nanos) -> Nanos {
        self.latest_start().since(now)
    }
}

/// The order in which a set that [`feasible_set`] kept meets its deadlines: earliest deadline first.
#[must_use]
pub fn deadline_order<K: Ord>(a: &Job<K>, b: &Job<K>) -> Ordering {
    a.deadline.cmp(&b.deadline).then_with(|| a.key.cmp(&b.key))
}

/// Near expiry first: who must begin soonest. For handing requests one by one to engines that work side by side, where a
/// long request must not wait for the last moment of the short ones. On one engine that serves one after another use
/// [`deadline_order`]: there this order can make a short request wait for a long one that had time.
#[must_use]
pub fn near_expiry<K: Ord>(a: &Job<K>, b: &Job<K>) -> Ordering {
    a.latest_start().cmp(&b.latest_start()).then_with(|| a.key.cmp(&b.key))
}

/// Who serves.
pub trait Serving {
    /// When `work` nanoseconds of service are done, the last of them being `own` of one request. Never earlier for more work.
    fn finish(&self, work: u128, own: Nanos) -> Nanos;

    /// When a request is done that needs not wait for others.
    #[must_use]
    fn finish_alone(&self, service: Nanos) -> Nanos {
        self.finish(u128::from(service.0), service)
    }
}

/// Equal engines that come free at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// When it can begin: now, or when what is not in the list is done.
    pub free_at: Nanos,
    /// Engines that work side by side.
    pub capacity: NonZeroU32,
    /// What any request takes at least, from `free_at`; zero if that is not known.
    pub least: Nanos,
}

impl Serving for Pool {
    fn finish(&self, work: u128, own: Nanos) -> Nanos {
        let shared = work.div_ceil(u128::from(self.capacity.get()));
        let shared = Nanos(u64::try_from(shared).unwrap_or(u64::MAX));
        self.free_at + shared.max(own).max(self.least)
    }
}

/// A request that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Refused<K> {
    pub key: K,
    /// When it would be done if it were served without making a kept one late. Always after its deadline.
    pub finish: Nanos,
    /// Even with the pool to itself it would be late.
    pub alone: bool,
}

/// What [`feasible_set`] decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict<K> {
    /// Everybody who stays, in the order in which to serve them.
    pub kept: Vec<K>,
    /// In deadline order.
    pub refused: Vec<Refused<K>>,
    /// How long the pool may stand still before a deadline that is met becomes one that is missed. `None`: there is
    /// none to miss. Until then, without new jobs, the verdict stands.
    pub slack: Option<Nanos>,
}

/// The largest set of promised requests that can all be served in time, besides everything that may not be refused;
/// of the largest sets one with the least work; with work that stands fixed, as long as at most
/// 64 are promised. Nothing depends on the order of `jobs`.
#[must_use]
pub fn feasible_set<K: Ord + Copy>(jobs: &[Job<K>], pool: &impl Serving) -> Verdict<K> {
    let mut order: Vec<&Job<K>> = jobs.iter().collect();
    order.sort_unstable_by(|a, b| deadline_order(*a, *b));
    let duties = duties(&order, pool);
    let mut kept = vec![true; order.len()];
    // Promised ones kept so far, the longest on top, of equals the newest.
    let mut longest: BinaryHeap<(Nanos, K, usize)> = BinaryHeap::new();
    let mut work = 0u128;
    for (index, job) in order.iter().enumerate() {
        work += u128::from(job.service.0);
        let late = |work: u128| pool.finish(work, job.service) > job.deadline;
        if job.standing != Standing::Promised {
            // A begun one can be in time with all promised ones gone, so this ends.
            while duties[index] && late(work) {
                let Some((service, _, at)) = longest.pop() else { break };
                kept[at] = false;
                work -= u128::from(service.0);
            }
            continue;
        }
        let own = (job.service, job.key, index);
        if !late(work) {
            longest.push(own);
            continue;
        }
        // One has to go: the longest if that is enough, else this one, which alone is late. Without work that may not be
        // refused the longest is always enough, as before this one everything was in time.
        match longest.peek_mut() {
            Some(mut top) if *top > own && !late(work - u128::from(top.0.0)) => {
                work -= u128::from(top.0.0);
                kept[top.2] = false;
                *top = own;
            }
            _ => {
                work -= u128::from(job.service.0);
                kept[index] = false;
            }
        }
    }
    let promised = order.iter().filter(|job| job.standing == Standing::Promised).count();
    if promised <= exact::MOST && promised < order.len() && kept.contains(&false) {
        kept = exact::largest(&order, &duties, pool);
    }
    verdict(&order, &duties, &kept, pool)
}

/// Whose deadline must be met if it stays: promised ones, and begun ones that can be in time.
fn duties<K>(order: &[&Job<K>], pool: &impl Serving) -> Vec<bool> {
    let mut fixed = 0u128;
    let duty = |job: &&Job<K>| match job.standing {
        Standing::Promised => true,
        Standing::Begun => {
            fixed += u128::from(job.service.0);
            pool.finish(fixed, job.service) <= job.deadline
        }
        Standing::Unbound => {
            fixed += u128::from(job.service.0);
            false
        }
    };
    order.iter().map(duty).collect()
}

fn verdict<K: Copy>(order: &[&Job<K>], duties: &[bool], kept: &[bool], pool: &impl Serving) -> Verdict<K> {
    let mut verdict = Verdict { kept: Vec::with_capacity(order.len()), refused: Vec::new(), slack: None };
    // Work up to and including each place.
    let mut until = Vec::with_capacity(order.len());
    let mut work = 0u128;
    let mut last_duty = 0;
    for (index, job) in order.iter().enumerate() {
        if kept[index] {
            verdict.kept.push(job.key);
            work += u128::from(job.service.0);
            if duties[index] {
                let slack = job.deadline.since(pool.finish(work, job.service));
                verdict.slack = Some(verdict.slack.map_or(slack, |least| least.min(slack)));
                last_duty = index;
            }
        }
        until.push(work);
    }
    for (index, job) in order.iter().enumerate().filter(|(index, _)| !kept[*index]) {
        let behind = until[index.max(last_duty)] + u128::from(job.service.0);
        verdict.refused.push(Refused {
            key: job.key,
            finish: pool.finish(behind, job.service),
            alone: pool.finish_alone(job.service) > job.deadline,
        });
    }
    verdict
}
