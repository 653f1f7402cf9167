//! Why a transfer ended without its pages.

use super::frame::VERSION;
use std::io;
use std::time::Duration;

/// After any of these the connection is closed: nothing that follows a bad frame can be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    // The peer is not one to talk to.
    #[error("the peer does not speak the KV transfer protocol")]
    Stranger,
    #[error(
        "the peer speaks version {theirs} of the KV transfer protocol, this engine {VERSION}: use the same release"
    )]
    Version { theirs: u16 },
    #[error("the peer serves another model: give both engines the same weights")]
    Model,
    #[error("the peer's page size is {theirs} tokens, this engine's {ours}: use the same page size")]
    PageTokens { theirs: u32, ours: u32 },
    #[error("the peer's pages have {theirs} bytes, this engine's {ours}: use the same model and page size")]
    PageBytes { theirs: u32, ours: u32 },
    #[error("the peer does not know the transfer secret: set the same one on both engines")]
    Secret,
    // The peer's bytes are wrong.
    #[error("a frame of {bytes} bytes is larger than the {limit} allowed")]
    Oversized { bytes: usize, limit: usize },
    #[error("a broken frame: {0}")]
    Malformed(&'static str),
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    #[error("a frame whose checksum does not fit its bytes")]
    Checksum,
    #[error("page {index} carries the digest of another chain")]
    Chain { index: u32 },
    #[error("page {index} where page {expected} was due")]
    Order { index: u32, expected: u32 },
    #[error("the transfer ended after {got} pages of {expected}")]
    Count { got: u32, expected: u32 },
    #[error("unexpected {0}")]
    Unexpected(&'static str),
    // The peer is gone or slow.
    #[error("the connection ended inside a frame")]
    Truncated,
    #[error("the peer closed the connection")]
    Closed,
    #[error("no {what} within {} ms", .after.as_millis())]
    Deadline { what: &'static str, after: Duration },
    #[error("the peer gave up: {0}")]
    Aborted(String),
    #[error("{what}: {error}")]
    Io { what: &'static str, error: String },
    /// A write was given up half way, so no other can follow it.
    #[error("the connection was left inside a frame")]
    Broken,
}

impl TransferError {
    pub(crate) fn io(what: &'static str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => {
                TransferError::Closed
            }
            _ => TransferError::Io { what, error: error.to_string() },
        }
    }

    /// The two engines can never exchange pages as they are configured.
    #[must_use]
    pub fn is_mismatch(&self) -> bool {
        matches!(
            self,
            TransferError::Stranger
                | TransferError::Version { .. }
                | TransferError::Model
                | TransferError::PageTokens { .. }
                | TransferError::PageBytes { .. }
                | TransferError::Secret
        )
    }
}
