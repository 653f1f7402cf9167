//! The queue of one pool with everything that must be found in it: who is next, whose deadline is nearest, who has waited longest.

use crate::fair_queue::{Depth, FairQueue, Full, Waiting, Weights};
use crate::slo::{Job, Standing};
use plimsoll_core::{Class, Nanos, RequestId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::rules::OnSloMiss;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub arrived: Nanos,
    pub class: Class,
    pub prefill_tokens: u64,
    /// When its first token should be there.
    pub first_token_by: Nanos,
    /// From the moment an engine begins it to its first token; `None` while no rate is known.
    pub service: Option<Nanos>,
    /// For how long it keeps the engine from others: less than its service where an engine computes several at once. `None` while no rate is known.
    pub work: Option<Nanos>,
    /// It may be refused when that cannot be kept.
    pub on_miss: Option<OnSloMiss>,
    /// When it is answered if it has not gone: no later than this.
    pub give_up: Nanos,
    /// When its own deadline is.
    pub answer_by: Nanos,
}

impl Waiter {
    fn latest_start(&self) -> Nanos {
        (self.first_token_by - self.service.unwrap_or(Nanos::ZERO)).min(self.give_up)
    }

    fn job(&self, key: RequestId) -> Option<Job<RequestId>> {
        let standing = if self.on_miss.is_some() { Standing::Promised } else { Standing::Unbound };
        let service = self.service?;
        let beside = self.beside();
        // Added up is what keeps engines busy; what a request takes beyond that it takes beside others, and must be done by so much earlier.
        Some(Job { key, deadline: self.first_token_by - beside, service: service - beside, standing })
    }

    /// The part of its service that keeps no engine from others.
    pub(crate) fn beside(&self) -> Nanos {
        let service = self.service.unwrap_or(Nanos::ZERO);
        service - self.work.map_or(service, |work| work.min(service))
    }
}

/// A request as the rule of promises sees it.
type ClassJob = (Class, Job<RequestId>);

/// The queue and its indexes.
#[derive(Debug)]
pub(crate) struct Line {
    queue: FairQueue<RequestId, Arc<str>>,
    waiters: BTreeMap<RequestId, Waiter>,
    /// With what the rule needs of each, so that a look walks one list; `None` while no rate is known.
    by_deadline: [BTreeMap<(Nanos, RequestId), Option<ClassJob>>; 3],
    by_give_up: BTreeSet<(Nanos, RequestId)>,
    by_arrival: [BTreeSet<(Nanos, RequestId)>; 3],
    prefill_tokens: u64,
    promised: usize,
}

/// What a newcomer brings.
pub(crate) struct Entry {
    pub key: RequestId,
    pub tenant: Arc<str>,
    pub weight: u32,
    pub cost_tokens: u64,
    pub bytes: u64,
    pub waiter: Waiter,
}

impl Line {
    pub(crate) fn new(bounds: crate::fair_queue::Bounds, weights: Weights) -> Self {
        Line {
            queue: FairQueue::new(bounds, weights),
            waiters: BTreeMap::new(),
            by_deadline: Default::default(),
            by_give_up: BTreeSet::new(),
            by_arrival: Default::default(),
            prefill_tokens: 0,
            promised: 0,
        }
    }

