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
