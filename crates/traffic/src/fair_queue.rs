//! Requests that wait for a place, in the order in which they get one (`design/traffic.md`, Queue).
//!
//! Classes share what is served by weight (8:4:1), tenants within a class equally or by weight, counted in tokens; of one
//! tenant's requests the one goes first that must begin soonest. A class or tenant that has nothing to do leaves its share
//! to the others and saves none of it up.
//!
//! The design asks for deficit round robin. Costs differ by a factor of 10^5 here, and with them round robin needs a
//! quantum as large as the largest request, or many rounds for one request. Start-time fair queuing (P. Goyal, H. Vin,
//! H. Cheng, "Start-time fair queueing", SIGCOMM 1996) keeps the same promise without a quantum: over any time in which two
//! flows both wait, what they were served, divided by their weights, differs by at most one largest request of each. Every
//! operation is O(log n).

use plimsoll_core::{Class, Nanos};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
mod tests;

/// A request that waits. `K` is unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting<K, T> {
    pub key: K,
    pub class: Class,
    pub tenant: T,
    /// What serving it takes; zero counts as one.
    pub cost_tokens: u64,
    /// Memory it holds.
    pub bytes: u64,
    /// When its service must begin at the latest.
    pub latest_start: Nanos,
}

/// Most that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bounds {
    pub requests: u64,
    pub bytes: u64,
    pub tokens: u64,
}

/// Shares of the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Weights {
    pub high: u32,
    pub medium: u32,
    pub low: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Weights { high: 8, medium: 4, low: 1 }
    }
}

impl Weights {
    /// A weight of zero would starve; it counts as one.
    #[must_use]
    pub fn of(&self, class: Class) -> u32 {
        match class {
            Class::High => self.high,
            Class::Medium => self.medium,
            Class::Low => self.low,
        }
        .max(1)
    }
}

/// A request that did not enter: the queue is full of requests that are at least as important.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected<K, T> {
    pub full: Full,
    pub request: Waiting<K, T>,
}

/// Which bound was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Full {
    Requests,
    Bytes,
    Tokens,
}

/// What waits, of a class or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Depth {
    pub requests: u64,
    pub bytes: u64,
    pub tokens: u64,
}

impl Depth {
    fn add<K, T>(&mut self, one: &Waiting<K, T>) {
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(one.bytes);
        self.tokens = self.tokens.saturating_add(one.cost_tokens);
    }

    fn sub<K, T>(&mut self, one: &Waiting<K, T>) {
        self.requests -= 1;
        self.bytes -= one.bytes;
        self.tokens -= one.cost_tokens;
    }

    /// The first bound that is passed with a request more and `less` fewer.
    fn over<K, T>(&self, one: &Waiting<K, T>, less: Depth, bounds: &Bounds) -> Option<Full> {
        let passes = |held: u64, less: u64, more: u64, most: u64| (held - less).saturating_add(more) > most;
        if passes(self.requests, less.requests, 1, bounds.requests) {
            Some(Full::Requests)
        } else if passes(self.bytes, less.bytes, one.bytes, bounds.bytes) {
            Some(Full::Bytes)
        } else {
            passes(self.tokens, less.tokens, one.cost_tokens, bounds.tokens).then_some(Full::Tokens)
        }
    }
}

/// Virtual time: tokens over weight, in units of 2^-20.
type Virtual = u128;

fn advance(cost_tokens: u64, weight: u32) -> Virtual {
    (u128::from(cost_tokens.max(1)) << 20) / u128::from(weight)
}

#[derive(Debug)]
struct Tenant<K, T> {
    /// When its next request begins, in the class's virtual time.
    start: Virtual,
    weight: u32,
    requests: BTreeMap<(Nanos, u64), Waiting<K, T>>,
    /// What those cost together.
    tokens: u64,
}

impl<K, T> Tenant<K, T> {
    /// What it holds for its weight.
    fn held(&self) -> Virtual {
        (u128::from(self.tokens) << 20) / u128::from(self.weight)
    }
}

