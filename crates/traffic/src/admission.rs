//! Who may go now, who waits, who is refused: all of traffic scheduling behind one object per pool.
//!
//! The gateway and the simulator drive the same object with their own time and their own view of the pool:
//!
//! ```text
//! arrive ──► Go ────────────────────────────────► begun ──► first_token ──► settle
//!        ├─► Wait ──► dispatch: Decision::Go ──────┘                          ▲
//!        │            dispatch: Decision::Refuse                 (any time) ──┘
//!        └─► Refuse   cancel
//! ```
//!
//! A request that finds room and nobody waiting goes at once and costs a few map look-ups. Only when there is contention do the
//! rules act, in this order: the tenant's own rate, the retry budget, the quota of its class at today's water level
//! ([`crate::quota`]) and of its tenant within it, the bounds of the queue ([`crate::fair_queue`]). On each dispatch: requests
//! that cannot keep their promise any more leave ([`crate::slo`]), then those whose turn it is go, as far as the engines have room
//! ([`room`]), then those leave that have waited as long as they may.
//!
//! Nothing is refused on a guess: while no rate is known there is no level, no quota and no predicted time, and while an engine's rate is
//! unknown it has room. And nothing is refused for nobody's good: quotas act only while another class asks too.
//!
//! Every key that was admitted is answered exactly once, and every token of it is settled or given back ([`Totals`]).

mod ask;
pub mod basis;
mod books;
mod capacity;
mod demand;
mod dispatch;
mod gauge;
mod jitter;
mod likely_output;
mod line;
mod reserve;
mod room;
mod rules;
mod snapshot;
mod tenants;
#[cfg(test)]
mod tests;
mod verdict;

pub use ask::{Arrival, PoolView};
pub use basis::{Basis, Recorded};
pub use books::Totals;
pub use likely_output::LikelyOutput;
pub use rules::{OnSloMiss, Rules, SloRules, TenantRules};
pub use snapshot::{ClassSnapshot, Snapshot};
pub use verdict::{Decision, Go, GoWhy, Refusal, Rule, Verdict};

use crate::lease::Lease;
use crate::meter::{Limit, Meter, UNLIMITED};
use books::{Books, Flight, Stage};
use capacity::Capacity;
use demand::Demand;
use gauge::Gauge;
use jitter::Jitter;
use line::{Entry, Line, Waiter};
use plimsoll_core::{Class, ModelDemand, Nanos, RequestId};
use reserve::Reserve;
use room::{Need, Room};
use tenants::Tenants;

/// Largest count that is booked, so that sums never saturate and can be taken apart again.
const MOST_TOKENS: u64 = 1 << 40;

/// The tenants' parts together, of what the classes above leave: less than all, or a full pool would stay full.
const PARTS: f64 = 0.9;

/// Traffic of one pool.
#[derive(Debug)]
pub struct Admission {
    rules: Rules,
    seen: Option<Nanos>,
    room: Room,
    gauge: Gauge,
    capacity: Capacity,
    demand: Demand,
    meters: [Meter; 3],
    tenants: Tenants,
    line: Line,
    books: Books,
    reserve: Reserve,
    jitter: Jitter,
    /// This gateway's part, where others stand before the same engines; `None`: everything is its own.
    lease: Option<Lease>,
    /// Since when the next of a class has waited for memory.
    memory_short: [Option<Nanos>; 3],
    /// When something of a class was admitted last.
    admitted: [Option<Nanos>; 3],
    /// Decisions that fell outside `dispatch`.
    outbox: Vec<Decision>,
    /// Something happened that can change who keeps a promise.
    changed: bool,
    slo_ran: Option<Nanos>,
    slo_due: Option<Nanos>,
    /// Until when the pool may serve others before a promise of a class, or of one above it, is broken; as of the last look.
    may_stand_until: [Option<Nanos>; 3],
}

/// What the level says of a class at the moment.
#[derive(Clone, Copy)]
struct Standing {
    level: Option<f64>,
    share: f64,
}

