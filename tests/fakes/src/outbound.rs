//! Writing answers, good and broken, and counting every byte.

use crate::state::State;
use bytes::BytesMut;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// With no time between tokens, events are gathered up to this size, so that the fake is not the bottleneck.
const GATHER_BYTES: usize = 16 << 10;

pub(crate) struct Outbound<W> {
    writer: W,
    pending: BytesMut,
    chunked: bool,
    state: Arc<State>,
}

impl<W: AsyncWrite + Unpin> Outbound<W> {
    pub(crate) fn new(writer: W, state: Arc<State>) -> Self {
        Outbound { writer, pending: BytesMut::with_capacity(GATHER_BYTES * 2), chunked: false, state }
    }

    /// Bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// A whole answer with its right length.
    pub(crate) async fn reply(&mut self, reply: &Reply) -> io::Result<()> {
        self.raw(head(reply.status, reply.content_type, &reply.headers, Some(reply.body.len())).as_bytes());
        self.raw(&reply.body);
        self.flush().await
    }

    /// Head of a stream. `length`: announce this many bytes instead of chunks.
    pub(crate) async fn stream_head(&mut self, headers: &[(String, String)], length: Option<usize>) -> io::Result<()> {
        self.chunked = length.is_none();
        self.raw(head(200, "text/event-stream; charset=utf-8", headers, length).as_bytes());
        self.flush().await
    }

    /// One piece of a stream; `now`: do not gather.
    pub(crate) async fn piece(&mut self, bytes: &[u8], now: bool) -> io::Result<()> {
        if self.chunked {
            self.raw(format!("{:x}\r\n", bytes.len()).as_bytes());
            self.raw(bytes);
            self.raw(b"\r\n");
        } else {
            self.raw(bytes);
        }
        self.state.count(|counters| counters.events_sent += 1);
        if now || self.pending.len() >= GATHER_BYTES { self.flush().await } else { Ok(()) }
    }

    /// The last chunk.
    pub(crate) async fn stream_end(&mut self) -> io::Result<()> {
        if self.chunked {
            self.raw(b"0\r\n\r\n");
        }
        self.flush().await
    }

    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            let written = self.writer.write_buf(&mut self.pending).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.state.count(|counters| counters.bytes_sent += written as u64);
        }
        self.writer.flush().await
    }
}

/// An answer in one piece.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(status: u16, body: &serde_json::Value) -> Reply {
        Reply::text(status, "application/json", body.to_string())
    }

    pub(crate) fn text(status: u16, content_type: &'static str, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status, content_type, headers: Vec::new(), body: body.into() }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Reply {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

pub(crate) fn head(status: u16, content_type: &str, headers: &[(String, String)], length: Option<usize>) -> String {
    use std::fmt::Write as _;
    let mut head =
        format!("HTTP/1.1 {status} {}\r\nserver: uvicorn\r\ncontent-type: {content_type}\r\n", words(status));
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    match length {
        Some(bytes) => {
            let _ = write!(head, "content-length: {bytes}\r\n\r\n");
        }
        None => head.push_str("transfer-encoding: chunked\r\n\r\n"),
    }
    head
}

fn words(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
