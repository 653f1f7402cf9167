//! The sending half of a link.

use super::error::TransferError;
use super::frame::{self, Frame, MAX_NOTE_BYTES};
use super::pages::Pages;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::timeout;

/// Sends frames, each within the link's deadline. A send that is dropped half way breaks the link.
#[derive(Debug)]
pub struct Sender {
    half: OwnedWriteHalf,
    deadline: Duration,
    /// Inside a frame.
    broken: bool,
    scratch: Vec<u8>,
}

impl Sender {
    pub(crate) fn new(half: OwnedWriteHalf, deadline: Duration) -> Self {
        Sender { half, deadline, broken: false, scratch: Vec::new() }
    }

    /// All pages of a buffer in one write.
    ///
    /// # Errors
    /// When the peer is gone or takes nothing until the deadline.
    pub async fn pages(&mut self, pages: &mut Pages) -> Result<(), TransferError> {
        write(&mut self.half, &mut self.broken, self.deadline, pages.seal()).await
    }

    /// A fault: `whole` pages, half of the next, and the end of the connection.
    pub(crate) async fn tear(&mut self, pages: &mut Pages, whole: usize) {
        let stride = pages.stride();
        let bytes = pages.seal();
        let torn = &bytes[..bytes.len().min(whole * stride + stride / 2)];
        // It is to fail anyway.
        let _ = write(&mut self.half, &mut self.broken, self.deadline, torn).await;
        let _ = self.half.shutdown().await;
        self.broken = true;
    }

    /// # Errors
    /// As [`Self::pages`], and when it is longer than [`MAX_NOTE_BYTES`].
    pub async fn note(&mut self, note: &[u8]) -> Result<(), TransferError> {
        if note.len() > MAX_NOTE_BYTES {
            return Err(TransferError::Oversized { bytes: note.len(), limit: MAX_NOTE_BYTES });
        }
        self.frame(&Frame::Note(note)).await
    }

    /// After the last page: how many there were.
    ///
    /// # Errors
    /// As [`Self::pages`].
    pub async fn end(&mut self, pages: u32) -> Result<(), TransferError> {
        self.frame(&Frame::End { pages }).await
    }

    /// Nothing more will come, and why.
    ///
    /// # Errors
    /// As [`Self::pages`].
    pub async fn abort(&mut self, reason: &str) -> Result<(), TransferError> {
        self.frame(&Frame::Abort(reason)).await
    }

    /// Still here.
    ///
    /// # Errors
    /// As [`Self::pages`].
    pub async fn beat(&mut self) -> Result<(), TransferError> {
        self.frame(&Frame::Beat).await
    }

    pub(crate) async fn frame(&mut self, frame: &Frame<'_>) -> Result<(), TransferError> {
        self.scratch.clear();
        frame::write(&mut self.scratch, frame);
        write(&mut self.half, &mut self.broken, self.deadline, &self.scratch).await
    }
}

async fn write(
    half: &mut OwnedWriteHalf,
    broken: &mut bool,
    deadline: Duration,
    bytes: &[u8],
) -> Result<(), TransferError> {
    if std::mem::replace(broken, true) {
        return Err(TransferError::Broken);
    }
    match timeout(deadline, half.write_all(bytes)).await {
        Ok(Ok(())) => {
            *broken = false;
            Ok(())
        }
        Ok(Err(error)) => Err(TransferError::io("cannot write", &error)),
        Err(_) => Err(TransferError::Deadline { what: "room to write", after: deadline }),
    }
}
