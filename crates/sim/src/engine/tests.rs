//! Engines alone: what comes out does not depend on how steps are put together.

use super::*;
use crate::names;
use crate::step_time::StepClock;
use plimsoll_core::{Nanos, Rank as RankId};
use plimsoll_workload::{Prompt, Run};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SHAPE: EngineShape = EngineShape {
    page_tokens: 16,
    kv_tokens: 4_096,
    context_tokens: 4_000,
    token_budget: 256,
    max_running: 8,
    block_tokens: 32,
    reserve: Reserve::Prompt,
    context_wait: None,
};

#[derive(Clone, Debug)]
struct Arrival {
    at_us: u64,
    rank: u16,
    /// Which of a few prefixes it starts with, and how many blocks of it.
    family: u64,
    shared: u64,
    prompt: u64,
    output: u64,
}

fn arrivals(ranks: u16) -> impl Strategy<Value = Vec<Arrival>> {
    let one = (0u64..400_000, 0..ranks, 0u64..3, 0u64..20, 1u64..1_200, 1u64..300);
    let arrival =
        |(at_us, rank, family, shared, prompt, output)| Arrival { at_us, rank, family, shared, prompt, output };
    prop::collection::vec(one.prop_map(arrival), 1..40)
}

fn job(nth: u64, arrival: &Arrival) -> Job {
    let full = arrival.prompt / SHAPE.block_tokens;
    let shared = arrival.shared.min(full);
    let runs = vec![
        Run { first: arrival.family * 1_000, len: shared },
        Run { first: 1_000_000 + nth * 1_000, len: full - shared },
    ];
    let mut chain = Vec::new();
    names::extend(&mut chain, &Prompt { block_tokens: SHAPE.block_tokens, runs, tail: None });
    Job::new(Key(nth), chain, arrival.prompt, arrival.output)
}

/// Every happening with its time, and the femtoseconds of work.
fn serve(
    mut arrivals: Vec<Arrival>,
    shape: EngineShape,
    ranks: u16,
    single_steps: bool,
) -> (Vec<(u64, Happened)>, u128, u64) {
    let profile = plimsoll_timing::find("h100-llama3-8b").unwrap();
    let mut clock = StepClock::new(Box::new(profile));
    clock.single_steps = single_steps;
    let mut instance = Instance::new(shape, ranks, true);
    arrivals.sort_by_key(|arrival| arrival.at_us);
    let mut log = Vec::new();
    let mut next: Option<Nanos> = None;
    let mut coming = arrivals.iter().enumerate().peekable();
    loop {
        let mut out = Vec::new();
        let arrives = coming.peek().map(|(_, arrival)| Nanos(arrival.at_us * 1_000));
        let now = match (arrives, next) {
            (None, None) => break,
            (Some(arrives), ends) if ends.is_none_or(|ends| arrives < ends) => {
                let (nth, arrival) = coming.next().unwrap();
                let ends =
                    instance.submit(arrives, RankId(arrival.rank), job(nth as u64, arrival), &clock, &mut out).unwrap();
                next = ends.or(next);
                arrives
            }
            (_, Some(ends)) => {
                instance.end(&mut out);
                next = instance.begin(&clock, &mut out);
                ends
            }
            (Some(_), None) => unreachable!(),
        };
        instance.check().unwrap();
        for rank in 0..ranks {
            let _ = instance.rank_mut(RankId(rank)).take_events();
        }
        log.extend(out.into_iter().map(|happened| (now.0, happened)));
    }
    assert!(instance.is_idle());
    let totals = instance.totals();
    (log, totals.busy_fs, totals.output_tokens)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Coalescing is invisible: every token comes at the same nanosecond, with pages short and ranks in lock-step.
    #[test]
    fn runs_are_their_steps(
        arrivals in arrivals(2),
        ranks in 1u16..3,
        kv in prop_oneof![Just(4_096u64), Just(1_536)],
        chunk: bool,
        wait in prop::option::of((0u64..60, 0u64..9)),
    ) {
        let reserve = if chunk { Reserve::Chunk } else { Reserve::Prompt };
        let context_wait =
            wait.map(|(timeout_steps, batching_steps)| ContextWait { timeout_steps, batching_steps });
        let shape = EngineShape { kv_tokens: kv, context_tokens: kv, reserve, context_wait, ..SHAPE };
        let arrivals: Vec<Arrival> = arrivals
            .into_iter()
            .map(|arrival| Arrival { rank: arrival.rank % ranks, ..arrival })
            .collect();
        let wanted: u64 = arrivals.iter().map(|arrival| arrival.output).sum();
        let (steps, steps_fs, tokens) = serve(arrivals.clone(), shape, ranks, true);
        let (runs, runs_fs, _) = serve(arrivals.clone(), shape, ranks, false);
        prop_assert_eq!(steps_fs, runs_fs);
        prop_assert_eq!(&steps, &runs);
        prop_assert_eq!(tokens, wanted);
        let mut ends: BTreeMap<u64, u32> = BTreeMap::new();
        for (_, happened) in &runs {
            if let Happened::Finished { key } = happened {
                *ends.entry(key.0).or_default() += 1;
            }
        }
        prop_assert_eq!(ends.len(), arrivals.len());
        prop_assert!(ends.values().all(|count| *count == 1));
    }
}

