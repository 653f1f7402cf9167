//! One request and its answer on one connection.

use super::conn::Conn;
use super::endpoint::Endpoint;
use super::out_body::OutBody;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why no answer head came back. The variants differ in what the engine may have done with the request.
#[derive(Debug, Error)]
pub enum SendError {
    /// No connection: the engine has not seen the request.
    #[error("cannot connect to the engine: {0}")]
    Connect(String),
    /// This process is out of file descriptors or ports: nothing is said about the engine.
    #[error("this gateway cannot open another connection: {0}; raise the open-file limit")]
    Exhausted(String),
    /// A pooled connection had been closed by the engine. `sent` tells whether the request was handed to the socket
    /// before that was noticed; if not, the engine cannot have seen it.
    #[error("the engine closed a pooled connection")]
    Stale { sent: bool },
    /// The connection broke, or what came back is not HTTP. The engine may have begun.
    #[error("no answer from the engine: {0}")]
    Broken(String),
    /// The answer's head is malformed or too large.
    #[error("the engine's answer is not valid HTTP: {0}")]
    BadAnswer(String),
}

/// Why an answer's body stopped before its end.
#[derive(Debug, Error)]
#[error("the engine's answer broke off: {0}")]
pub struct BodyError(pub String);

/// An idle connection that closes as a request is sent says so at once. A close that comes later is the engine's, or of a
/// proxy that lost patience, after work was done.
const STALE_WITHIN: Duration = Duration::from_secs(1);

/// An answer whose head has arrived. Dropping it before the end closes the connection, which is how a request is
/// cancelled; reaching the end puts the connection back into the pool.
pub struct Exchange {
    conn: Option<Conn>,
    body: Incoming,
    endpoint: Endpoint,
    pub status: StatusCode,
    pub headers: HeaderMap,
}

impl Exchange {
    pub(super) async fn start(
        mut conn: Conn,
        endpoint: Endpoint,
        request: Request<OutBody>,
    ) -> Result<Exchange, SendError> {
        let reused = conn.reused;
        let began = Instant::now();
        let answer = {
            let mut answer = pin!(conn.sender.try_send_request(request));
            // `conn.sender` is only borrowed to make the future, which owns its channel end.
            let driver = &mut conn;
            std::future::poll_fn(move |cx| {
                let over = driver.drive(cx);
                match answer.as_mut().poll(cx) {
                    Poll::Ready(done) => Poll::Ready(done),
                    Poll::Pending if over => match answer.as_mut().poll(cx) {
                        Poll::Ready(done) => Poll::Ready(done),
                        Poll::Pending => Poll::Pending,
                    },
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        };
        match answer {
            Ok(response) => {
                let (head, body) = response.into_parts();
                Ok(Exchange { conn: Some(conn), body, endpoint, status: head.status, headers: head.headers })
            }
            Err(mut failed) => {
                let unsent = failed.take_message().is_some();
                let error = failed.into_error();
                if unsent {
                    return Err(SendError::Stale { sent: false });
                }
                if error.is_parse() || error.is_parse_too_large() {
                    return Err(SendError::BadAnswer(error.to_string()));
                }
                if reused && began.elapsed() < STALE_WITHIN && closed_without_answer(&error) {
                    return Err(SendError::Stale { sent: true });
                }
                Err(SendError::Broken(describe(&error)))
            }
        }
    }

    /// The next piece of the body; `None` at its proper end. Safe to drop and call again.
    pub async fn frame(&mut self) -> Option<Result<Bytes, BodyError>> {
        std::future::poll_fn(|cx| self.poll_data(cx)).await
    }

    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Poll::Ready(item) = self.poll_body(cx) {
            return Poll::Ready(item);
        }
        if let Some(conn) = self.conn.as_mut()
            && conn.drive(cx)
        {
            self.conn = None;
        }
        // Driving the connection may have filled the body's channel.
        self.poll_body(cx)
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            return match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(None) => {
                    self.park(cx);
                    Poll::Ready(None)
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => continue,
                    Ok(data) => Poll::Ready(Some(Ok(data))),
                    Err(_trailers) => continue,
                },
                Poll::Ready(Some(Err(e))) => {
                    self.conn = None;
                    Poll::Ready(Some(Err(BodyError(describe(&e)))))
                }
            };
        }
    }

    /// Gives the connection back if it can carry another request.
    fn park(&mut self, cx: &mut Context<'_>) {
        if let Some(mut conn) = self.conn.take()
            && !conn.drive(cx)
            && matches!(conn.sender.poll_ready(cx), Poll::Ready(Ok(())))
        {
            self.endpoint.park(conn);
        }
    }

    /// Reads the whole body, at most `max_bytes`; `Err(None)` when it is larger.
    ///
    /// # Errors
    /// The body's own error, or `None` for one that is too large.
    pub async fn collect(&mut self, max_bytes: usize) -> Result<Bytes, Option<BodyError>> {
        let mut first: Option<Bytes> = None;
        let mut all: Vec<u8> = Vec::new();
        while let Some(piece) = self.frame().await {
            let piece = piece.map_err(Some)?;
            let held = first.as_ref().map_or(all.len(), Bytes::len);
            if held + piece.len() > max_bytes {
                return Err(None);
            }
            match first.take() {
                None if all.is_empty() => first = Some(piece),
                None => all.extend_from_slice(&piece),
                Some(before) => {
                    all.reserve(before.len() + piece.len());
                    all.extend_from_slice(&before);
                    all.extend_from_slice(&piece);
                }
            }
        }
        Ok(first.unwrap_or_else(|| Bytes::from(all)))
    }
}

fn closed_without_answer(error: &hyper::Error) -> bool {
    use std::error::Error as _;
    if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        return true;
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
            return matches!(io.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected);
        }
        source = cause.source();
    }
    false
}

/// hyper's own text leaves the cause to `source()`.
fn describe(error: &hyper::Error) -> String {
    use std::error::Error as _;
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
