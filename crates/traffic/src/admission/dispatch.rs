//! Turns: who of those that wait goes now, and who must leave.

use super::books::{Flight, Stage};
use super::line::Waiter;
use super::room::Need;
use super::rules::OnSloMiss;
use super::verdict::{Decision, Go, GoWhy, Refusal, Rule};
use super::{Admission, Basis, PoolView};
use crate::slo::{ByClass, Engines, feasible_by_class};
use plimsoll_core::{Class, Nanos, RequestId};

/// The feasible set is looked at again at most this often. It takes some 30 us; what changes meanwhile is seen by the next
/// look, and nobody is let go who cannot keep his promise.
const SLO_EVERY: Nanos = Nanos::from_millis(5);
/// Requests of a class looked at, those first whose first token is due first. Looking at fewer refuses later, and lets a promise beyond them press nobody yet.
const SLO_WINDOW: usize = 256;
/// How long until a request that waits is looked at again though nothing was heard of the pool.
const LOOK_AGAIN: Nanos = Nanos::from_millis(20);
/// Requests of a class looked at for one that is not held back.
const LOOK_PAST: usize = 32;

impl Admission {
    /// Lets go whoever may, and refuses whoever must. To be called when a request was answered with [`super::Verdict::Wait`], when the
    /// pool changed, and at [`Admission::next_look`]. Each key that waits comes out once.
    pub fn dispatch(&mut self, now: Nanos, view: &PoolView<'_>) -> Vec<Decision> {
        self.observe(now, view);
        self.check_promises(now);
        self.serve(now);
        // After the turns: a stall of this process is not a reason to send away what can go now.
        while let Some(key) = self.line.overdue(now) {
            let Some(waiter) = self.line.remove(key) else { break };
            if waiter.answer_by > now && waiter.on_miss == Some(OnSloMiss::Refuse) && waiter.first_token_by <= now {
                self.miss(key, &waiter, None, now);
                continue;
            }
            let rule = if waiter.answer_by <= now { Rule::Deadline } else { Rule::WaitBudget };
            self.turn_away(key, &waiter, rule, self.drain_time(), None, now);
        }
        // What waits because something is held back from it says nothing of what the pool can do.
        let full = !self.line.is_empty() && !self.room.all_out() && !self.room.fits(Need::default());
        self.capacity.update(now, full, self.room.tokens_per_s());
        std::mem::take(&mut self.outbox)
    }

    /// When `dispatch` should be called at the latest; `None` while nothing waits.
    #[must_use]
    pub fn next_look(&self, now: Nanos) -> Option<Nanos> {
        if !self.outbox.is_empty() {
            return Some(now);
        }
        let give_up = self.line.next_give_up()?;
        let look = now + LOOK_AGAIN;
        // No earlier than promises are looked at again, or the caller would ask without end until then.
        let earliest = self.slo_ran.map_or(now, |ran| (ran + SLO_EVERY).max(now));
        Some(self.slo_due.map_or(look, |due| due.max(earliest)).min(look).min(give_up))
    }

    /// Whether an engine could begin it now and nothing is held back from it. Where all are out, whoever finds nobody waiting hears at once
    /// what placement says of it.
    pub(super) fn may_begin(&self, flight: &Flight, now: Nanos) -> bool {
        !self.is_held_back(flight, now) && (self.room.all_out() || self.room.fits(flight.need))
    }

    fn is_held_back(&self, flight: &Flight, now: Nanos) -> bool {
        flight.long && self.most_long_prefills(now).is_some_and(|most| self.books.long_prefills() >= most)
    }

    /// Engines that long requests of the lower classes may keep at once; `None`: any number, the high class asks for nothing.
    pub(super) fn most_long_prefills(&self, now: Nanos) -> Option<usize> {
        let others = self.others().high_prefill_tokens_per_s;
        let own = self.demand.high_prefill_tokens_per_s(now, self.rules.demand_memory);
        let demand = own.or((others > 0.0).then_some(0.0))? + others;
        let most = self.reserve.most_long(self.room.engines(), demand / self.room.mean_tokens_per_s()?);
        // The other gateways keep engines with long ones too. Each may keep one, or those with little demand could never serve any.
        Some(self.lease.map_or(most, |lease| lease.of_engines(most).max(1)))
    }