impl Admission {
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Admission {
            seen: None,
            room: Room::default(),
            gauge: Gauge::new(&rules),
            capacity: Capacity::default(),
            demand: Demand::default(),
            meters: [Meter::new(UNLIMITED, Nanos::ZERO); 3],
            tenants: Tenants::default(),
            line: Line::new(rules.bounds, rules.weights),
            books: Books::default(),
            reserve: Reserve::default(),
            jitter: Jitter::new(rules.seed),
            lease: None,
            memory_short: [None; 3],
            admitted: [None; 3],
            outbox: Vec::new(),
            changed: false,
            slo_ran: None,
            slo_due: None,
            may_stand_until: [None; 3],
            rules,
        }
    }

    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Takes new rules. What waits and what runs stays.
    pub fn reconfigure(&mut self, now: Nanos, rules: Rules) {
        self.line.reconfigure(rules.bounds, rules.weights);
        self.tenants.reconfigure(now, &rules);
        let gauge = Gauge::new(&rules);
        let (before, after) = (&self.rules, &rules);
        if (before.rise, before.fall, before.hysteresis) != (after.rise, after.fall, after.hysteresis) {
            self.gauge = gauge;
        }
        if before.seed != after.seed {
            self.jitter = Jitter::new(rules.seed);
        }
        self.rules = rules;
        // The room depends on the rules.
        self.seen = None;
        self.changed = true;
    }

    /// Takes the part of the pool that is this gateway's. It acts on what arrives from now on.
    pub fn set_lease(&mut self, lease: Option<Lease>) {
        self.lease = lease;
    }

    /// What clients ask for here, for the gateways beside this one.
    #[must_use]
    pub fn demand(&self, now: Nanos) -> ModelDemand {
        ModelDemand {
            asked_tokens_per_s: Class::ALL
                .map(|class| self.demand.asked_tokens_per_s(class, now, self.rules.demand_memory)),
            high_prefill_tokens_per_s: self
                .demand
                .high_prefill_tokens_per_s(now, self.rules.demand_memory)
                .unwrap_or(0.0),
            waiting_prefill_tokens: self.line.prefill_tokens() as f64,
            long_prefill_tokens: self.books.mean_long_tokens().unwrap_or(0.0),
        }
    }

    /// What clients of the other gateways ask for.
    fn others(&self) -> ModelDemand {
        self.lease.map_or_else(ModelDemand::default, |lease| lease.others)
    }

    /// Measures the level without deciding anything: for a picture of now while nothing arrives.
    pub fn look(&mut self, now: Nanos, view: &PoolView<'_>) {
        self.observe(now, view);
    }

    /// A request arrives. A key that is known already is taken to have been cancelled.
    pub fn arrive(&mut self, now: Nanos, mut arrival: Arrival, view: &PoolView<'_>) -> Verdict {
        arrival.prompt_tokens = arrival.prompt_tokens.min(MOST_TOKENS);
        arrival.prefill_tokens = arrival.prefill_tokens.min(MOST_TOKENS);
        arrival.decode_tokens = arrival.decode_tokens.min(MOST_TOKENS);
        self.observe(now, view);
        if self.books.contains(arrival.key) {
            self.cancel(arrival.key, now);
        }
        let class = arrival.class;
        let mut flight = self.flight(&arrival, now);
        self.tenants.asks(&arrival.tenant, class, now, &self.rules);
        let standing = self.standing(class, now);
        if arrival.answer_by <= now {
            return self.refuse(Rule::Deadline, &flight, standing, None, now);
        }
        if let Err(over) = self.tenants.check_rate(&arrival.tenant, flight.cost(), now) {
            return self.refuse(Rule::TenantRate, &flight, standing, over.retry_after.or(Some(Nanos::MAX)), now);
        }
        let straight = self.line.is_empty() && self.may_begin(&flight, now);
        if !arrival.retry {
            self.tenants.fresh(&arrival.tenant);
        } else if !straight && !self.tenants.try_retry(&arrival.tenant) {
            return self.refuse(Rule::RetryBudget, &flight, standing, self.drain_time(), now);
        }
        // What its tenant may not have at any level takes nothing from the other classes.
        self.demand.asked(class, flight.cost(), arrival.prefill_tokens, now);
        if straight && self.gauge.is_calm(class, &self.rules) {
            self.lift_quota(&flight, now);
        } else if let Err((rule, retry_after)) = self.check_quota(&flight, standing.share, now) {
            return self.refuse(rule, &flight, standing, retry_after, now);
        }
        if straight {
            self.charge(&mut flight, now);
            self.room.take(flight.need);
            let cost_tokens = flight.cost();
            self.books.admit(arrival.key, Flight { stage: Stage::Granted, ..flight });
            let Standing { level, share } = standing;
            let (waited, why) = (Nanos::ZERO, GoWhy::Room);
            return Verdict::Go(Go { class, cost_tokens, waited, why, level, share });
        }
        self.wait(now, &arrival, flight, standing)
    }

    /// The pool's ledger knows of it now. `prefill_until`: when its prefill should be over, where its first token will not be seen.
    pub fn begun(&mut self, key: RequestId, prefill_until: Option<Nanos>) {
        self.books.advance(key, Stage::Begun);
        if let Some(until) = prefill_until {
            self.books.set_due(key, until);
        }
    }

    /// Its prefill is over.
    pub fn first_token(&mut self, key: RequestId, now: Nanos) {
        let Some(flight) = self.books.advance(key, Stage::Decoding) else { return };
        self.capacity.served(flight.prefill_tokens);
        if flight.class == Class::High && flight.first_token_by < now {
            self.broken_promise(now);
        }
    }

    /// Of the high class. Long prefills of the others get fewer engines.
    fn broken_promise(&mut self, now: Nanos) {
        self.reserve.missed(now, self.room.engines().saturating_sub(2));
    }

    /// Its prefill should be over, and nobody saw it.
    fn end_prefill(&mut self, key: RequestId) {
        if let Some(flight) = self.books.advance(key, Stage::Decoding) {
            self.capacity.served(flight.prefill_tokens);
        }
    }

    /// It is over. `served_prefill_tokens` and `served_decode_tokens` are what engines did for it, as far as they say; `None`: what was
    /// expected of it. What was charged beyond that is given back. Unknown keys change nothing.
    pub fn settle(
        &mut self,
        key: RequestId,
        now: Nanos,
        served_prefill_tokens: Option<u64>,
        served_decode_tokens: Option<u64>,
    ) {
        let Some(flight) = self.books.get(key).filter(|flight| flight.stage != Stage::Waiting) else {
            self.cancel(key, now);
            return;
        };
        let prefill = served_prefill_tokens.unwrap_or(flight.prefill_tokens);
        let decode = served_decode_tokens.map_or(flight.decode_cost, |tokens| self.decode_cost(tokens));
        let counted = if flight.stage == Stage::Decoding { decode } else { decode.saturating_add(prefill) };
        self.capacity.served(counted);
        self.close(key, prefill.saturating_add(decode), now);
    }

    /// The client has gone, or the request failed before an engine did anything for it: all of it is given back. True where
    /// the key was known.
    pub fn cancel(&mut self, key: RequestId, now: Nanos) -> bool {
        self.line.remove(key);
        self.outbox.retain(|decision| decision.key() != key);
        if self.line.is_empty() {
            self.capacity.update(now, false, None);
        }
        self.close(key, 0, now)
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.line.is_empty() && self.outbox.is_empty()
    }

    fn close(&mut self, key: RequestId, served: u64, now: Nanos) -> bool {
        let Some((flight, refunded)) = self.books.close(key, served) else { return false };
        if flight.quota_charged {
            self.meters[flight.class as usize].refund(refunded, now);
        }
        self.tenants.refund(&flight, refunded, now);
        self.changed = true;
        true
    }

    /// When its first token is asked for or promised, and whether that was asked.
    fn first_token_by(&self, arrival: &Arrival, now: Nanos) -> (Nanos, bool) {
        let tenant = self.rules.tenant(&arrival.tenant);
        let asked = arrival.first_token_by.or_else(|| tenant.first_token.map(|within| now + within));
        let promise = || now + self.rules.slo.promise(arrival.prompt_tokens, arrival.class);
        (asked.unwrap_or_else(promise), asked.is_some())
    }

    fn flight(&self, arrival: &Arrival, now: Nanos) -> Flight {
        let service = self.service(arrival.service, arrival.prefill_tokens);
        let new_kv = arrival.prefill_tokens.saturating_add(arrival.decode_tokens);
        Flight {
            tenant: arrival.tenant.clone(),
            class: arrival.class,
            prefill_tokens: arrival.prefill_tokens,
            decode_cost: self.decode_cost(arrival.decode_tokens),
            need: Need { prefill_tokens: arrival.prefill_tokens, kv_tokens: new_kv },
            long: arrival.class != Class::High && service.is_some_and(|time| time > self.rules.long_prefill),
            stage: Stage::Waiting,
            quota_charged: false,
            due: None,
            first_token_by: self.first_token_by(arrival, now).0,
        }
    }

    fn service(&self, known: Option<Nanos>, prefill_tokens: u64) -> Option<Nanos> {
        known.or_else(|| Some(Nanos::from_secs_f64(prefill_tokens as f64 / self.room.mean_tokens_per_s()?)))
    }

    fn decode_cost(&self, tokens: u64) -> u64 {
        ((tokens as f64 * self.rules.decode_token_cost) as u64).min(MOST_TOKENS)
    }

    /// Reads a view that is new, and measures the level.
    fn observe(&mut self, now: Nanos, view: &PoolView<'_>) {
        self.reserve.update(now);
        while let Some(key) = self.books.pop_due(now) {
            self.end_prefill(key);
        }
        if self.seen == Some(view.taken_at) {
            return;
        }
        self.seen = Some(view.taken_at);
        self.room.see(view, &self.rules);
        for need in self.books.granted() {
            self.room.take(*need);
        }
        // What waits at the other gateways is in front of the same engines.
        let queued = self.line.prefill_tokens() as f64 + self.others().waiting_prefill_tokens;
        self.gauge.update(now, &self.room, queued, self.wait_wanted());
        self.changed = true;
    }

    /// How long a prompt may wait at most, for the level: as set, and where long ones are under way at least as long as two such take, for an engine that holds
    /// just one keeps nobody waiting.
    fn wait_wanted(&self) -> Nanos {
        let elsewhere = self.others().long_prefill_tokens;
        let long_tokens = self.books.mean_long_tokens().unwrap_or(0.0).max(elsewhere);
        let long_s = self.room.mean_tokens_per_s().map(|rate| long_tokens / rate);
        self.rules.target_wait.max(Nanos::from_secs_f64(2.0 * long_s.unwrap_or(0.0)))
    }

    fn standing(&self, class: Class, now: Nanos) -> Standing {
        Standing { level: self.gauge.held(), share: self.share(class, now) }
    }

    /// Of the capacity, for a class: what the curve gives it at this level, or what the classes above it do not ask for. The curve alone
    /// would squeeze a class that asks for nearly everything though hardly anybody is there to profit; and what is left is itself
    /// cut as the pool fills, so that a capacity that was taken too high shows and is answered.
    fn share(&self, class: Class, now: Nanos) -> f64 {
        let others = self.others();
        if self.demand.is_alone(class, now, self.rules.demand_memory, &others) {
            return 1.0;
        }
        let level = self.gauge.held();
        let kept = level.map_or(1.0, leftover);
        self.rules.quotas.share(class, level).max(self.left(class, now) * kept)
    }

    /// Part of the capacity that the classes above this one do not ask for; nothing while no capacity is known.
    fn left(&self, class: Class, now: Nanos) -> f64 {
        let above = self.demand.above_tokens_per_s(class, now, &self.others());
        self.capacity_tokens_per_s().map_or(0.0, |capacity| (1.0 - above / capacity).clamp(0.0, 1.0))
    }

    /// The higher of what was served under load and what the engines' prefill rates add up to: too low a figure refuses whom there was
    /// room for, and one that is too high shows in the level.
    fn capacity_tokens_per_s(&self) -> Option<f64> {
        let rates = self.room.tokens_per_s()?;
        Some(self.capacity.tokens_per_s(rates).map_or(rates, |measured| measured.max(rates)))
    }

    /// Of the pool's capacity the class's share, and of that what is this gateway's. A share of all is no limit, whosever it is.
    fn class_limit(&self, class: Class, share: f64) -> Limit {
        let part = share * self.lease.map_or(1.0, |lease| lease.share[class as usize]);
        let rate = self.capacity_tokens_per_s().filter(|_| share < 1.0).map_or(f64::INFINITY, |rate| rate * part);
        let burst_tokens = if rate.is_finite() { (rate * self.rules.burst.as_secs_f64()) as u64 } else { 0 };
        Limit { tokens_per_s: rate, burst_tokens }
    }

    fn check_quota(&mut self, flight: &Flight, share: f64, now: Nanos) -> Result<(), (Rule, Option<Nanos>)> {
        let limit = self.class_limit(flight.class, share);
        let meter = &mut self.meters[flight.class as usize];
        meter.set_limit(limit, now);
        let class_over = meter.check(flight.cost(), now);
        // A tenant's part is one of what is there for the class, not of what is let in while the pool is too full. It is set even where
        // it is not asked, as what is charged to it runs out at it.
        let whole = self.class_limit(flight.class, share.max(self.left(flight.class, now) * PARTS));
        self.tenants.set_part(&flight.tenant, flight.class, whole, now);
        let Err(class_over) = class_over else { return Ok(()) };
        if self.admitted[flight.class as usize].is_none_or(|last| now.since(last) >= self.rules.aging) {
            return Ok(());
        }
        // A rate of nothing never lets it in.
        let never = Some(Nanos::MAX);
        if !self.tenants.has_others(&flight.tenant, flight.class) {
            return Err((Rule::QuotaClass, class_over.retry_after.or(never)));
        }
        match self.tenants.check_part(&flight.tenant, flight.class, flight.cost(), now) {
            // Below its part: what others have had more is not held against it.
            Ok(()) => Ok(()),
            Err(tenant_over) => {
                // Whichever has room first lets it in.
                let first = tenant_over.retry_after.into_iter().chain(class_over.retry_after).min();
                Err((Rule::QuotaTenant, first.or(never)))
            }
        }
    }

    /// Nothing is scarce: what is admitted now is held against nobody later.
    fn lift_quota(&mut self, flight: &Flight, now: Nanos) {
        self.meters[flight.class as usize].set_limit(UNLIMITED, now);
        self.tenants.set_part(&flight.tenant, flight.class, UNLIMITED, now);
    }

    fn charge(&mut self, flight: &mut Flight, now: Nanos) {
        self.admitted[flight.class as usize] = Some(now);
        let meter = &mut self.meters[flight.class as usize];
        meter.charge(flight.cost(), now);
        flight.quota_charged = meter.limit().tokens_per_s.is_finite();
        self.tenants.charge(&flight.tenant, flight.class, flight.cost(), now);
    }

    fn wait(&mut self, now: Nanos, arrival: &Arrival, mut flight: Flight, standing: Standing) -> Verdict {
        let tenant = self.rules.tenant(&arrival.tenant);
        let (first_token_by, asked) = self.first_token_by(arrival, now);
        let on_miss = (asked || self.rules.slo.enforced).then_some(tenant.on_slo_miss);
        let mut give_up = (now + self.rules.max_wait).min(arrival.answer_by);
        if on_miss == Some(OnSloMiss::Refuse) {
            give_up = give_up.min(first_token_by);
        }
        let waiter = Waiter {
            arrived: now,
            class: arrival.class,
            prefill_tokens: arrival.prefill_tokens,
            first_token_by,
            service: self.service(arrival.service, arrival.prefill_tokens),
            work: self.service(None, arrival.prefill_tokens),
            on_miss,
            give_up,
            answer_by: arrival.answer_by,
        };
        let entry = Entry {
            key: arrival.key,
            tenant: arrival.tenant.clone(),
            weight: tenant.weight,
            cost_tokens: flight.cost(),
            bytes: arrival.bytes,
            waiter,
        };
        match self.line.push(entry) {
            Err(_) => self.refuse(Rule::QueueFull, &flight, standing, self.drain_time(), now),
            Ok(displaced) => {
                self.charge(&mut flight, now);
                self.books.admit(arrival.key, flight);
                for (key, waiter) in displaced {
                    self.turn_away(key, &waiter, Rule::Displaced, self.drain_time(), None, now);
                }
                self.changed = true;
                Verdict::Wait
            }
        }
    }

    fn refuse(&mut self, rule: Rule, flight: &Flight, standing: Standing, wait: Option<Nanos>, now: Nanos) -> Verdict {
        let Standing { level, share } = standing;
        let basis = self.basis(&flight.tenant, flight.class, flight.cost(), level, now);
        let retry_after = self.jitter.spread(wait);
        Verdict::Refuse(Refusal {
            rule,
            class: flight.class,
            waited: Nanos::ZERO,
            level,
            share,
            retry_after,
            predicted: None,
            allowed: None,
            basis: Box::new(basis),
        })
    }

    /// What a refusal follows from, for its record.
    fn basis(&mut self, tenant: &str, class: Class, cost_tokens: u64, level: Option<f64>, now: Nanos) -> Basis {
        let others = self.others();
        Basis {
            alone: self.demand.is_alone(class, now, self.rules.demand_memory, &others),
            curve: self.rules.quotas.curve(class).around(level.unwrap_or(0.0)),
            capacity_tokens_per_s: self.capacity_tokens_per_s(),
            above_tokens_per_s: self.demand.above_tokens_per_s(class, now, &others),
            part: self.lease.map_or(1.0, |lease| lease.share[class as usize]),
            burst_s: self.rules.burst.as_secs_f64(),
            cost_tokens,
            class_filled_tokens: self.meters[class as usize].filled_tokens(now),
            tenant: self.tenants.basis(tenant, class, now),
            may_wait_ns: None,
        }
    }

    /// How long what waits here and in front of the engines takes them. `None` where no rate is known; then nobody is refused for
    /// lack of one, only for a full queue.
    fn drain_time(&self) -> Option<Nanos> {
        let own = self.line.depth().tokens.saturating_add(self.room.backlog_tokens()) as f64;
        let tokens = own + self.others().waiting_prefill_tokens;
        Some(Nanos::from_secs_f64(tokens / self.capacity_tokens_per_s()?))
    }
}

/// The part of what is left over that a class may have at a level: all until [`FULL_FROM`], half at the brim.
fn leftover(level: f64) -> f64 {
    const FULL_FROM: f64 = 0.85;
    1.0 - 0.5 * ((level - FULL_FROM) / (1.0 - FULL_FROM)).clamp(0.0, 1.0)
}
