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
    /// [`Splice::with_rid`], and right behind it the DP rank under each of `rank_keys` (releases differ in its name). A client
    /// that names a rank itself later in the body has the last word at engines that take the last of two equal keys.
    #[must_use]
    pub fn with_rid_and_rank(body: &Bytes, facts: &RequestFacts, rid: &str, rank_keys: &[&str], rank: u16) -> Splice {
        let plain = Splice::with_rid(body, facts, rid);
        let ranks: String = rank_keys.iter().map(|key| format!(",\"{key}\":{rank}")).collect();
        let mut inserted = plain.inserted.to_vec();
        // Behind the id's value, which a comma may follow.
        let at = inserted.iter().rposition(|b| *b == b'"').map_or(inserted.len(), |i| i + 1);
        inserted.splice(at..at, ranks.into_bytes());
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