    fn serve(&mut self, now: Nanos) {
        // An empty pool would take the whole queue at once, and fail it. Those that wait do so until an engine is back, or their time is up.
        if self.room.all_out() {
            return;
        }
        for class in Class::ALL.into_iter().filter(|class| self.line.depth_of(*class).requests == 0) {
            self.memory_short[class as usize] = None;
        }
        let mut passed = [false; 3];
        while let Some(first) = self.first_in_turn(passed, now) {
            let Some(class) = self.line.get(first).map(|waiter| waiter.class) else { break };
            let Some(key) = self.next_of(class, first, now) else {
                passed[class as usize] = true;
                continue;
            };
            let (Some(flight), Some(waiter)) = (self.books.get(key), self.line.get(key).copied()) else { break };
            let (need, cost_tokens) = (flight.need, flight.cost());
            if !self.room.fits(need) {
                if self.may_be_passed(class, now) {
                    passed[class as usize] = true;
                    continue;
                }
                break;
            }
            self.memory_short[class as usize] = None;
            let late = waiter.service.is_some_and(|service| now + service > waiter.first_token_by);
            if late && waiter.on_miss == Some(OnSloMiss::Refuse) {
                self.line.remove(key);
                self.miss(key, &waiter, None, now);
                continue;
            }
            self.line.serve(key);
            self.room.take(need);
            self.books.advance(key, Stage::Granted);
            let standing = self.standing(waiter.class, now);
            let waited = now.since(waiter.arrived);
            let (class, why) = (waiter.class, GoWhy::Turn);
            let go = Go { class, cost_tokens, waited, why, level: standing.level, share: standing.share };
            self.outbox.push(Decision::Go { key, go });
        }
    }

    /// Who is next of the classes that are not gone round: by the shares of the classes, but for a class whose promises are about to be broken.
    fn first_in_turn(&self, passed: [bool; 3], now: Nanos) -> Option<RequestId> {
        // The highest of them, or nobody: where its credit is used up it waits for its share, and none below it goes before it instead.
        let at_stake = Class::ALL.into_iter().find(|class| !passed[*class as usize] && self.is_at_stake(*class, now));
        let pressed = at_stake.filter(|class| self.has_credit(*class));
        self.line.peek(|class| !passed[class as usize] && pressed.is_none_or(|pressed| class == pressed))
    }

    /// Promises of this class can all be kept, but not if the engines are given as much as they may be of others: the class goes before those below it, on
    /// credit.
    fn is_at_stake(&self, class: Class, now: Nanos) -> bool {
        let until = self.may_stand_until[class as usize];
        until.is_some_and(|until| until <= now + self.rules.engine_queue) && self.line.depth_of(class).requests > 0
    }

    /// A class pays back when it can wait, and its credit is what the pool does while a class may have nothing.
    fn has_credit(&self, class: Class) -> bool {
        let aging_s = self.rules.aging.as_secs_f64();
        self.capacity_tokens_per_s().is_some_and(|capacity| self.line.lead_tokens(class) as f64 <= capacity * aging_s)
    }

    /// Who of a class goes: the first in turn. Where that one is long and held back, the first behind it that is not, of those in front: what
    /// is short waits for no long one that may not go.
    fn next_of(&self, class: Class, first: RequestId, now: Nanos) -> Option<RequestId> {
        let held_back = |key| self.books.get(key).is_some_and(|flight| self.is_held_back(flight, now));
        if held_back(first) { self.line.peek_past(class, LOOK_PAST, held_back) } else { Some(first) }
    }

    /// Whoever is next in turn waits for the room he needs: going round him would starve the large. But memory for a large one can be long
    /// in coming while engines could begin others, so the other classes go round his for as long as a class may have nothing, and then wait
    /// with him.
    fn may_be_passed(&mut self, class: Class, now: Nanos) -> bool {
        if !self.room.fits(Need::default()) {
            return false;
        }
        let since = *self.memory_short[class as usize].get_or_insert(now);
        now.since(since) < self.rules.aging
    }

