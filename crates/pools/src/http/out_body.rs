//! A request body in pieces, so that a key can be spliced into 300 KB of JSON without copying it.

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A few byte ranges sent one after the other; the length is known. Cloning copies no bytes.
#[derive(Clone, Debug, Default)]
pub struct OutBody {
    pieces: [Bytes; PIECES],
    next: usize,
}

/// The client's bytes around three insertions.
const PIECES: usize = 7;

impl OutBody {
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn whole(bytes: Bytes) -> Self {
        let mut body = OutBody::empty();
        body.pieces[0] = bytes;
        body
    }

    /// One after the other.
    #[must_use]
    pub fn spliced(pieces: [Bytes; PIECES]) -> Self {
        OutBody { pieces, next: 0 }
    }

    /// Bytes still to be sent.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.pieces[self.next.min(PIECES)..].iter().map(|p| p.len() as u64).sum()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Body for OutBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while self.next < PIECES {
            let at = self.next;
            self.next += 1;
            let piece = std::mem::take(&mut self.pieces[at]);
            if piece.has_remaining() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len())
    }
}
