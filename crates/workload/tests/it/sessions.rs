//! Generated sessions against the figures of the agentic trace, at scale 1 and with the tolerances stated here.

use crate::shared::{near, quantile};
use plimsoll_workload::{Session, SessionGenerator, Shape};
use std::collections::{BTreeMap, BTreeSet};

fn generated() -> Vec<Session> {
    SessionGenerator::new(7, Shape::default()).take(1_000).collect()
}

#[test]
fn lengths_turns_and_pauses_are_those_of_the_agentic_trace() {
    let sessions = generated();
    let (mut turns, mut firsts, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut new, mut output, mut think) = (Vec::new(), Vec::new(), Vec::new());
    let (mut rewrites, mut steps) = (0.0, 0.0);
    for session in &sessions {
        turns.push(session.calls.len() as f64);
        firsts.push(session.calls[0].prompt.tokens() as f64);
        for (n, call) in session.calls.iter().enumerate() {
            let tokens = call.prompt.tokens() as f64;
            inputs.push(tokens);
            output.push(call.output_tokens as f64);
            let Some(before) = n.checked_sub(1).map(|n| &session.calls[n].prompt) else {
                new.push(tokens);
                continue;
            };
            let kept = (before.common_blocks(&call.prompt) * 64) as f64;
            new.push(tokens - kept);
            think.push(call.after[0].delay.as_secs_f64());
            steps += 1.0;
            rewrites += f64::from(u8::from(kept < 0.9 * before.tokens() as f64));
        }
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    near("turns p50", quantile(&mut turns, 0.5), 44.0, 0.10);
    near("turns p90", quantile(&mut turns, 0.9), 170.0, 0.10);
    near("turns mean", mean(&turns), 69.3, 0.10);
    near("first-call input p50", quantile(&mut firsts, 0.5), 25_564.0, 0.15);
    near("new tokens p50", quantile(&mut new, 0.5), 727.0, 0.10);
    near("new tokens mean", mean(&new), 4_435.0, 0.15);
    near("output mean", mean(&output), 454.0, 0.10);
    near("output p50", quantile(&mut output, 0.5), 221.0, 0.05);
    near("think p50", quantile(&mut think, 0.5), 10.0, 0.05);
    near("think mean", mean(&think), 170.0, 0.15);
    near("share of rewrites", rewrites / steps, 0.019, 0.20);
    near("input mean", mean(&inputs), 122_386.0, 0.20);
    near("token hit rate of a session by itself", 1.0 - mean(&new) / mean(&inputs), 0.964, 0.01);
}

#[test]
fn sessions_share_tools_and_system_prompts_as_the_trace_does() {
    // As many sessions as the trace has: 75 tool sizes (biggest group 62), 261 pairs (biggest group 17).
    let sessions: Vec<Session> = SessionGenerator::new(11, Shape::default()).take(481).collect();
    let (mut tools, mut pairs): (BTreeMap<u64, u32>, BTreeMap<Vec<u64>, u32>) = (BTreeMap::new(), BTreeMap::new());
    for session in &sessions {
        let prefix: Vec<u64> =
            session.calls[0].prompt.leading(session.prefix_blocks.unwrap()).iter().map(|run| run.first).collect();
        *tools.entry(prefix[0]).or_default() += 1;
        *pairs.entry(prefix).or_default() += 1;
    }
    near("tool sizes", tools.len() as f64, 75.0, 0.15);
    near("biggest tool group", f64::from(*tools.values().max().unwrap()), 62.0, 0.35);
    near("tool and system pairs", pairs.len() as f64, 261.0, 0.15);
    near("biggest pair", f64::from(*pairs.values().max().unwrap()), 17.0, 0.5);
}

#[test]
fn the_same_seed_gives_the_same_sessions_and_another_seed_others() {
    let three = |seed| SessionGenerator::new(seed, Shape::default()).take(3).collect::<Vec<_>>();
    assert_eq!(three(1), three(1));
    assert_ne!(three(1), three(2));
}

#[test]
fn private_blocks_belong_to_one_session() {
    let mut owner: BTreeMap<u64, usize> = BTreeMap::new();
    for (n, session) in SessionGenerator::new(3, Shape::default()).take(20).enumerate() {
        let prefix = session.prefix_blocks.unwrap() as usize;
        let private: BTreeSet<u64> =
            session.calls.iter().flat_map(|call| call.prompt.block_ids().skip(prefix).collect::<Vec<_>>()).collect();
        for id in private {
            assert_eq!(*owner.entry(id).or_insert(n), n, "block {id} is in two sessions");
        }
    }
}

#[test]
fn a_context_never_grows_past_its_limit() {
    let shape = Shape { context_limit_tokens: 60_000, turn_limit: 40, ..Shape::default() };
    for session in SessionGenerator::new(5, shape).take(50) {
        assert!(session.calls.len() <= 40);
        for call in &session.calls {
            assert!(call.prompt.tokens() <= 60_000, "{} has {} tokens", session.id, call.prompt.tokens());
        }
    }
}
