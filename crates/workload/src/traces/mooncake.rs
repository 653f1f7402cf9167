//! Mooncake's conversation trace (FAST'25): requests with arrival times and chained ids of 512-token prefix blocks.
//!
//! Id *k* stands for a block and everything before it, numbered by first appearance, so equal leading ids are equal
//! prefixes over the whole file. The last id covers `input_length` modulo 512 tokens.

use super::at_column;
use crate::plan::{Call, Prompt, Run, Session, Tail, push_run};
use plimsoll_core::Nanos;
use serde::Deserialize;

const BLOCK_TOKENS: u64 = 512;

/// No model has a longer context; a row that says so is broken, and believing it would fill the memory.
pub(super) const MOST_TOKENS: u64 = 1 << 24;

#[derive(Deserialize)]
struct Row {
    /// Milliseconds.
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
    /// Not in Mooncake's own file; `plimsoll sim import` writes it where a log knows it.
    max_tokens: Option<u64>,
}

pub(super) fn parse(line: &str, number: u64) -> Result<Session, (usize, String)> {
    let row: Row = serde_json::from_str(line).map_err(|error| at_column(&error))?;
    let lengths = [
        ("\"input_length\"", row.input_length),
        ("\"output_length\"", row.output_length),
        ("\"max_tokens\"", row.max_tokens.unwrap_or(0)),
    ];
    for (key, tokens) in lengths {
        if tokens > MOST_TOKENS {
            let column = line.find(key).unwrap_or(0) + 1;
            return Err((column, format!("{key} is {tokens}; expected at most {MOST_TOKENS} tokens")));
        }
    }
    let ids = row.hash_ids.len() as u64;
    let expected = row.input_length.div_ceil(BLOCK_TOKENS);
    if ids != expected || ids == 0 {
        let column = line.find("\"hash_ids\"").unwrap_or(0) + 1;
        return Err((
            column,
            format!("{ids} hash_ids for input_length {}; expected {expected} (at least 1)", row.input_length),
        ));
    }
    let (full, part) = (row.input_length / BLOCK_TOKENS, row.input_length % BLOCK_TOKENS);
    let mut runs = Vec::new();
    for &id in &row.hash_ids[..full as usize] {
        push_run(&mut runs, Run { first: id, len: 1 });
    }
    let tail = row.hash_ids.last().filter(|_| part > 0).map(|&id| Tail { id, tokens: part });
    let call = Call {
        after: Vec::new(),
        prompt: Prompt { block_tokens: BLOCK_TOKENS, runs, tail },
        echo_tokens: 0,
        output_tokens: row.output_length.max(1),
        max_output_tokens: row.max_tokens,
        recorded: None,
    };
    let start = Nanos::from_millis(row.timestamp);
    Ok(Session { id: format!("row {number}"), start, prefix_blocks: None, calls: vec![call] })
}
