//! The model of a workload: sessions of calls, each with a prompt made of blocks.
//!
//! Agent traffic is closed-loop: a call starts when the one before it has answered and the tool has run. Replaying it
//! by wall-clock would let a slow server look fast, so a call names the calls it waits for; a trace with arrival times
//! only (Mooncake) is one session per row with a start time. All lengths are tokens and all times are those of the
//! source; [`crate::Scale`] is applied by whoever runs them.

use plimsoll_core::Nanos;

/// Calls that belong together because later ones wait for earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Name in the source (`trace_0001`, `row 17`, `session 3`).
    pub id: String,
    /// When the session begins, from the start of the workload.
    pub start: Nanos,
    /// Leading full blocks that are tool definitions and system prompt; `None` where the source does not say.
    pub prefix_blocks: Option<u64>,
    /// In source order; a call only waits for calls that stand before it.
    pub calls: Vec<Call>,
}

/// One request to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// All of these must have been answered (or have failed). Empty: the call begins with the session.
    pub after: Vec<After>,
    pub prompt: Prompt,
    /// Tokens at the head of the prompt's newest blocks that stand for the previous answer. A client that keeps the
    /// real answer puts it there; 0 where the source does not say.
    pub echo_tokens: u64,
    /// Tokens to generate, at least 1.
    pub output_tokens: u64,
    /// The most that the client asked for; `None` where the source does not say.
    pub max_output_tokens: Option<u64>,
    /// How long the recorded server took for the whole answer; `None` where the source does not say.
    pub recorded: Option<Nanos>,
}

/// An earlier call of the session, by index, and the pause after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    pub call: usize,
    pub delay: Nanos,
}

/// Consecutive block ids `first..first + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: u64,
    pub len: u64,
}

/// The last, incomplete block: `tokens` leading tokens of block `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    pub id: u64,
    pub tokens: u64,
}

/// A prompt as block ids. Equal ids mean equal text, wherever they stand; unequal ids mean unequal text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Tokens in a full block.
    pub block_tokens: u64,
    /// Full blocks, run-length coded: an agent's 200,000-token context is thousands of ids but dozens of runs.
    pub runs: Vec<Run>,
    pub tail: Option<Tail>,
}

impl Prompt {
    #[must_use]
    pub fn full_blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.len).sum()
    }

    /// Length in tokens of the source.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.full_blocks() * self.block_tokens + self.tail.map_or(0, |tail| tail.tokens)
    }

    /// Ids of the full blocks, in order.
    pub fn block_ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flat_map(|run| run.first..run.first + run.len)
    }

    /// Leading full blocks that both prompts have.
    #[must_use]
    pub fn common_blocks(&self, other: &Prompt) -> u64 {
        let (mut left, mut right) = (self.runs.iter().copied(), other.runs.iter().copied());
        let (mut a, mut b) = (left.next(), right.next());
        let mut common = 0;
        while let (Some(run_a), Some(run_b)) = (a, b) {
            if run_a.len == 0 || run_b.len == 0 {
                (a, b) = (
                    a.filter(|run| run.len > 0).or_else(|| left.next()),
                    b.filter(|run| run.len > 0).or_else(|| right.next()),
                );
                continue;
            }
            if run_a.first != run_b.first {
                break;
            }
            let len = run_a.len.min(run_b.len);
            common += len;
            a = Some(Run { first: run_a.first + len, len: run_a.len - len });
            b = Some(Run { first: run_b.first + len, len: run_b.len - len });
        }
        common
    }

    /// The first `blocks` full blocks, as runs; all of them where there are fewer.
    #[must_use]
    pub fn leading(&self, blocks: u64) -> Vec<Run> {
        let mut left = blocks;
        let mut kept = Vec::with_capacity(self.runs.len() + 1);
        for run in &self.runs {
            if left == 0 {
                break;
            }
            let len = run.len.min(left);
            kept.push(Run { first: run.first, len });
            left -= len;
        }
        kept
    }
}

/// Appends `run`, joining it to the last one where the ids continue.
pub(crate) fn push_run(runs: &mut Vec<Run>, run: Run) {
    if run.len == 0 {
        return;
    }
    match runs.last_mut() {
        Some(last) if last.first + last.len == run.first => last.len += run.len,
        _ => runs.push(run),
    }
}
