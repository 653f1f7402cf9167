//! Putting the keys that the gateway owns into a body, by position.
//!
//! Everything else stays as the client sent it, byte for byte: parsing a body and writing it again changes key order and
//! number forms, and tokens with them. A key that the scan has seen is replaced where it stands; one that it has not is
//! added, the id first, the others last. Last, because engines take the last of two equal keys: a client that names a rank
//! itself has no say.

use super::RequestFacts;
use bytes::Bytes;
use std::fmt::Write as _;
use std::ops::Range;

/// Most pieces of a spliced body: the client's bytes around three insertions.
pub const PIECES: usize = 7;

/// What the gateway sets. The default sets nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Set<'a> {
    /// Top-level `rid`. Must need no JSON escapes.
    pub rid: Option<&'a str>,
    /// DP rank, under each of these keys: releases differ in its name.
    pub rank: Option<(&'a [&'a str], u16)>,
    /// Top-level `priority`.
    pub priority: Option<i64>,
}

/// The body with what is set, as slices of `body` and new pieces in turn. Copies none of the client's bytes.
#[must_use]
pub fn splice(body: &Bytes, facts: &RequestFacts, set: &Set<'_>) -> [Bytes; PIECES] {
    // The scan has seen that the first byte after white space is the object's brace, and the last before it the other.
    let open = memchr::memchr(b'{', body).map_or(0, |at| at + 1);
    let close = memchr::memrchr(b'}', body).unwrap_or(body.len());
    let mut members = !body[open..close.max(open)].trim_ascii().is_empty();
    let mut edits: [Option<(Range<usize>, String)>; 3] = [None, None, None];
    if let Some(rid) = set.rid {
        edits[0] = Some(match &facts.rid {
            Some(span) => (span.clone(), format!("\"{rid}\"")),
            None => (open..open, format!("\"rid\":\"{rid}\"{}", if members { "," } else { "" })),
        });
        members = true;
    }
    let mut tail = String::new();
    let mut member = |key: &str, value: i64| {
        let _ = write!(tail, "{}\"{key}\":{value}", if std::mem::replace(&mut members, true) { "," } else { "" });
    };
    if let Some(priority) = set.priority {
        match &facts.priority_at {
            Some(span) => edits[1] = Some((span.clone(), priority.to_string())),
            None => member("priority", priority),
        }
    }
    if let Some((keys, rank)) = set.rank {
        keys.iter().for_each(|key| member(key, rank.into()));
    }
    if !tail.is_empty() {
        edits[2] = Some((close..close, tail));
    }
    pieces(body, edits)
}

fn pieces(body: &Bytes, mut edits: [Option<(Range<usize>, String)>; 3]) -> [Bytes; PIECES] {
    // Stable: what is inserted at one place keeps its order. Those that are missing come last.
    edits.sort_by_key(|edit| edit.as_ref().map_or(usize::MAX, |(at, _)| at.start));
    let mut pieces = [const { Bytes::new() }; PIECES];
    let (mut next, mut from) = (0, 0);
    for (at, text) in edits.into_iter().flatten() {
        pieces[next] = body.slice(from..at.start);
        pieces[next + 1] = Bytes::from(text);
        (next, from) = (next + 2, at.end);
    }
    pieces[next] = body.slice(from..);
    pieces
}

#[cfg(test)]
mod tests;
