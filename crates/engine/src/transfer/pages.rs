//! Buffers of pages in wire form, and the pool that bounds how many there are.
//!
//! One engine has one pool: whoever wants to send or receive takes a buffer or waits. A buffer goes back when it is
//! dropped, wherever that happens, so a transfer that dies cannot leak one.

use super::frame::{self, AROUND, AROUND_PAGE, MAX_NOTE_BYTES};
use parking_lot::Mutex;
use plimsoll_cache::Digest;
use std::fmt;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The smallest buffer: what makes a write large.
const BUFFER_BYTES: usize = 1 << 20;

/// A bounded set of buffers for pages of one size. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    page_bytes: usize,
    buffer_bytes: usize,
    buffers: usize,
    places: Arc<Semaphore>,
    idle: Mutex<Vec<Vec<u8>>>,
}

impl Pool {
    /// At most `buffers` buffers of about a megabyte (or one page, if that is more), made when first needed.
    #[must_use]
    pub fn new(page_bytes: usize, buffers: usize) -> Self {
        let buffers = buffers.max(1);
        Pool(Arc::new(Inner {
            page_bytes,
            buffer_bytes: BUFFER_BYTES.max(page_bytes + AROUND_PAGE).max(MAX_NOTE_BYTES + AROUND),
            buffers,
            places: Arc::new(Semaphore::new(buffers)),
            idle: Mutex::default(),
        }))
    }

    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.0.page_bytes
    }

    /// Pages that fit into one buffer.
    #[must_use]
    pub fn pages_per_buffer(&self) -> usize {
        self.0.buffer_bytes / (self.0.page_bytes + AROUND_PAGE)
    }

    /// Buffers in use: zero when every transfer is over.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.0.buffers - self.0.places.available_permits()
    }

    /// An empty buffer for pages, if one is free now.
    #[must_use]
    pub fn try_take(&self) -> Option<Pages> {
        let place = Arc::clone(&self.0.places).try_acquire_owned().ok()?;
        Some(self.buffer(place).into_pages(0, 0))
    }

    /// Waits for a buffer; the caller sets the deadline.
    pub(crate) async fn take(&self) -> Buffer {
        match Arc::clone(&self.0.places).acquire_owned().await {
            Ok(place) => self.buffer(place),
            // Never closed.
            Err(_) => std::future::pending().await,
        }
    }

    fn buffer(&self, place: OwnedSemaphorePermit) -> Buffer {
        let idle = self.0.idle.lock().pop();
        let bytes = idle.unwrap_or_else(|| vec![0; self.0.buffer_bytes]);
        Buffer { bytes, pool: self.clone(), _place: place }
    }
}

/// One buffer of a pool, always of full length.
pub(crate) struct Buffer {
    pub(crate) bytes: Vec<u8>,
    pool: Pool,
    _place: OwnedSemaphorePermit,
}

impl Buffer {
    /// `count` page frames from `start` on.
    pub(crate) fn into_pages(self, start: usize, count: usize) -> Pages {
        Pages { buffer: self, start, count }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.0.idle.lock().push(std::mem::take(&mut self.bytes));
    }
}

/// Pages in wire form, one after another in one buffer of the pool.
pub struct Pages {
    buffer: Buffer,
    start: usize,
    count: usize,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({})", self.count)
    }
}

/// One page of a [`Pages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// Its place in the sequence, from 0.
    pub index: u32,
    /// Of its chain, see [`super::with_tail`].
    pub digest: Digest,
    /// As [`crate::model::KvStore`] reads and writes them.
    pub bytes: &'a [u8],
}

impl Pages {
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// No further page fits.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.start + (self.count + 1) * self.stride() > self.buffer.bytes.len()
    }

    /// Adds a page whose bytes `fill` writes. False, and nothing done, when the buffer is full.
    pub fn push(&mut self, index: u32, digest: &Digest, fill: impl FnOnce(&mut [u8])) -> bool {
        if self.is_full() {
            return false;
        }
        let (at, stride) = (self.start + self.count * self.stride(), self.stride());
        fill(frame::open_page(&mut self.buffer.bytes[at..at + stride], index, digest));
        self.count += 1;
        true
    }

    pub fn iter(&self) -> impl Iterator<Item = Page<'_>> {
        self.slots().map(|slot| {
            let (index, digest, bytes) = frame::read_page(slot);
            Page { index, digest: digest.try_into().unwrap_or_default(), bytes }
        })
    }

    /// Writes the checksums. Not on the step loop's thread: it reads every byte.
    pub(crate) fn seal(&mut self) -> &[u8] {
        let (start, stride) = (self.start, self.stride());
        let bytes = &mut self.buffer.bytes[start..start + self.count * stride];
        bytes.chunks_exact_mut(stride).for_each(frame::close_page);
        bytes
    }

    fn slots(&self) -> impl Iterator<Item = &[u8]> {
        self.buffer.bytes[self.start..self.start + self.count * self.stride()].chunks_exact(self.stride())
    }

    /// Bytes of one page on the wire.
    pub(crate) fn stride(&self) -> usize {
        self.buffer.pool.page_bytes() + AROUND_PAGE
    }
}
