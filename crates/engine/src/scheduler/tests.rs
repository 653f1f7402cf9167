//! The scheduler alone, without a model: who is served when, and what planning costs.

use super::*;
use crate::mailbox::{Mailbox, Ticket};
use crate::request::{Request, Task};
use crate::sampling::SamplingParams;
use crate::sequence::{RidGuard, RidSet};
use crate::urgency::Urgency;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

mod deadlines;
mod order;
mod priorities;

fn scheduler(pages: usize, limits: Limits) -> Scheduler {
    Scheduler::new(pages, limits, Order::default(), Instant::now())
}

fn limits() -> Limits {
    Limits { page_tokens: 16, max_running: 8, max_waiting: 100_000, token_budget: 128, naming: None }
}

/// A request of `prompt` tokens (all different from other requests') that generates `new` ones.
fn request(name: usize, prompt: usize, new: usize) -> (Sequence, Ticket) {
    arriving(Instant::now(), Urgency::default(), name, prompt, new)
}

fn arriving(arrived: Instant, urgency: Urgency, name: usize, prompt: usize, new: usize) -> (Sequence, Ticket) {
    let rids = RidSet::default();
    let rid = format!("r{name}");
    let guard = RidGuard::take(&rid, &rids).unwrap();
    let mailbox = Arc::new(Mailbox::default());
    let ticket = Ticket::bare(Arc::clone(&mailbox));
    let params = SamplingParams { max_new_tokens: new, ..SamplingParams::default() };
    // The first token tells requests apart, so that none finds another's pages.
    let prompt = std::iter::once(name as u32).chain((1..prompt as u32).map(|at| at % 1024)).collect();
    let request = Request { urgency, ..Request::new(rid, prompt, Task::Generate(params)) };
    (Sequence::new(request, guard, mailbox, 16, arrived), ticket)
}

/// What a step would do after the plan: everybody whose prompt is complete gets a token, and those that have all theirs
/// go. Returns their serial numbers.
fn compute(scheduler: &mut Scheduler, new: impl Fn(u64) -> usize) -> Vec<u64> {
    let (mut done, mut names) = (Vec::new(), Vec::new());
    for index in 0..scheduler.running.len() {
        if scheduler.running[index].scheduled == 0 {
            continue;
        }
        scheduler.commit(index);
        let sequence = &mut scheduler.running[index];
        if sequence.remaining() == 0 {
            sequence.tokens.push(5);
            if sequence.tokens.len() - sequence.prompt_len >= new(sequence.serial) {
                done.push(index);
                names.push(sequence.serial);
            }
        }
    }
    scheduler.retire(&done);
    names
}

/// A scheduler in a world of its own: time passes by the step, and a step takes what it has to.
struct World {
    scheduler: Scheduler,
    now: Nanos,
    fixed: Nanos,
    per_token: Nanos,
    /// By serial number: output tokens still to come.
    wanted: BTreeMap<u64, usize>,
    tickets: BTreeMap<u64, Ticket>,
    /// Everybody who was ever admitted, in that order, again when preempted.
    admitted: Vec<u64>,
    first_token: BTreeMap<u64, Nanos>,
    done: BTreeMap<u64, Nanos>,
    refused: BTreeMap<u64, Refusal>,
}