    /// Refuses, or demotes, whoever cannot be served in time beside the others.
    fn check_promises(&mut self, now: Nanos) {
        let due = self.changed || self.slo_due.is_some_and(|due| due <= now);
        let early = self.slo_ran.is_some_and(|ran| now.since(ran) < SLO_EVERY);
        if self.line.promised() == 0 {
            (self.may_stand_until, self.slo_due) = ([None; 3], None);
            return;
        }
        if !due || early {
            return;
        }
        (self.changed, self.slo_ran, self.slo_due) = (false, Some(now), None);
        let Some(engines) = Engines::new(self.room.free_at(now)) else { return };
        let tenant = |key: RequestId| {
            let name = self.books.get(key).map(|flight| flight.tenant.clone());
            let weight = name.as_ref().map_or(1, |name| self.rules.tenant(name).weight);
            (name, weight)
        };
        let ByClass { verdict, slack } = feasible_by_class(&self.line.jobs(SLO_WINDOW), &engines, &tenant);
        self.may_stand_until = slack.map(|slack| slack.map(|slack| now + slack));
        self.slo_due = verdict.slack.map(|slack| now + slack);
        for refused in verdict.refused {
            if let Some(waiter) = self.line.get(refused.key).copied() {
                // The rule was told an earlier deadline: this is what comes behind it.
                self.line_miss(refused.key, &waiter, refused.finish + waiter.beside(), now);
            }
        }
    }

    fn line_miss(&mut self, key: RequestId, waiter: &Waiter, finish: Nanos, now: Nanos) {
        if waiter.on_miss == Some(OnSloMiss::BestEffort) {
            self.demote(key, now);
        } else {
            self.line.remove(key);
            self.miss(key, waiter, Some(finish), now);
        }
    }

    /// It is out of the queue and would be late.
    fn miss(&mut self, key: RequestId, waiter: &Waiter, finish: Option<Nanos>, now: Nanos) {
        let finish = finish.unwrap_or(now + waiter.service.unwrap_or(Nanos::ZERO));
        let over = finish.since(waiter.first_token_by);
        if waiter.class == Class::High {
            self.broken_promise(now);
        }
        self.turn_away(key, waiter, Rule::SloUnattainable, Some(over), Some(finish.since(waiter.arrived)), now);
    }

    /// To the end of class low.
    fn demote(&mut self, key: RequestId, now: Nanos) {
        let weight = self.books.get(key).map_or(1, |flight| self.rules.tenant(&flight.tenant).weight);
        // It was in the queue, so there is room for it.
        if let Some(waiter) = self.line.demote(key, weight) {
            self.turn_away(key, &waiter, Rule::QueueFull, self.drain_time(), None, now);
        }
    }

    /// Refuses a request that waited and is out of the queue.
    pub(super) fn turn_away(
        &mut self,
        key: RequestId,
        waiter: &Waiter,
        rule: Rule,
        wait: Option<Nanos>,
        predicted: Option<Nanos>,
        now: Nanos,
    ) {
        let standing = self.standing(waiter.class, now);
        let (tenant, cost) = self.books.get(key).map_or_else(Default::default, |one| (one.tenant.clone(), one.cost()));
        let basis = self.basis(&tenant, waiter.class, cost, standing.level, now);
        let may_wait = waiter.give_up.since(waiter.arrived);
        let refusal = Refusal {
            rule,
            class: waiter.class,
            waited: now.since(waiter.arrived),
            level: standing.level,
            share: standing.share,
            retry_after: self.jitter.spread(wait),
            predicted,
            allowed: predicted.map(|_| waiter.first_token_by.since(waiter.arrived)),
            basis: Box::new(Basis { may_wait_ns: Some(may_wait.0), ..basis }),
        };
        self.close(key, 0, now);
        self.outbox.push(Decision::Refuse { key, refusal });
    }
}