#[test]
fn a_prompt_that_was_seen_is_not_computed_again_but_for_its_last_block() {
    let first = Arrival { at_us: 0, rank: 0, family: 0, shared: 30, prompt: 960, output: 4 };
    let again = Arrival { at_us: 300_000, ..first };
    let (log, ..) = serve(vec![again.clone(), Arrival { at_us: 0, ..again }], SHAPE, 1, false);
    let cached: Vec<u64> = log
        .iter()
        .filter_map(|(_, happened)| match happened {
            Happened::FirstToken { cached_tokens, .. } => Some(*cached_tokens),
            _ => None,
        })
        .collect();
    // 30 blocks of 32; the last token is always computed, and with it its block.
    assert_eq!(cached, [0, 29 * 32]);
}

#[test]
fn a_request_that_can_never_fit_is_given_back() {
    let profile = plimsoll_timing::find("h100-llama3-8b").unwrap();
    let clock = StepClock::new(Box::new(profile));
    let mut instance = Instance::new(SHAPE, 1, false);
    let mut out = Vec::new();
    let refused = instance.submit(Nanos::ZERO, RankId(0), Job::new(Key(1), Vec::new(), 4_000, 2), &clock, &mut out);
    assert!(refused.is_err());
    let taken = instance.submit(Nanos::ZERO, RankId(0), Job::new(Key(1), Vec::new(), 4_000, 1), &clock, &mut out);
    assert!(taken.unwrap().is_some());
}

/// Found in review: whole prompts were reported, and the gateway took what is cached for foreign work.
#[test]
fn what_waits_is_reported_net_of_what_is_cached() {
    let profile = plimsoll_timing::find("h100-llama3-8b").unwrap();
    let clock = StepClock::new(Box::new(profile));
    let mut instance = Instance::new(EngineShape { max_running: 1, ..SHAPE }, 1, false);
    let mut out = Vec::new();
    let same = Arrival { at_us: 0, rank: 0, family: 0, shared: 10, prompt: 320, output: 50 };
    let mut ends = instance.submit(Nanos::ZERO, RankId(0), job(0, &same), &clock, &mut out).unwrap();
    while !out.iter().any(|happened| matches!(happened, Happened::FirstToken { .. })) {
        let now = ends.unwrap();
        instance.end(&mut out);
        ends = instance.begin(&clock, &mut out);
        if out.is_empty() {
            assert!(ends.unwrap() > now);
        }
    }
    instance.submit(Nanos::ZERO, RankId(0), job(1, &same), &clock, &mut out).unwrap();
    let other = Arrival { shared: 0, ..same };
    instance.submit(Nanos::ZERO, RankId(0), job(2, &other), &clock, &mut out).unwrap();
    let report = instance.reports(Nanos::ZERO).next().unwrap();
    assert_eq!(report.waiting_requests, Some(2));
    // Of the one that is cached its last block is computed; of the other all.
    assert_eq!(report.waiting_uncached_tokens, Some(32 + 320));
}
