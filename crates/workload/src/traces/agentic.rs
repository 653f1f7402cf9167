//! The agentic trace in its compact form: 481 coding sessions with sub-agents, replayed closed-loop.
//!
//! A call is `[t, api_time, think_time, in, out, stop, type, ttft, keep, [[first_id, len], …]]`: its leading `keep`
//! blocks are those of the previous call of its chain, the rest is run-length coded. `{"sub": …}` is a chain of its own
//! that starts while its parent waits; neighbouring sub-agents overlap in the recordings and do so here. The next call
//! of the parent waits for its own pause and for all of them. Session starts are not recorded; the caller spreads them.

use super::at_column;
use super::mooncake::MOST_TOKENS;
use crate::ids::BlockIds;
use crate::plan::{After, Call, Prompt, Run, Session, Tail, push_run};
use plimsoll_core::Nanos;
use serde::Deserialize;

#[derive(Deserialize)]
struct Line {
    id: String,
    block_size: u64,
    #[serde(flatten)]
    chain: Chain,
}

#[derive(Deserialize)]
struct Chain {
    tool_tokens: u64,
    system_tokens: u64,
    reqs: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Call(CallRow),
    Sub { sub: Sub },
}

#[derive(Deserialize)]
struct Sub {
    /// Seconds from the session's start.
    t: Option<f64>,
    #[serde(flatten)]
    chain: Chain,
}

/// The fields of a call by position; a few recordings lack times.
#[derive(Deserialize)]
struct CallRow(
    Option<f64>,
    Option<f64>,
    Option<f64>,
    u64,
    u64,
    #[allow(dead_code, reason = "the stop reason is not replayed")] Option<String>,
    #[allow(dead_code, reason = "every call is replayed as a stream")] Option<String>,
    #[allow(dead_code, reason = "recorded TTFT of another server")] Option<f64>,
    u64,
    Vec<(u64, u64)>,
);

impl CallRow {
    /// When the answer was complete, in recorded seconds; `None` where the recording has no start.
    fn end_s(&self) -> Option<f64> {
        self.0.map(|start| start + self.1.unwrap_or(0.0))
    }
    fn pause(&self) -> Nanos {
        Nanos::from_secs_f64(self.2.unwrap_or(0.0))
    }
}

/// Ids of a session's blocks are below this.
const MOST_ID: u64 = 1 << 40;

/// No length is beyond what any model takes: believing it would fill the memory, and sums of it would run over.
fn bounded(chain: &Chain) -> Result<(), String> {
    let check = |what: &str, tokens: u64| match tokens {
        0..=MOST_TOKENS => Ok(()),
        _ => Err(format!("{tokens} {what}; expected at most {MOST_TOKENS}")),
    };
    check("tool_tokens", chain.tool_tokens)?;
    check("system_tokens", chain.system_tokens)?;
    for entry in &chain.reqs {
        match entry {
            Entry::Call(row) => {
                check("input tokens", row.3)?;
                check("output tokens", row.4)?;
                check("kept blocks", row.8)?;
                row.9.iter().try_for_each(|&(_, len)| check("blocks in a run", len))?;
            }
            Entry::Sub { sub } => bounded(&sub.chain)?,
        }
    }
    Ok(())
}

/// Maps ids local to a session to workload-wide ones: known stretches go to shared prefixes, the rest to `base`.
struct LocalIds<'a> {
    block_tokens: u64,
    base: u64,
    /// Stretches of local ids (first, workload-wide run).
    shared: Vec<(u64, Run)>,
    ids: &'a mut BlockIds,
}

pub(super) fn parse(line: &str, ids: &mut BlockIds) -> Result<Session, (usize, String)> {
    let parsed: Line = serde_json::from_str(line).map_err(|error| at_column(&error))?;
    if !(1..=MOST_TOKENS).contains(&parsed.block_size) {
        let what = format!("block_size is {}; expected 1 to {MOST_TOKENS} tokens", parsed.block_size);
        return Err((line.find("\"block_size\"").unwrap_or(0) + 1, what));
    }
    bounded(&parsed.chain).map_err(|expected| (1, expected))?;
    let largest = largest_id(&parsed.chain);
    if largest >= MOST_ID {
        return Err((1, format!("a block id of {largest}; expected ids below 2^40")));
    }
    let base = ids.fresh(largest + 1).first;
    let mut local = LocalIds { block_tokens: parsed.block_size, base, shared: Vec::new(), ids };
    let mut calls = Vec::new();
    chain(&parsed.chain, None, &mut local, &mut calls).map_err(|expected| (1, expected))?;
    if calls.is_empty() {
        return Err((line.find("\"reqs\"").unwrap_or(0) + 1, "no calls in reqs; expected at least one".to_owned()));
    }
    let prefix = (parsed.chain.tool_tokens + parsed.chain.system_tokens) / parsed.block_size;
    let prefix_blocks = Some(prefix.min(calls[0].prompt.full_blocks()));
    Ok(Session { id: parsed.id, start: Nanos::ZERO, prefix_blocks, calls })
}

