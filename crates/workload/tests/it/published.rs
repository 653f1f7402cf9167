//! The readers see the traces that were published: every figure is from `shared/traces/README.md`.

use crate::shared::{AGENTIC, MOONCAKE, near, quantile, trace};
use plimsoll_workload::traces::{Format, Trace};
use plimsoll_workload::{Prompt, Session};
use std::collections::{BTreeMap, BTreeSet, HashSet};

#[test]
fn mooncake_has_its_published_rows_blocks_and_hit_rate() {
    let Some(path) = trace("mooncake_has_its_published_rows_blocks_and_hit_rate", MOONCAKE) else { return };
    let trace = Trace::open(&path).unwrap();
    assert_eq!(trace.format(), Format::Mooncake);
    let (mut rows, mut refs, mut hits, mut input, mut output, mut last) = (0u64, 0u64, 0u64, 0.0, 0.0, 0.0f64);
    let mut seen = HashSet::new();
    for session in trace {
        let session = session.unwrap();
        rows += 1;
        last = last.max(session.start.as_secs_f64());
        let call = &session.calls[0];
        input += call.prompt.tokens() as f64;
        output += call.output_tokens as f64;
        let ids: Vec<u64> = call.prompt.block_ids().chain(call.prompt.tail.map(|tail| tail.id)).collect();
        refs += ids.len() as u64;
        hits += ids.iter().take_while(|id| seen.contains(*id)).count() as u64;
        seen.extend(ids);
    }
    assert_eq!((rows, refs, seen.len()), (12_031, 288_500, 182_790));
    near("mean input", input / rows as f64, 12_035.0, 0.001);
    near("mean output", output / rows as f64, 343.0, 0.002);
    near("block hit rate", hits as f64 / refs as f64, 0.366, 0.002);
    near("time span", last, 3_537.0, 0.001);
}

#[test]
fn agentic_has_its_published_calls_lengths_and_hit_rate() {
    let Some(path) = trace("agentic_has_its_published_calls_lengths_and_hit_rate", AGENTIC) else { return };
    let trace = Trace::open(&path).unwrap();
    assert_eq!(trace.format(), Format::Agentic);
    let (mut sessions, mut calls) = (0u64, 0u64);
    let (mut input, mut output, mut hit_tokens) = (0.0, 0.0, 0.0);
    let mut firsts = Vec::new();
    for session in trace {
        let session = session.unwrap();
        sessions += 1;
        calls += session.calls.len() as u64;
        firsts.push(session.calls[0].prompt.tokens() as f64);
        assert!(session.calls.iter().enumerate().all(|(n, call)| call.after.iter().all(|after| after.call < n)));
        let mut seen = Spans::default();
        for call in &session.calls {
            input += call.prompt.tokens() as f64;
            output += call.output_tokens as f64;
            hit_tokens += (seen.leading(&call.prompt) * call.prompt.block_tokens) as f64;
            call.prompt.runs.iter().for_each(|run| seen.insert(run.first, run.first + run.len));
        }
    }
    assert_eq!((sessions, calls), (481, 33_825));
    near("mean input", input / calls as f64, 122_386.0, 0.001);
    near("mean output", output / calls as f64, 454.0, 0.001);
    near("first-call input p50", quantile(&mut firsts, 0.5), 25_564.0, 0.001);
    near("session-local token hit rate", hit_tokens / input, 0.964, 0.001);
}

#[test]
fn sessions_with_equal_tools_share_their_tool_blocks() {
    let Some(path) = trace("sessions_with_equal_tools_share_their_tool_blocks", AGENTIC) else { return };
    let mut groups: BTreeMap<u64, u64> = BTreeMap::new();
    for session in Trace::open(&path).unwrap() {
        let session: Session = session.unwrap();
        *groups.entry(session.calls[0].prompt.runs[0].first).or_default() += 1;
    }
    // Sizes that fill the same number of blocks are still different tools.
    assert_eq!(groups.len(), 75);
    assert_eq!(groups.values().max(), Some(&62));
}

#[test]
fn sub_agents_run_while_their_parent_waits() {
    let Some(path) = trace("sub_agents_run_while_their_parent_waits", AGENTIC) else { return };
    let (mut forks, mut joins) = (0, 0);
    for session in Trace::open(&path).unwrap() {
        let session = session.unwrap();
        let mut waited_for = BTreeSet::new();
        for call in &session.calls {
            joins += usize::from(call.after.len() > 1);
            forks += call.after.iter().filter(|after| !waited_for.insert(after.call)).count();
        }
    }
    // 45 sub-agent chains; those that start a session or end it do not both fork and join.
    assert!((30..=50).contains(&forks) && (15..=45).contains(&joins), "{forks} forks, {joins} joins");
}

#[test]
fn survey_stops_at_the_limit() {
    let Some(path) = trace("survey_stops_at_the_limit", MOONCAKE) else { return };
    let summary = Trace::survey(&path, Some(500)).unwrap();
    assert_eq!((summary.sessions, summary.calls, summary.prompt_tokens), (500, 500, 7_124_855));
}

/// A set of ids as disjoint spans: the trace has 64 million block references in a hundred thousand runs.
#[derive(Default)]
struct Spans(BTreeMap<u64, u64>);

impl Spans {
    fn end_of(&self, id: u64) -> Option<u64> {
        self.0.range(..=id).next_back().map(|(_, &end)| end).filter(|&end| end > id)
    }

    fn leading(&self, prompt: &Prompt) -> u64 {
        let mut blocks = 0;
        for run in &prompt.runs {
            let (mut id, end) = (run.first, run.first + run.len);
            while id < end {
                let Some(known) = self.end_of(id) else { return blocks };
                blocks += known.min(end) - id;
                id = known;
            }
        }
        blocks
    }

    fn insert(&mut self, first: u64, end: u64) {
        let mut id = first;
        while id < end {
            match self.end_of(id) {
                Some(known) => id = known,
                None => {
                    let stop = self.0.range(id..end).next().map_or(end, |(&next, _)| next);
                    self.0.insert(id, stop);
                    id = stop;
                }
            }
        }
    }
}
