//! What a verb is answered with.

use super::protocol::Refusal;
use crate::core::moving::NoRoom;
use serde::{Deserialize, Serialize};

/// What both sides must count alike before a request changes hands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seal {
    /// Prompt and output.
    pub(crate) tokens: usize,
    pub(crate) output_tokens: usize,
    /// Tokens whose KV was moved or found at the target.
    pub(crate) computed_tokens: usize,
    /// Pages of these, the last one perhaps not full.
    pub(crate) pages: usize,
    /// Digest of the last full page, in hexadecimal; empty when there is none.
    pub(crate) chain: String,
    /// CRC-32C over the bytes of all pages that were shipped, in order.
    pub(crate) crc32c: u32,
    /// Bytes of text that the reader was given.
    pub(crate) visible_bytes: usize,
}

impl Seal {
    /// The first difference.
    pub(crate) fn differs(&self, other: &Seal) -> Option<&'static str> {
        [
            ("tokens", self.tokens == other.tokens),
            ("output_tokens", self.output_tokens == other.output_tokens),
            ("computed_tokens", self.computed_tokens == other.computed_tokens),
            ("pages", self.pages == other.pages),
            ("chain", self.chain == other.chain),
            ("crc32c", self.crc32c == other.crc32c),
            ("visible_bytes", self.visible_bytes == other.visible_bytes),
        ]
        .into_iter()
        .find(|(_, same)| !same)
        .map(|(name, _)| name)
    }
}

/// Where the source finds the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Says to the target that it is meant.
    pub(crate) key: String,
}

/// Where a migration stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) id: String,
    /// `source` or `target`.
    pub(crate) role: &'static str,
    pub(crate) state: &'static str,
    /// Why it did not happen, in the states `resumed` and `aborted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<&'static str>,
    pub(crate) rid: String,
    pub(crate) dp_rank: usize,
    pub(crate) page_tokens: usize,
    pub(crate) prompt_tokens: usize,
    pub(crate) output_tokens: usize,
    /// KV tokens that it may have in the end; known to the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) most_tokens: Option<usize>,
    /// At the source: those that could be shipped now. At the target: those it holds.
    pub(crate) pages: usize,
    /// Pages that the target had in its cache.
    pub(crate) have_pages: usize,
    /// Pages shipped, or received.
    pub(crate) moved_pages: usize,
    pub(crate) moved_bytes: u64,
    /// Digests of the source's committed pages; only in the answer to `offer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) chain: Option<Vec<String>>,
    /// For the source's `start`; only while the target waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<Endpoint>,
    /// Known from the freeze on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seal: Option<Seal>,
    /// From the commit on; for `take_over`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<String>,
    /// Until the state ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_in_ms: Option<u64>,
}

/// Why a verb was not obeyed. Nothing has changed, unless it says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VerbError {
    #[error("no migration has this id here: it never began, or ended too long ago")]
    Unknown,
    #[error("{verb} does not fit a {role} that is {state}")]
    WrongState { verb: &'static str, role: &'static str, state: &'static str },
    #[error("the migration is over: {state}{}", .why.map_or(String::new(), |why| format!(" ({why})")))]
    Over { state: &'static str, why: Option<&'static str> },
    #[error("the fence is missing or not the one that the source gave out")]
    BadFence,
    #[error("the target has taken over: abort the request by its rid instead")]
    TakenOver,
    #[error(
        "everything is here and the source, which may have committed, cannot be told: take over here, or resume there \
         and let this expire"
    )]
    CutOff,
    #[error("the id is in use for {0}: take a fresh one")]
    Conflict(&'static str),
    #[error("no request with this rid is running or waiting here")]
    NoSuchRequest,
    #[error("another migration of this request is under way: {0}")]
    Moving(String),
    #[error("a request with this rid is in flight here")]
    RidInFlight,
    #[error("{0}")]
    NotMovable(&'static str),
    #[error("no room: {} pages wanted, {} to be had{}", .0.pages, .0.available_pages, if .0.has_place { "" } else { ", no free place in the batch" })]
    NoRoom(NoRoom),
    #[error("{field} is not what the source counted")]
    Mismatch { field: &'static str },
    #[error("{what}: {theirs} there, {ours} here")]
    Incompatible { what: &'static str, theirs: usize, ours: usize },
    #[error("too many migrations are under way or remembered here")]
    TooMany,
    #[error("the step loop did not answer in time")]
    NoAnswer,
}

impl VerbError {
    pub(crate) fn of(
        refusal: Refusal,
        verb: &'static str,
        role: &'static str,
        state: &'static str,
        why: Option<&'static str>,
    ) -> Self {
        match refusal {
            Refusal::WrongState => VerbError::WrongState { verb, role, state },
            Refusal::Over => VerbError::Over { state, why },
            Refusal::BadFence => VerbError::BadFence,
            Refusal::TakenOver => VerbError::TakenOver,
            Refusal::CutOff => VerbError::CutOff,
        }
    }
}
