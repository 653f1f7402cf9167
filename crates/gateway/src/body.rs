//! The body of every answer to a client: known bytes, or a stream that the client's own pace pulls.
//!
//! A stream is polled by the connection only while its write buffer has room. There is no channel between engine and
//! client: a client that stops reading stops the reading from the engine, whose socket then fills up.

use bytes::Bytes;
use futures_core::Stream;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use thiserror::Error;

type ByteStream = Pin<Box<dyn Stream<Item = Bytes> + Send>>;
type FallibleStream = Pin<Box<dyn Stream<Item = Result<Bytes, Cut>> + Send>>;

/// The answer broke off after its head was sent, and its form has no place for an error: the connection is reset, so that
/// half an answer cannot pass for a whole one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the engine's answer broke off")]
pub struct Cut;

/// Body of an answer.
pub enum GatewayBody {
    Full(Option<Bytes>),
    /// An event stream: whatever goes wrong upstream has become an error event.
    Stream(ByteStream),
    /// Anything else that is passed on as it comes.
    Fallible(FallibleStream),
}

impl GatewayBody {
    #[must_use]
    pub fn full(bytes: Bytes) -> Self {
        GatewayBody::Full(Some(bytes).filter(|b| !b.is_empty()))
    }

    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        GatewayBody::Stream(Box::pin(stream))
    }

    pub fn fallible(stream: impl Stream<Item = Result<Bytes, Cut>> + Send + 'static) -> Self {
        GatewayBody::Fallible(Box::pin(stream))
    }
}

impl Body for GatewayBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut *self {
            GatewayBody::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            GatewayBody::Stream(stream) => stream.as_mut().poll_next(cx).map(|item| item.map(|b| Ok(Frame::data(b)))),
            GatewayBody::Fallible(stream) => {
                stream.as_mut().poll_next(cx).map(|item| item.map(|result| result.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, GatewayBody::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            GatewayBody::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            GatewayBody::Stream(_) | GatewayBody::Fallible(_) => SizeHint::default(),
        }
    }
}