#[derive(Debug)]
struct ClassQueue<K, T> {
    /// When the class's next request begins, in the queue's virtual time.
    start: Virtual,
    /// Start of what was served last.
    now: Virtual,
    tenants: BTreeMap<T, Tenant<K, T>>,
    /// Tenants with requests, by when the next one begins.
    ready: BTreeSet<(Virtual, T)>,
    /// Tenants without, that have had more than their share.
    ahead: BTreeSet<(Virtual, T)>,
    /// Tenants with requests, by what they hold for their weight.
    held: BTreeSet<(Virtual, T)>,
    /// By arrival.
    arrivals: BTreeMap<u64, (T, Nanos)>,
    depth: Depth,
}

/// The bounded queue of one pool.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    bounds: Bounds,
    weights: Weights,
    classes: [ClassQueue<K, T>; 3],
    now: Virtual,
    places: BTreeMap<K, (Class, u64)>,
    arrived: u64,
}

impl<K: Ord + Clone, T: Ord + Clone> FairQueue<K, T> {
    #[must_use]
    pub fn new(bounds: Bounds, weights: Weights) -> Self {
        let classes = [(); 3].map(|()| ClassQueue {
            start: 0,
            now: 0,
            tenants: BTreeMap::new(),
            ready: BTreeSet::new(),
            ahead: BTreeSet::new(),
            held: BTreeSet::new(),
            arrivals: BTreeMap::new(),
            depth: Depth::default(),
        });
        FairQueue { bounds, weights, classes, now: 0, places: BTreeMap::new(), arrived: 0 }
    }

    /// Lets a request wait; `tenant_weight` is its tenant's share within the class. Where there is no room, the newest
    /// requests of lower classes make some, the lowest first, and are returned. Where there are none, the tenant of its own class that
    /// holds the most for its weight gives up the request that can wait longest, if that is enough and he holds more than the newcomer's would
    /// then: a queue that one tenant has filled is not full for the others. A key that waits already is replaced.
    ///
    /// # Errors
    /// When that would not be enough. Nothing changes then, and the request comes back.
    pub fn push(&mut self, request: Waiting<K, T>, tenant_weight: u32) -> Result<Vec<Waiting<K, T>>, Rejected<K, T>> {
        self.remove(&request.key);
        let all = self.depth();
        let mut below = Depth::default();
        for class in Class::ALL.into_iter().filter(|class| *class > request.class) {
            let depth = self.classes[class as usize].depth;
            below.requests += depth.requests;
            below.bytes += depth.bytes;
            below.tokens += depth.tokens;
        }
        if let Some(full) = all.over(&request, below, &self.bounds) {
            return match self.take_from_largest(&request, tenant_weight.max(1), all, below) {
                Some(gone) => {
                    let mut displaced = self.make_room(&request);
                    displaced.push(gone);
                    self.enter(request, tenant_weight.max(1));
                    Ok(displaced)
                }
                None => Err(Rejected { full, request }),
            };
        }
        let displaced = self.make_room(&request);
        self.enter(request, tenant_weight.max(1));
        Ok(displaced)
    }

    /// Takes requests of lower classes out until the newcomer fits.
    fn make_room(&mut self, request: &Waiting<K, T>) -> Vec<Waiting<K, T>> {
        let mut displaced = Vec::new();
        while self.depth().over(request, Depth::default(), &self.bounds).is_some() {
            // There is one: without them the request fits.
            let lower = Class::ALL.into_iter().rev().take_while(|class| *class > request.class);
            let Some(class) = lower.into_iter().find(|class| self.classes[*class as usize].depth.requests > 0) else {
                break;
            };
            let newest = self.classes[class as usize].arrivals.last_key_value().map(|(seq, _)| *seq);
            displaced.extend(newest.and_then(|seq| self.take(class, seq)));
        }
        displaced
    }

