//! One HTTP/1.1 connection, polled by its user.

use super::out_body::OutBody;
use super::stream::Stream;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

type Driver = http1::Connection<TokioIo<Stream>, OutBody>;

/// Sender and protocol driver of one socket. Dropping it closes the socket.
pub(super) struct Conn {
    pub(super) sender: http1::SendRequest<OutBody>,
    driver: Option<Pin<Box<Driver>>>,
    pub(super) reused: bool,
}

impl Conn {
    /// `header_bytes` bounds the response head (hyper accepts no less than 8 KiB) and the read buffer with it. The number
    /// of headers keeps hyper's bound of 100: any other costs an allocation of that many per answer.
    pub(super) async fn handshake(stream: Stream, header_bytes: usize) -> hyper::Result<Conn> {
        let (sender, driver) =
            http1::Builder::new().max_buf_size(header_bytes.max(8 << 10)).handshake(TokioIo::new(stream)).await?;
        Ok(Conn { sender, driver: Some(Box::pin(driver)), reused: false })
    }

    /// Moves bytes between socket and protocol state. True when the connection is over.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        match self.driver.as_mut() {
            None => true,
            Some(driver) => match driver.as_mut().poll(cx) {
                Poll::Ready(_) => {
                    self.driver = None;
                    true
                }
                Poll::Pending => false,
            },
        }
    }

    /// True when a request can be sent now: still open, nothing unread, previous answer complete.
    pub(super) async fn is_usable(&mut self) -> bool {
        std::future::poll_fn(|cx| {
            if self.drive(cx) {
                return Poll::Ready(false);
            }
            match self.sender.poll_ready(cx) {
                Poll::Ready(ready) => Poll::Ready(ready.is_ok()),
                Poll::Pending => Poll::Ready(false),
            }
        })
        .await
    }
}