    pub(crate) fn reconfigure(&mut self, bounds: crate::fair_queue::Bounds, weights: Weights) {
        self.queue.reconfigure(bounds, weights);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(crate) fn get(&self, key: RequestId) -> Option<&Waiter> {
        self.waiters.get(&key)
    }

    /// Lets it wait. Returns who had to leave for it.
    pub(crate) fn push(&mut self, entry: Entry) -> Result<Vec<(RequestId, Waiter)>, Full> {
        let Entry { key, tenant, weight, cost_tokens, bytes, waiter } = entry;
        let latest_start = waiter.latest_start();
        let waiting = Waiting { key, class: waiter.class, tenant, cost_tokens, bytes, latest_start };
        let displaced = self.queue.push(waiting, weight).map_err(|rejected| rejected.full)?;
        self.enter(key, waiter);
        let left = displaced.into_iter().filter_map(|gone| Some((gone.key, self.leave(gone.key)?)));
        Ok(left.collect())
    }

    /// Puts it at the end of the low class, without a promise.
    pub(crate) fn demote(&mut self, key: RequestId, weight: u32) -> Option<Waiter> {
        let request = self.queue.remove(&key)?;
        let waiter = self.leave(key)?;
        let waiter = Waiter { class: Class::Low, on_miss: None, first_token_by: waiter.give_up, ..waiter };
        // Behind everything of its tenant that is promised something.
        let last = Waiting { class: Class::Low, latest_start: Nanos::MAX, ..request };
        match self.queue.push(last, weight) {
            Ok(_) => {
                self.enter(key, waiter);
                None
            }
            Err(_) => Some(waiter),
        }
    }

    pub(crate) fn remove(&mut self, key: RequestId) -> Option<Waiter> {
        self.queue.remove(&key)?;
        self.leave(key)
    }

    pub(crate) fn peek(&self, may_go: impl Fn(Class) -> bool) -> Option<RequestId> {
        self.queue.peek(may_go).map(|next| next.key)
    }

    /// Who of a class is next but for those that `skip` names, among the first `most`.
    pub(crate) fn peek_past(&self, class: Class, most: usize, skip: impl Fn(RequestId) -> bool) -> Option<RequestId> {
        self.queue.peek_past(class, most, |key| skip(*key)).map(|next| next.key)
    }

    /// Takes out one whose turn it is taken to be.
    pub(crate) fn serve(&mut self, key: RequestId) -> Option<Waiter> {
        self.queue.serve(&key)?;
        self.leave(key)
    }

    /// Jobs whose first token is due first, at most `most` of each class: a long queue of one class hides no promise to another.
    pub(crate) fn jobs(&self, most: usize) -> Vec<ClassJob> {
        self.by_deadline.iter().flat_map(|class| class.values().take(most)).filter_map(|job| *job).collect()
    }

    /// Requests that may be refused for their promise.
    pub(crate) fn promised(&self) -> usize {
        self.promised
    }

    /// Whose time is up at `now`, the first.
    pub(crate) fn overdue(&self, now: Nanos) -> Option<RequestId> {
        self.by_give_up.first().filter(|(at, _)| *at <= now).map(|(_, key)| *key)
    }

    /// When the next one's time is up.
    pub(crate) fn next_give_up(&self) -> Option<Nanos> {
        self.by_give_up.first().map(|(at, _)| *at)
    }

    /// When the oldest of a class arrived.
    pub(crate) fn oldest(&self, class: Class) -> Option<Nanos> {
        self.by_arrival[class as usize].first().map(|(at, _)| *at)
    }

    /// What a class was served beyond its share, in tokens, against others that wait.
    pub(crate) fn lead_tokens(&self, class: Class) -> u64 {
        self.queue.lead_tokens(class)
    }

    pub(crate) fn depth(&self) -> Depth {
        self.queue.depth()
    }

    pub(crate) fn depth_of(&self, class: Class) -> Depth {
        self.queue.depth_of(class)
    }

    pub(crate) fn prefill_tokens(&self) -> u64 {
        self.prefill_tokens
    }

    fn enter(&mut self, key: RequestId, waiter: Waiter) {
        let job = waiter.job(key).map(|job| (waiter.class, job));
        self.by_deadline[waiter.class as usize].insert((waiter.first_token_by, key), job);
        self.by_give_up.insert((waiter.give_up, key));
        self.by_arrival[waiter.class as usize].insert((waiter.arrived, key));
        self.prefill_tokens = self.prefill_tokens.saturating_add(waiter.prefill_tokens);
        self.promised += usize::from(waiter.on_miss.is_some());
        self.waiters.insert(key, waiter);
    }

    fn leave(&mut self, key: RequestId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&key)?;
        self.by_deadline[waiter.class as usize].remove(&(waiter.first_token_by, key));
        self.by_give_up.remove(&(waiter.give_up, key));
        self.by_arrival[waiter.class as usize].remove(&(waiter.arrived, key));
        self.prefill_tokens -= waiter.prefill_tokens;
        self.promised -= usize::from(waiter.on_miss.is_some());
        Some(waiter)
    }
}