    /// Takes one request from the tenant that holds the most, if that is enough beside all of the lower classes.
    fn take_from_largest(
        &mut self,
        request: &Waiting<K, T>,
        weight: u32,
        all: Depth,
        mut less: Depth,
    ) -> Option<Waiting<K, T>> {
        let queue = &self.classes[request.class as usize];
        let (most, name) = queue.held.last().filter(|(_, name)| *name != request.tenant)?;
        let own = queue.tenants.get(&request.tenant).map_or(0, |tenant| tenant.tokens);
        if (u128::from(own.saturating_add(request.cost_tokens)) << 20) / u128::from(weight) >= *most {
            return None;
        }
        let ((_, seq), last) = queue.tenants.get(name)?.requests.last_key_value()?;
        less.add(last);
        let seq = *seq;
        if all.over(request, less, &self.bounds).is_some() {
            return None;
        }
        self.take(request.class, seq)
    }

    fn enter(&mut self, request: Waiting<K, T>, weight: u32) {
        let seq = self.arrived;
        self.arrived += 1;
        let class = &mut self.classes[request.class as usize];
        if class.depth.requests == 0 {
            class.start = class.start.max(self.now);
        }
        let now = class.now;
        let tenant = class.tenants.entry(request.tenant.clone()).or_insert_with(|| Tenant {
            start: now,
            weight,
            requests: BTreeMap::new(),
            tokens: 0,
        });
        class.held.remove(&(tenant.held(), request.tenant.clone()));
        tenant.weight = weight;
        tenant.tokens = tenant.tokens.saturating_add(request.cost_tokens);
        class.held.insert((tenant.held(), request.tenant.clone()));
        if tenant.requests.is_empty() {
            class.ahead.remove(&(tenant.start, request.tenant.clone()));
            tenant.start = tenant.start.max(now);
            class.ready.insert((tenant.start, request.tenant.clone()));
        }
        self.places.insert(request.key.clone(), (request.class, seq));
        class.arrivals.insert(seq, (request.tenant.clone(), request.latest_start));
        class.depth.add(&request);
        tenant.requests.insert((request.latest_start, seq), request);
    }

    /// Who is next, of the classes that may go.
    #[must_use]
    pub fn peek(&self, may_go: impl Fn(Class) -> bool) -> Option<&Waiting<K, T>> {
        let class = &self.classes[self.next_class(may_go)? as usize];
        let (_, tenant) = class.ready.first()?;
        class.tenants.get(tenant)?.requests.first_key_value().map(|(_, request)| request)
    }

    /// What a class has had beyond its share, in its own tokens, against the class furthest behind among those that wait; zero where none does.
    #[must_use]
    pub fn lead_tokens(&self, class: Class) -> u64 {
        let waits = |other: &&ClassQueue<K, T>| other.depth.requests > 0;
        let furthest = self.classes.iter().filter(waits).map(|other| other.start).min().unwrap_or(Virtual::MAX);
        let lead = self.classes[class as usize].start.saturating_sub(furthest);
        u64::try_from((lead * u128::from(self.weights.of(class))) >> 20).unwrap_or(u64::MAX)
    }

    /// Takes out who is next, of the classes that may go.
    pub fn pop(&mut self, may_go: impl Fn(Class) -> bool) -> Option<Waiting<K, T>> {
        let key = self.peek(may_go)?.key.clone();
        self.serve(&key)
    }

    /// Who of a class is next but for those that `skip` names, among the first `most`.
    #[must_use]
    pub fn peek_past(&self, class: Class, most: usize, skip: impl Fn(&K) -> bool) -> Option<&Waiting<K, T>> {
        let queue = &self.classes[class as usize];
        let tenants = queue.ready.iter().filter_map(|(_, name)| queue.tenants.get(name));
        tenants.flat_map(|tenant| tenant.requests.values()).take(most).find(|request| !skip(&request.key))
    }

