//! The scheduler alone, without a model: who is served when, and what planning costs.

use super::*;
use crate::mailbox::{Mailbox, Ticket};
use crate::request::{Request, Task};
use crate::sampling::SamplingParams;
use crate::sequence::{RidGuard, RidSet};
use std::time::Instant;

fn limits() -> Limits {
    Limits { page_tokens: 16, max_running: 8, max_waiting: 100_000, token_budget: 128, naming: None }
}

/// A request of `prompt` tokens (all different from other requests') that generates `new` ones.
fn request(name: usize, prompt: usize, new: usize) -> (Sequence, Ticket) {
    let rids = RidSet::default();
    let rid = format!("r{name}");
    let guard = RidGuard::take(&rid, &rids).unwrap();
    let mailbox = Arc::new(Mailbox::default());
    let params = SamplingParams { max_new_tokens: new, ..SamplingParams::default() };
    let prompt: Vec<u32> = (0..prompt).map(|at| (name * 7 + at) as u32 % 1024).collect();
    let ticket = Ticket {
        mailbox: Arc::clone(&mailbox),
        rid: rid.clone(),
        prompt_tokens: prompt.len(),
        rank: 0,
        arrived: Instant::now(),
        done: false,
        place: None,
    };
    let request = Request::new(rid, prompt, Task::Generate(params));
    (Sequence::new(request, guard, mailbox, 16, Instant::now()), ticket)
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

#[test]
fn planning_costs_what_runs_and_what_is_admitted_however_many_wait() {
    let cost = |waiting: usize| {
        // Room for 8 to run and for a part of the others' prompts: some steps admit, some try and cannot.
        let mut scheduler = Scheduler::new(60, limits());
        let tickets: Vec<Ticket> = (0..waiting)
            .map(|name| {
                let (sequence, ticket) = request(name, 100, 20);
                scheduler.submit(sequence).unwrap();
                ticket
            })
            .collect();
        let (mut admitted, mut ran) = (0, 0);
        for _ in 0..200 {
            assert_eq!(scheduler.sweep().0, 0);
            let before = scheduler.running.len();
            scheduler.plan();
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
    let mut scheduler = Scheduler::new(30, limits());
    // The first one takes its time and most of the room, the second has to wait for its end.
    let (first, _first) = request(1, 300, 100);
    let (second, _second) = request(2, 400, 2);
    scheduler.submit(first).unwrap();
    scheduler.submit(second).unwrap();
    let mut lookups = 0;
    let mut blocked = None;
    let mut steps = 0;
    while !scheduler.is_idle() {
        scheduler.plan();
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
    let mut scheduler = Scheduler::new(60, Limits { max_running: 1, ..limits() });
    let (one, first) = request(1, 40, 10);
    let (two, second) = request(2, 40, 10);
    let (three, third) = request(3, 40, 10);
    // It left before it arrived.
    drop(third);
    for sequence in [one, two, three] {
        scheduler.submit(sequence).unwrap();
    }
    assert_eq!(scheduler.sweep().0, 1);
    scheduler.plan();
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
    let mut scheduler = Scheduler::new(4, limits());
    // 64 tokens fit: 60 of the prompt and 4 of 5 that are generated.
    assert!(scheduler.submit(request(1, 60, 5).0).is_ok());
    let (_, refusal) = scheduler.submit(request(2, 60, 6).0).unwrap_err();
    assert_eq!(refusal, Refusal::NeverFits { tokens: 65, room: 64 });
    assert_eq!(refusal.status(), 400);
}