impl World {
    fn new(pages: usize, limits: Limits, order: Order) -> World {
        World {
            scheduler: Scheduler::new(pages, limits, order, Instant::now()),
            now: Nanos::ZERO,
            fixed: Nanos::from_millis(10),
            per_token: Nanos(100_000),
            wanted: BTreeMap::new(),
            tickets: BTreeMap::new(),
            admitted: Vec::new(),
            first_token: BTreeMap::new(),
            done: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Returns the serial number that it gets if it is taken.
    fn submit(&mut self, urgency: Urgency, prompt: usize, new: usize) -> u64 {
        let arrived = self.scheduler.origin + Duration::from_nanos(self.now.0);
        let serial = self.scheduler.arrivals + 1;
        let (sequence, ticket) = arriving(arrived, urgency, serial as usize, prompt, new);
        self.wanted.insert(serial, new);
        self.tickets.insert(serial, ticket);
        if let Err((_, refusal)) = self.scheduler.submit(sequence, self.now) {
            // Numbers are given to those who are taken only.
            self.refused.insert(u64::MAX - self.refused.len() as u64, refusal);
        }
        self.note_turned_away();
        serial
    }

    fn note_turned_away(&mut self) {
        for (sequence, refusal) in self.scheduler.turned_away.drain(..) {
            self.refused.insert(sequence.serial, refusal);
        }
    }

    fn step(&mut self) {
        self.scheduler.sweep();
        let before: Vec<u64> = self.scheduler.running.iter().map(|sequence| sequence.serial).collect();
        let planned = self.scheduler.plan(self.now);
        self.note_turned_away();
        let running = self.scheduler.running.iter().map(|sequence| sequence.serial);
        self.admitted.extend(running.filter(|serial| !before.contains(serial)));
        if planned == 0 {
            self.now = self.now + Nanos::from_millis(1);
            return;
        }
        let took = Nanos(self.fixed.0 + planned as u64 * self.per_token.0);
        self.now = self.now + took;
        let posted: Vec<(u64, usize)> = self
            .scheduler
            .running
            .iter()
            .filter(|sequence| sequence.scheduled == sequence.remaining())
            .map(|sequence| (sequence.serial, sequence.tokens.len() - sequence.prompt_len))
            .collect();
        for (serial, _) in posted.iter().filter(|(_, generated)| *generated == 0) {
            self.first_token.insert(*serial, self.now);
        }
        for serial in compute(&mut self.scheduler, |serial| self.wanted[&serial]) {
            self.done.insert(serial, self.now);
        }
        self.scheduler.observe(self.now, took);
        self.scheduler.check().unwrap();
    }

    fn run(&mut self) {
        for _ in 0..100_000 {
            if self.scheduler.is_idle() {
                return;
            }
            self.step();
        }
        panic!("it does not come to rest");
    }

    /// Lets the scheduler learn how fast it is, with prompts of all sizes.
    fn warm_up(&mut self) {
        for prompt in [1, 300, 40, 128, 3, 200] {
            self.submit(Urgency::default(), prompt, 3);
            self.run();
        }
    }
}

fn ttft(ms: u64) -> Urgency {
    Urgency { ttft: Some(Duration::from_millis(ms)), ..Urgency::default() }
}

#[test]
fn planning_costs_what_runs_and_what_is_admitted_however_many_wait() {
    let cost = |waiting: usize| {
        // Room for 8 to run and for a part of the others' prompts: some steps admit, some try and cannot.
        let mut scheduler = scheduler(60, limits());
        let tickets: Vec<Ticket> = (0..waiting)
            .map(|name| {
                let (sequence, ticket) = request(name, 100, 20);
                scheduler.submit(sequence, Nanos::ZERO).unwrap();
                ticket
            })
            .collect();
        let (mut admitted, mut ran) = (0, 0);
        for _ in 0..200 {
            assert_eq!(scheduler.sweep().0, 0);
            let before = scheduler.running.len();
            scheduler.plan(Nanos::ZERO);
            admitted += scheduler.running.len().saturating_sub(before);
            ran += scheduler.running.len() as u64;
            compute(&mut scheduler, |_| 20);
        }
        scheduler.check().unwrap();
        assert!(admitted > 20 && scheduler.waiting.len() > 20, "this is about admission and waiting");
        drop(tickets);
        // One look per plan at the first of the queue besides.
        assert!(scheduler.looked_at <= ran + admitted as u64 + 200, "{} looks, {ran} ran", scheduler.looked_at);
        scheduler.looked_at
    };
    assert_eq!(cost(200), cost(20_000));
}

#[test]
fn a_blocked_prompt_is_not_looked_up_again_before_it_can_fit() {
    let mut scheduler = scheduler(30, limits());
    // The first one takes its time and most of the room, the second has to wait for its end.
    let (first, _first) = request(1, 300, 100);
    let (second, _second) = request(2, 400, 2);
    scheduler.submit(first, Nanos::ZERO).unwrap();
    scheduler.submit(second, Nanos::ZERO).unwrap();
    let mut lookups = 0;
    let mut blocked = None;
    let mut steps = 0;
    while !scheduler.is_idle() {
        scheduler.plan(Nanos::ZERO);
        let now = scheduler.blocked.map(|it| it.until_level);
        lookups += usize::from(now.is_some() && now != blocked);
        blocked = now;
        compute(&mut scheduler, |serial| if serial == 1 { 100 } else { 2 });
        steps += 1;
    }
    assert!(steps > 100);
    assert!((1..=3).contains(&lookups), "{lookups} lookups in {steps} steps");
}

#[test]
fn a_reader_that_leaves_is_gone_before_the_next_plan_wherever_its_request_is() {
    let mut scheduler = scheduler(60, Limits { max_running: 1, ..limits() });
    let (one, first) = request(1, 40, 10);
    let (two, second) = request(2, 40, 10);
    let (three, third) = request(3, 40, 10);
    // It left before it arrived.
    drop(third);
    for sequence in [one, two, three] {
        scheduler.submit(sequence, Nanos::ZERO).unwrap();
    }
    assert_eq!(scheduler.sweep().0, 1);
    scheduler.plan(Nanos::ZERO);
    assert_eq!((scheduler.running.len(), scheduler.waiting.len()), (1, 1));
    drop(second);
    assert_eq!(scheduler.sweep().0, 1);
    drop(first);
    assert_eq!(scheduler.sweep().0, 1);
    assert!(scheduler.is_idle());
    assert_eq!((scheduler.blocks.held(), scheduler.waiting.tokens()), (0, 0));
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let mut scheduler = scheduler(4, limits());
    // 64 tokens fit: 60 of the prompt and 4 of 5 that are generated.
    assert!(scheduler.submit(request(1, 60, 5).0, Nanos::ZERO).is_ok());
    let (_, refusal) = scheduler.submit(request(2, 60, 6).0, Nanos::ZERO).unwrap_err();
    assert_eq!(refusal, Refusal::NeverFits { tokens: 65, room: 64 });
    assert_eq!(refusal.status(), 400);
}
