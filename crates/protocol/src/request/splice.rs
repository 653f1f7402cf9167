//! Putting the one key that the gateway owns into a body, by position.

use super::RequestFacts;
use bytes::Bytes;

/// A body in three parts; the outer two are slices of the client's bytes.
#[derive(Clone, Debug)]
pub struct Splice {
    pub before: Bytes,
    pub inserted: Bytes,
    pub after: Bytes,
}

impl Splice {
    /// [`Splice::with_rid`], and the DP rank under `rank_keys` (keys of numbers, put in front: engines take a key that
    /// comes again later from there, so a client's own value would win; the caller removes none).
    #[must_use]
    pub fn with_rid_and_rank(body: &Bytes, facts: &RequestFacts, rid: &str, rank_keys: &[&str], rank: u16) -> Splice {
        let plain = Splice::with_rid(body, facts, rid);
        if rank_keys.is_empty() || facts.rid.is_some() {
            // With a client's own `rid` in the middle there is no second place to put more in; the engine balances.
            return plain;
        }
        let mut inserted = String::new();
        for key in rank_keys {
            inserted.push_str(&format!("\"{key}\":{rank},"));
        }
        inserted.push_str(std::str::from_utf8(&plain.inserted).unwrap_or_default());
        Splice { inserted: Bytes::from(inserted), ..plain }
    }

    /// Sets the top-level `rid` to `rid` (which must need no JSON escapes), replacing the client's own if there is one.
    /// All other bytes stay as they are.
    #[must_use]
    pub fn with_rid(body: &Bytes, facts: &RequestFacts, rid: &str) -> Splice {
        if let Some(span) = &facts.rid {
            return Splice {
                before: body.slice(..span.start),
                inserted: Bytes::from(format!("\"{rid}\"")),
                after: body.slice(span.end..),
            };
        }
        // The scan has seen that the first byte after white space is the object's brace.
        let open = memchr::memchr(b'{', body).map_or(0, |i| i + 1);
        let empty = body[open..].trim_ascii_start().first() == Some(&b'}');
        let comma = if empty { "" } else { "," };
        Splice {
            before: body.slice(..open),
            inserted: Bytes::from(format!("\"rid\":\"{rid}\"{comma}")),
            after: body.slice(open..),
        }
    }
}