/// Appends the chain's calls; returns its last call, `None` where it has none. `parent` is the call (and the pause
/// after it) that the chain's first call waits for.
fn chain(
    chain: &Chain,
    parent: Option<After>,
    local: &mut LocalIds<'_>,
    calls: &mut Vec<Call>,
) -> Result<Option<usize>, String> {
    let mut last: Option<(usize, &CallRow)> = None;
    let mut subs_ended: Vec<usize> = Vec::new();
    let mut previous: Option<Prompt> = None;
    for entry in &chain.reqs {
        match entry {
            Entry::Call(row) => {
                let mut after: Vec<After> = match last {
                    Some((call, _)) => vec![After { call, delay: row.pause() }],
                    None => parent.into_iter().collect(),
                };
                after.extend(subs_ended.drain(..).map(|call| After { call, delay: Nanos::ZERO }));
                let prompt = local.prompt(chain, row, previous.as_ref(), calls.len())?;
                last = Some((calls.len(), row));
                previous = Some(prompt.clone());
                let recorded = row.1.map(Nanos::from_secs_f64);
                calls.push(Call {
                    after,
                    prompt,
                    echo_tokens: 0,
                    output_tokens: row.4.max(1),
                    max_output_tokens: None,
                    recorded,
                });
            }
            Entry::Sub { sub } => {
                let starts_after = last.map(|(call, row)| {
                    let gap_s = sub.t.zip(row.end_s()).map_or(0.0, |(start, end)| start - end);
                    After { call, delay: Nanos::from_secs_f64(gap_s) }
                });
                subs_ended.extend(self::chain(&sub.chain, starts_after.or(parent), local, calls)?);
            }
        }
    }
    Ok(last.map(|(call, _)| call).or(subs_ended.last().copied()))
}

impl LocalIds<'_> {
    fn prompt(
        &mut self,
        chain: &Chain,
        row: &CallRow,
        previous: Option<&Prompt>,
        call: usize,
    ) -> Result<Prompt, String> {
        let (input, keep) = (row.3, row.8);
        let block_tokens = self.block_tokens;
        let listed = row.9.iter().fold(keep, |sum, &(_, len)| sum.saturating_add(len));
        let kept_from = previous.map_or(0, Prompt::full_blocks);
        if listed != input / block_tokens || keep > kept_from {
            return Err(format!(
                "call {call} lists {listed} blocks of which {keep} are kept; expected {} for {input} input tokens, at most \
                 {kept_from} of them kept",
                input / block_tokens
            ));
        }
        if previous.is_none() {
            self.share_prefix(chain, &row.9);
        }
        let mut runs = previous.map_or_else(Vec::new, |prompt| prompt.leading(keep));
        for &(first, len) in &row.9 {
            self.translate(first, len, &mut runs);
        }
        let tokens = input % block_tokens;
        let tail = (tokens > 0).then(|| Tail { id: self.ids.fresh(1).first, tokens });
        Ok(Prompt { block_tokens, runs, tail })
    }

    /// Notes that the local ids of a chain's leading blocks are its tools and its system prompt.
    fn share_prefix(&mut self, chain: &Chain, runs: &[(u64, u64)]) {
        let mut shared = self.ids.shared_prefix(chain.tool_tokens, chain.system_tokens, self.block_tokens).into_iter();
        let mut target = shared.next();
        for &(mut first, mut len) in runs {
            while len > 0 {
                match target {
                    Some(Run { len: 0, .. }) => target = shared.next(),
                    None => return,
                    Some(run) => {
                        let taken = run.len.min(len);
                        // A sub-agent of the same kind reuses the ids of the one before it: the first note stands.
                        if !self.shared.iter().any(|(known, noted)| (*known..known + noted.len).contains(&first)) {
                            self.shared.push((first, Run { first: run.first, len: taken }));
                        }
                        (first, len) = (first + taken, len - taken);
                        target = Some(Run { first: run.first + taken, len: run.len - taken });
                    }
                }
            }
        }
    }

    fn translate(&self, first: u64, len: u64, runs: &mut Vec<Run>) {
        let (mut first, end) = (first, first + len);
        while first < end {
            let inside = self.shared.iter().find(|(known, run)| (*known..known + run.len).contains(&first));
            let (target, stop) = match inside {
                Some((known, run)) => (run.first + (first - known), known + run.len),
                None => {
                    let next_known = self.shared.iter().map(|(known, _)| *known).filter(|known| *known > first).min();
                    (self.base + first, next_known.unwrap_or(end))
                }
            };
            let stop = stop.min(end);
            push_run(runs, Run { first: target, len: stop - first });
            first = stop;
        }
    }
}

fn largest_id(chain: &Chain) -> u64 {
    let of = |entry: &Entry| match entry {
        Entry::Call(row) => row.9.iter().map(|&(first, len)| first.saturating_add(len)).max().unwrap_or(0),
        Entry::Sub { sub } => largest_id(&sub.chain),
    };
    chain.reqs.iter().map(of).max().unwrap_or(0)
}
