//! What the two engines say to each other besides pages.
//!
//! The first byte says what a note is. Token ids are u32, little-endian; the rest is JSON, which tolerates fields that
//! only one of them knows.

use super::protocol::Fence;
use super::report::Seal;
use crate::kv_events::Owner;
use crate::namespace::{MAX_KEY_BYTES, Namespace};
use crate::sampling::SamplingParams;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Ids in one note: what stays below the longest note of a link.
const IDS: usize = 200_000;

/// What the source knows of a request before its tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) migration: String,
    /// From the target's answer to `reserve`: that it is meant.
    pub(crate) key: String,
    pub(crate) rid: String,
    pub(crate) prompt_tokens: usize,
    pub(crate) params: SamplingParams,
    /// Whose KV it is: the prefix chain follows from it.
    pub(crate) owner: OwnerNote,
    /// First page that will come.
    pub(crate) first_page: usize,
    pub(crate) cached_tokens: Option<usize>,
    pub(crate) retractions: u32,
    /// Since its arrival.
    pub(crate) age_ms: u64,
    /// As its sender gave it.
    #[serde(default)]
    pub(crate) priority: Option<i64>,
    /// Wanted between tokens.
    #[serde(default)]
    pub(crate) tpot_us: Option<u64>,
}

/// An [`Owner`] in plain texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct OwnerNote {
    extra_key: Option<String>,
    cache_salt: Option<String>,
    lora: Option<String>,
    session_id: Option<String>,
}

impl OwnerNote {
    pub(crate) fn of(owner: &Owner) -> Self {
        let text = |part: &Option<Arc<str>>| part.as_deref().map(str::to_owned);
        OwnerNote {
            extra_key: text(&owner.namespace.extra_key),
            cache_salt: text(&owner.namespace.cache_salt),
            lora: text(&owner.namespace.lora),
            session_id: text(&owner.session_id),
        }
    }

    /// No text in it is longer than a request may have it.
    pub(crate) fn is_short(&self) -> bool {
        let texts = [&self.extra_key, &self.cache_salt, &self.lora, &self.session_id];
        texts.into_iter().flatten().all(|text| text.len() <= MAX_KEY_BYTES)
    }

    pub(crate) fn owner(&self) -> Owner {
        let part = |text: &Option<String>| text.as_deref().map(Arc::from);
        Owner {
            namespace: Namespace {
                extra_key: part(&self.extra_key),
                cache_salt: part(&self.cache_salt),
                lora: part(&self.lora),
            },
            session_id: part(&self.session_id),
        }
    }
}

/// The last word of the source: what there must be now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Last {
    pub(crate) seal: Seal,
    pub(crate) fence: String,
    /// The source has committed with this: the target takes over when it agrees.
    pub(crate) direct: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Note {
    // From the source.
    Head(Box<Head>),
    /// Prompt, then output, in order.
    Tokens(Vec<u32>),
    Last(Box<Last>),
    /// The source goes on itself, or the request is over.
    Aborted,
    // From the target.
    /// Everything is here: counted and summed again.
    Confirmed(Box<Seal>),
    /// The target gave up: it will never take over.
    Refused(String),
}

impl Note {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let json = |kind: u8, value: serde_json::Result<Vec<u8>>| {
            let mut note = vec![kind];
            // Plain structs of numbers and texts: always representable.
            note.extend(value.unwrap_or_default());
            note
        };
        match self {
            Note::Head(head) => json(b'H', serde_json::to_vec(head)),
            Note::Tokens(ids) => std::iter::once(b'T').chain(ids.iter().flat_map(|id| id.to_le_bytes())).collect(),
            Note::Last(last) => json(b'L', serde_json::to_vec(last)),
            Note::Aborted => vec![b'A'],
            Note::Confirmed(seal) => json(b'C', serde_json::to_vec(seal)),
            Note::Refused(why) => json(b'R', serde_json::to_vec(why)),
        }
    }

    /// Notes with these tokens.
    pub(crate) fn tokens(ids: &[u32]) -> impl Iterator<Item = Note> + '_ {
        ids.chunks(IDS).map(|ids| Note::Tokens(ids.to_vec()))
    }

    /// `None`: not a note of this protocol.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Note> {
        let (kind, rest) = bytes.split_first()?;
        Some(match kind {
            b'H' => Note::Head(serde_json::from_slice(rest).ok()?),
            b'T' => {
                let (ids, odd) = rest.as_chunks::<4>();
                if !odd.is_empty() {
                    return None;
                }
                Note::Tokens(ids.iter().map(|id| u32::from_le_bytes(*id)).collect())
            }
            b'L' => Note::Last(serde_json::from_slice(rest).ok()?),
            b'A' if rest.is_empty() => Note::Aborted,
            b'C' => Note::Confirmed(serde_json::from_slice(rest).ok()?),
            b'R' => Note::Refused(serde_json::from_slice(rest).ok()?),
            _ => return None,
        })
    }
}

pub(crate) fn fence_text(fence: Fence) -> String {
    format!("{:032x}", fence.0)
}

pub(crate) fn fence_of(text: &str) -> Option<Fence> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten().map(Fence)
}

pub(crate) fn digest_text(digest: &plimsoll_cache::Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn digest_of(text: &str) -> Option<plimsoll_cache::Digest> {
    let mut digest = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}
