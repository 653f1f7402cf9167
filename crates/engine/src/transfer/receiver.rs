//! The receiving half of a link.

use super::error::TransferError;
use super::frame::{self, AROUND, Frame, Hello, MAX_REASON_BYTES, Parsed};
use super::pages::{Buffer, Pages, Pool};
use bytes::Bytes;
use plimsoll_cache::Digest;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Instant, timeout, timeout_at};

/// What a peer sent. Checksums are verified; chains are the caller's to check, see [`super::Expected`].
#[derive(Debug)]
pub enum Incoming {
    Note(Bytes),
    /// At least one page: as many as arrived together.
    Pages(Pages),
    End {
        pages: u32,
    },
    Beat,
}

/// Frames that the two ends of a handshake exchange come here too.
#[derive(Debug)]
pub(crate) enum Arrived {
    Hello(Hello),
    Proof(Digest),
    Other(Incoming),
}

/// Longest frame of a handshake: the reason why there will be none.
const MAX_GREETING_BYTES: usize = AROUND + MAX_REASON_BYTES;

/// Receives frames. Holds a buffer of the pool only while a frame is on its way, and none before the handshake is over.
pub struct Receiver {
    half: OwnedReadHalf,
    deadline: Duration,
    pool: Pool,
    buffer: Option<Buffer>,
    /// Unread bytes of `buffer`.
    start: usize,
    end: usize,
    /// What was read behind pages that went away with their buffer.
    carry: Vec<u8>,
    /// Since when the next frame is waited for, over calls that were dropped.
    since: Option<Instant>,
    /// Why nothing more can be read.
    ended: Option<TransferError>,
}

impl Receiver {
    pub(crate) fn new(half: OwnedReadHalf, deadline: Duration, pool: Pool) -> Self {
        Receiver { half, deadline, pool, buffer: None, start: 0, end: 0, carry: Vec::new(), since: None, ended: None }
    }

    /// Waits for the next frame, or for some pages. Can be dropped and called again: nothing is lost, and the deadline
    /// stays that of the first call.
    ///
    /// # Errors
    /// When the frame is bad, the peer gave up or is gone, or nothing whole arrived until the deadline. Nothing is read
    /// after any of them: the next call fails in the same way.
    pub async fn next(&mut self) -> Result<Incoming, TransferError> {
        match self.arrived().await? {
            Arrived::Other(incoming) => Ok(incoming),
            Arrived::Hello(_) => Err(TransferError::Unexpected("hello")),
            Arrived::Proof(_) => Err(TransferError::Unexpected("proof")),
        }
    }

    /// Waits for the next frame of a handshake. It is read into memory of its own, and nothing behind it is read: whoever
    /// has not said who it is keeps no buffer of the pool from others.
    ///
    /// # Errors
    /// As [`Self::next`]; and for a frame that no handshake has.
    pub(crate) async fn greeting(&mut self) -> Result<Arrived, TransferError> {
        let deadline = self.deadline;
        match timeout(deadline, self.small_frame()).await {
            Ok(result) => result,
            Err(_) => Err(TransferError::Deadline { what: "word from the peer", after: deadline }),
        }
    }

    async fn small_frame(&mut self) -> Result<Arrived, TransferError> {
        let mut bytes = Vec::new();
        loop {
            let wanted = match frame::parse(&bytes, self.pool.page_bytes())? {
                Parsed::Frame(frame, _) => return meaning(frame),
                Parsed::Needs(wanted) if wanted > MAX_GREETING_BYTES => {
                    return Err(TransferError::Unexpected("frame before the greeting"));
                }
                Parsed::Needs(wanted) => wanted,
            };
            let have = bytes.len();
            bytes.resize(wanted, 0);
            let mut unread = &mut bytes[have..];
            while !unread.is_empty() {
                match self.half.read(unread).await.map_err(|error| TransferError::io("cannot read", &error))? {
                    0 if have == 0 && unread.len() == wanted => return Err(TransferError::Closed),
                    0 => return Err(TransferError::Truncated),
                    count => unread = &mut unread[count..],
                }
            }
        }
    }

