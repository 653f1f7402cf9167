//! What a client still sends when its answer is there already.
//!
//! Many clients write the whole body before they read. If the answer comes earlier (too large, no key, no such path) and the
//! connection is closed with bytes unread, the kernel resets it: the client sees a broken pipe, and the answer is lost. So
//! what nobody wanted of a body is read and thrown away for a while, bounded in bytes and time. Who sends more is cut off,
//! as is who was too slow (408).

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::{Stream, StreamExt};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::oneshot;

/// As much again as the largest body that is taken by default.
const MOST_BYTES: usize = 64 << 20;
/// For all of it.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn read_to_the_end(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    // Who asks first has not sent anything.
    if body.is_end_stream() || parts.headers.contains_key(header::EXPECT) {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let (back, mut rest) = oneshot::channel();
    let lent = Lent { body: Some(body.into_data_stream()), back: Some(back) };
    let response = next.run(Request::from_parts(parts, Body::from_stream(lent))).await;
    if let Ok(rest) = rest.try_recv()
        && response.status() != StatusCode::REQUEST_TIMEOUT
    {
        tokio::spawn(tokio::time::timeout(PATIENCE, throw_away(rest)));
    }
    response
}

async fn throw_away(mut rest: BodyDataStream) {
    let mut bytes = 0;
    while let Some(Ok(piece)) = rest.next().await {
        bytes += piece.len();
        if bytes > MOST_BYTES {
            return;
        }
    }
}

/// A body that comes back when its reader leaves before the end.
struct Lent {
    /// `None`: it has ended.
    body: Option<BodyDataStream>,
    back: Option<oneshot::Sender<BodyDataStream>>,
}

impl Stream for Lent {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let piece = ready!(body.poll_next_unpin(cx));
        if !matches!(piece, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(piece)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take(), self.back.take()) {
            // The answer may have gone out without it.
            let _ = back.send(body);
        }
    }
}
