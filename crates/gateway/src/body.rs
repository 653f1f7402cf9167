//! The body of every answer to a client: known bytes, or a stream that the client's own pace pulls.
//!
//! A stream is polled by the connection only while its write buffer has room. There is no channel between engine and
//! client: a client that stops reading stops the reading from the engine, whose socket then fills up.

use bytes::Bytes;
use futures_core::Stream;
use http_body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

type ByteStream = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// Body of an answer. Errors cannot happen here: whatever goes wrong upstream has become an error event.
pub enum GatewayBody {
    Full(Option<Bytes>),
    Stream(ByteStream),
}

impl GatewayBody {
    #[must_use]
    pub fn full(bytes: Bytes) -> Self {
        GatewayBody::Full(Some(bytes).filter(|b| !b.is_empty()))
    }

    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        GatewayBody::Stream(Box::pin(stream))
    }
}

impl Body for GatewayBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            GatewayBody::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            GatewayBody::Stream(stream) => stream.as_mut().poll_next(cx).map(|item| item.map(|b| Ok(Frame::data(b)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, GatewayBody::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            GatewayBody::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            GatewayBody::Stream(_) => SizeHint::default(),
        }
    }
}
