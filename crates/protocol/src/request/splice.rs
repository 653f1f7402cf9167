//! Putting the keys that the gateway owns into a body, by position.

use super::RequestFacts;
use bytes::Bytes;

/// A body in parts; `before`, `after` and `end` are slices of the client's bytes.
#[derive(Clone, Debug, Default)]
pub struct Splice {
    pub before: Bytes,
    /// The request id.
    pub inserted: Bytes,
    pub after: Bytes,
    /// The DP rank; empty where there is only one.
    pub rank: Bytes,
    pub end: Bytes,
}

impl Splice {
    /// [`Splice::with_rid`], and as the object's last members the DP rank under each of `rank_keys` (releases differ in its name).
    /// Last, because engines take the last of two equal keys: a client that names a rank itself has no say.
    #[must_use]
    pub fn with_rid_and_rank(body: &Bytes, facts: &RequestFacts, rid: &str, rank_keys: &[&str], rank: u16) -> Splice {
        let plain = Splice::with_rid(body, facts, rid);
        // The scan has seen that the last byte before white space is the object's brace, and the id is a member.
        let Some(close) = memchr::memrchr(b'}', &plain.after).filter(|_| !rank_keys.is_empty()) else { return plain };
        let ranks: String = rank_keys.iter().map(|key| format!(",\"{key}\":{rank}")).collect();
        Splice { after: plain.after.slice(..close), rank: Bytes::from(ranks), end: plain.after.slice(close..), ..plain }
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
                ..Splice::default()
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
            ..Splice::default()
        }
    }
}