    /// Takes out one that waits as if it were next: class and tenant have had it.
    pub fn serve(&mut self, key: &K) -> Option<Waiting<K, T>> {
        let (class, seq) = *self.places.get(key)?;
        let queue = &mut self.classes[class as usize];
        let (name, latest_start) = queue.arrivals.get(&seq)?.clone();
        let tenant = queue.tenants.get(&name)?;
        let (start, cost) = (tenant.start, tenant.requests.get(&(latest_start, seq))?.cost_tokens);
        self.now = self.now.max(queue.start);
        queue.now = queue.now.max(start);
        queue.start += advance(cost, self.weights.of(class));
        queue.charge(&name, cost);
        let request = self.take(class, seq);
        self.forget();
        request
    }

    /// Takes a request out that was cancelled, refused, or has found another way.
    pub fn remove(&mut self, key: &K) -> Option<Waiting<K, T>> {
        let (class, seq) = *self.places.get(key)?;
        let request = self.take(class, seq);
        self.forget();
        request
    }

    #[must_use]
    pub fn depth(&self) -> Depth {
        let mut all = Depth::default();
        for ClassQueue { depth, .. } in &self.classes {
            all.requests += depth.requests;
            all.bytes += depth.bytes;
            all.tokens += depth.tokens;
        }
        all
    }

    #[must_use]
    pub fn depth_of(&self, class: Class) -> Depth {
        self.classes[class as usize].depth
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// All that wait, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting<K, T>> {
        self.classes.iter().flat_map(|class| class.tenants.values()).flat_map(|tenant| tenant.requests.values())
    }

    /// Changes bounds and weights. What waits stays, even beyond a smaller bound.
    pub fn reconfigure(&mut self, bounds: Bounds, weights: Weights) {
        (self.bounds, self.weights) = (bounds, weights);
    }

    /// Tenants that are remembered.
    #[cfg(test)]
    pub(crate) fn known_tenants(&self) -> usize {
        self.classes.iter().map(|class| class.tenants.len()).sum()
    }

    fn next_class(&self, may_go: impl Fn(Class) -> bool) -> Option<Class> {
        let waits = |class: &Class| self.classes[*class as usize].depth.requests > 0 && may_go(*class);
        Class::ALL.into_iter().filter(waits).min_by_key(|class| (self.classes[*class as usize].start, *class))
    }

    fn take(&mut self, class: Class, seq: u64) -> Option<Waiting<K, T>> {
        let queue = &mut self.classes[class as usize];
        let (name, latest_start) = queue.arrivals.remove(&seq)?;
        let tenant = queue.tenants.get_mut(&name)?;
        let request = tenant.requests.remove(&(latest_start, seq))?;
        queue.held.remove(&(tenant.held(), name.clone()));
        tenant.tokens -= request.cost_tokens;
        if !tenant.requests.is_empty() {
            queue.held.insert((tenant.held(), name.clone()));
        }
        if tenant.requests.is_empty() {
            let start = tenant.start;
            queue.ready.remove(&(start, name.clone()));
            queue.ahead.insert((start, name));
        }
        queue.depth.sub(&request);
        self.places.remove(&request.key);
        Some(request)
    }

    /// Who has had no more than the others needs not be remembered.
    fn forget(&mut self) {
        let is_empty = self.is_empty();
        for class in &mut self.classes {
            class.forget();
            if is_empty {
                class.start = 0;
            }
        }
        if is_empty {
            self.now = 0;
        }
    }
}

impl<K, T: Ord + Clone> ClassQueue<K, T> {
    fn charge(&mut self, name: &T, cost_tokens: u64) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        self.ready.remove(&(tenant.start, name.clone()));
        tenant.start += advance(cost_tokens, tenant.weight);
        self.ready.insert((tenant.start, name.clone()));
    }

    fn forget(&mut self) {
        if self.depth.requests == 0 {
            self.tenants.clear();
            self.ahead.clear();
            self.now = 0;
            return;
        }
        while let Some((start, _)) = self.ahead.first()
            && *start <= self.now
            && let Some((_, name)) = self.ahead.pop_first()
        {
            self.tenants.remove(&name);
        }
    }
}
