//! How many requests a client connection has open, until the last byte of each answer.
//!
//! hyper bounds an HTTP/1.1 connection's idle time by its head time-out and an h2 connection's by nothing. This count tells
//! an idle connection from a busy one, whatever the protocol.

use crate::body::{Cut, GatewayBody};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;

/// The count of one connection.
pub(crate) struct OpenRequests {
    count: Arc<watch::Sender<usize>>,
}

/// One open request.
pub(crate) struct Place {
    count: Arc<watch::Sender<usize>>,
}

/// A body that counts as open until it is dropped.
pub(crate) struct CountedBody {
    body: GatewayBody,
    _place: Place,
}

impl Default for OpenRequests {
    fn default() -> Self {
        OpenRequests { count: Arc::new(watch::channel(0).0) }
    }
}

impl OpenRequests {
    pub(crate) fn begin(&self) -> Place {
        self.count.send_modify(|count| *count += 1);
        Place { count: self.count.clone() }
    }

    /// Returns once no request has been open for `time` on end.
    pub(crate) async fn idle_for(&self, time: Duration) {
        let mut count = self.count.subscribe();
        loop {
            if count.wait_for(|count| *count == 0).await.is_err() {
                return;
            }
            if tokio::time::timeout(time, count.wait_for(|count| *count > 0)).await.is_err() {
                return;
            }
        }
    }
}

impl Place {
    pub(crate) fn keep_with(self, body: GatewayBody) -> CountedBody {
        CountedBody { body, _place: self }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.count.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
