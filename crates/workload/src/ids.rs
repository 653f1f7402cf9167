//! Block ids that are unique over a whole workload, with the prefixes that sessions share.
//!
//! Ids in the agentic trace are local to a session, and the trace says how to model what sessions have in common
//! (`shared/traces/README.md`): equal tool sizes share the tool blocks, equal (tool, system) sizes share both. Every
//! other block gets an id of its own from one counter, so ids stay dense, which [`crate::Synth`] relies on.

use crate::plan::Run;
use std::collections::BTreeMap;

/// Hands out block ids. Holds one entry per distinct tool and system size (75 and 261 in the trace).
#[derive(Clone, Debug, Default)]
pub struct BlockIds {
    next: u64,
    tools: BTreeMap<u64, Run>,
    systems: BTreeMap<(u64, u64), Run>,
}

impl BlockIds {
    /// `len` ids that nobody else has.
    pub fn fresh(&mut self, len: u64) -> Run {
        let run = Run { first: self.next, len };
        self.next += len;
        run
    }

    /// The tool definitions of this size and the system prompt behind them, in whole blocks of `block_tokens`. The
    /// system prompt ends where the two together do, so that a part block is not lost twice.
    pub fn shared_prefix(&mut self, tool_tokens: u64, system_tokens: u64, block_tokens: u64) -> [Run; 2] {
        let tool_blocks = tool_tokens / block_tokens;
        let system_blocks = (tool_tokens + system_tokens) / block_tokens - tool_blocks;
        let next = &mut self.next;
        let mut take = |len: u64| {
            let run = Run { first: *next, len };
            *next += len;
            run
        };
        let tools = *self.tools.entry(tool_tokens).or_insert_with(|| take(tool_blocks));
        let system = *self.systems.entry((tool_tokens, system_tokens)).or_insert_with(|| take(system_blocks));
        [tools, system]
    }
}