    pub(crate) async fn arrived(&mut self) -> Result<Arrived, TransferError> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let deadline = self.deadline;
        let since = *self.since.get_or_insert_with(Instant::now);
        let result = match timeout_at(since + deadline, self.advance()).await {
            Ok(result) => result,
            Err(_) => Err(TransferError::Deadline { what: "word from the peer", after: deadline }),
        };
        self.since = None;
        if let Err(error) = &result {
            self.buffer = None;
            self.ended = Some(error.clone());
        }
        result
    }

    async fn advance(&mut self) -> Result<Arrived, TransferError> {
        loop {
            if let Some(arrived) = self.take_ready()? {
                return Ok(arrived);
            }
            self.read().await?;
        }
    }

    /// Brings at least one more byte.
    async fn read(&mut self) -> Result<(), TransferError> {
        if self.buffer.is_none() {
            if self.carry.is_empty() {
                // An idle link holds no buffer.
                self.half.readable().await.map_err(|error| TransferError::io("cannot read", &error))?;
            }
            let mut buffer = self.pool.take().await;
            buffer.bytes[..self.carry.len()].copy_from_slice(&self.carry);
            (self.start, self.end) = (0, self.carry.len());
            self.carry.clear();
            self.buffer = Some(buffer);
            if self.end > 0 {
                // It may hold whole frames.
                return Ok(());
            }
        }
        let Some(buffer) = &mut self.buffer else { return Ok(()) };
        if self.start > 0 && self.end == buffer.bytes.len() {
            buffer.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let read = self.half.read(&mut buffer.bytes[self.end..]).await;
        match read.map_err(|error| TransferError::io("cannot read", &error))? {
            0 if self.start == self.end => Err(TransferError::Closed),
            0 => Err(TransferError::Truncated),
            count => {
                self.end += count;
                Ok(())
            }
        }
    }

    /// A whole frame among the bytes read, or a run of whole pages.
    fn take_ready(&mut self) -> Result<Option<Arrived>, TransferError> {
        let Some(buffer) = &self.buffer else { return Ok(None) };
        let bytes = &buffer.bytes[self.start..self.end];
        let (mut pages, mut used) = (0, 0);
        let other = loop {
            match frame::parse(&bytes[used..], self.pool.page_bytes())? {
                Parsed::Frame(Frame::Page { .. }, length) => {
                    pages += 1;
                    used += length;
                }
                Parsed::Frame(_, _) if pages > 0 => break None,
                Parsed::Frame(frame, length) => {
                    used = length;
                    break Some(meaning(frame)?);
                }
                Parsed::Needs(_) => break None,
            }
        };
        if pages > 0 {
            self.carry.extend_from_slice(&bytes[used..]);
            let start = self.start;
            (self.start, self.end) = (0, 0);
            let taken = self.buffer.take().map(|buffer| buffer.into_pages(start, pages));
            return Ok(taken.map(|pages| Arrived::Other(Incoming::Pages(pages))));
        }
        self.start += used;
        if self.start == self.end {
            self.buffer = None;
        }
        Ok(other)
    }
}

fn meaning(frame: Frame<'_>) -> Result<Arrived, TransferError> {
    Ok(match frame {
        Frame::Hello(hello) => Arrived::Hello(hello),
        Frame::Proof(proof) => Arrived::Proof(proof),
        Frame::Note(note) => Arrived::Other(Incoming::Note(Bytes::copy_from_slice(note))),
        Frame::End { pages } => Arrived::Other(Incoming::End { pages }),
        Frame::Abort(reason) => return Err(TransferError::Aborted(reason.to_owned())),
        Frame::Page { .. } | Frame::Beat => Arrived::Other(Incoming::Beat),
    })
}
