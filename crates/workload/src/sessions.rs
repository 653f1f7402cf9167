//! A seeded generator of multi-turn agent sessions, calibrated to the agentic trace.
//!
//! The trace is the truth but a fixed one: 481 sessions, no more, and not everybody has it. The default workload draws
//! as many sessions as asked for from the trace's own marginals (see [`Shape`]): how long the first prompt is, how many
//! turns follow, what each adds, answers and waits, and how often the context is rewritten behind its system prompt
//! (compaction). Sessions share tool and system prefixes as `shared/traces/README.md` says.

mod shape;

pub use shape::Shape;

use crate::ids::BlockIds;
use crate::plan::{After, Call, Prompt, Run, Session, Tail, push_run};
use plimsoll_core::Nanos;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const BLOCK_TOKENS: u64 = 64;

/// An endless iterator of sessions; the same seed and shape give the same sessions. Each session has a generator of
/// its own, so the n-th does not depend on how long the ones before it were.
#[derive(Clone, Debug)]
pub struct SessionGenerator {
    shape: Shape,
    seed: u64,
    next: u64,
    ids: BlockIds,
    arrival: Nanos,
}

impl SessionGenerator {
    #[must_use]
    pub fn new(seed: u64, shape: Shape) -> Self {
        SessionGenerator { shape, seed, next: 0, ids: BlockIds::default(), arrival: Nanos::ZERO }
    }

    fn session(&mut self) -> Session {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(self.next);
        let shape = self.shape;
        let (tools, system) = shape.prefix(&mut rng);
        let prefix = self.ids.shared_prefix(tools, system, BLOCK_TOKENS);
        let turns = shape.turns.draw_tokens(&mut rng).min(shape.turn_limit);
        let smallest = tools + system + BLOCK_TOKENS;
        let largest = shape.context_limit_tokens.max(smallest);
        let first = shape.first_tokens.draw_tokens(&mut rng).clamp(smallest, largest);
        let limit = shape.window_tokens(first, &mut rng).max(smallest);
        let mut context = Context::new(prefix);
        context.append(first.saturating_sub(context.tokens()), &mut self.ids);
        let mut calls = vec![context.call(Vec::new(), 0, shape.output_tokens.draw_tokens(&mut rng))];
        for turn in 1..turns {
            let delay = Nanos::from_secs_f64(shape.think_s.draw(&mut rng));
            let added = shape.turn_tokens.draw_tokens(&mut rng);
            let answered = calls.last().map_or(0, |call| call.output_tokens);
            let rewrites = rng.random::<f64>() < shape.rewrite_share;
            let ratio = shape.rewrite_ratio.draw(&mut rng);
            let before = context.tokens();
            let echo = if rewrites || before + added > limit {
                context.rewrite();
                let target = if rewrites { (before as f64 * ratio) as u64 } else { limit / 4 };
                let room = limit.saturating_sub(context.tokens());
                context.append(target.saturating_sub(context.tokens()).max(added).min(room), &mut self.ids);
                0
            } else {
                context.append(added, &mut self.ids);
                answered.min(added)
            };
            let after = vec![After { call: turn as usize - 1, delay }];
            calls.push(context.call(after, echo, shape.output_tokens.draw_tokens(&mut rng)));
        }
        let prefix_blocks = Some(prefix.iter().map(|run| run.len).sum());
        let session = Session { id: format!("session {}", self.next), start: self.arrival, prefix_blocks, calls };
        self.arrival = self.arrival + Nanos::from_secs_f64(-shape.arrival_gap_s * (1.0 - rng.random::<f64>()).ln());
        self.next += 1;
        session
    }
}

impl Iterator for SessionGenerator {
    type Item = Session;

    fn next(&mut self) -> Option<Session> {
        Some(self.session())
    }
}

/// A conversation as it grows: full blocks, and a part block that the next turn fills up.
struct Context {
    prefix_runs: Vec<Run>,
    runs: Vec<Run>,
    /// The block being filled; its text so far is the head of the block it becomes.
    open: Option<Tail>,
}

impl Context {
    fn new(prefix: [Run; 2]) -> Self {
        let mut prefix_runs = Vec::new();
        prefix.into_iter().for_each(|run| push_run(&mut prefix_runs, run));
        Context { runs: prefix_runs.clone(), prefix_runs, open: None }
    }

    fn tokens(&self) -> u64 {
        self.runs.iter().map(|run| run.len).sum::<u64>() * BLOCK_TOKENS + self.open.map_or(0, |tail| tail.tokens)
    }

    fn append(&mut self, tokens: u64, ids: &mut BlockIds) {
        let mut tokens = tokens;
        if let Some(open) = self.open.take() {
            let filled = open.tokens + tokens;
            if filled < BLOCK_TOKENS {
                self.open = Some(Tail { id: open.id, tokens: filled });
                return;
            }
            push_run(&mut self.runs, Run { first: open.id, len: 1 });
            tokens = filled - BLOCK_TOKENS;
        }
        let run = ids.fresh(tokens.div_ceil(BLOCK_TOKENS));
        let full = tokens / BLOCK_TOKENS;
        push_run(&mut self.runs, Run { first: run.first, len: full });
        let part = tokens % BLOCK_TOKENS;
        self.open = (part > 0).then_some(Tail { id: run.first + full, tokens: part });
    }

    /// Back to the shared prefix.
    fn rewrite(&mut self) {
        self.runs.clone_from(&self.prefix_runs);
        self.open = None;
    }

    fn call(&self, after: Vec<After>, echo_tokens: u64, output_tokens: u64) -> Call {
        let prompt = Prompt { block_tokens: BLOCK_TOKENS, runs: self.runs.clone(), tail: self.open };
        Call { after, prompt, echo_tokens, output_tokens, max_output_tokens: None, recorded: None }
    }
}
