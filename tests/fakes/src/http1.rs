//! Reading HTTP/1.1 requests from a socket, bounded, and noticing that the peer has gone.
//!
//! A buffer belongs to the connection, so every wait can be dropped without losing bytes.

use bytes::{Buf, Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

const MAX_HEAD_BYTES: usize = 256 << 10;
const MAX_BODY_BYTES: usize = 512 << 20;
/// Bytes of a next request that are kept while one is being answered.
const MAX_AHEAD_BYTES: usize = 1 << 20;

/// Request line and headers.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) method: String,
    /// Path without the query.
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn expects_continue(&self) -> bool {
        self.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue"))
    }

    pub(crate) fn wants_close(&self) -> bool {
        self.header("connection").is_some_and(|value| value.to_ascii_lowercase().contains("close"))
    }
}

pub(crate) struct Inbound<R> {
    reader: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Inbound<R> {
    pub(crate) fn new(reader: R) -> Self {
        Inbound { reader, buffer: BytesMut::with_capacity(16 << 10) }
    }

    /// The next request's head; `None` when the peer closed between requests. Can be dropped and called again.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let bytes = self.buffer.split_to(end + 4);
                return parse(&bytes).map(Some).ok_or_else(|| bad("not an HTTP/1.1 request"));
            }
            if self.buffer.len() > MAX_HEAD_BYTES {
                return Err(bad("request head is too long"));
            }
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// The body that `head` announces, by length or chunked.
    pub(crate) async fn body(&mut self, head: &Head) -> io::Result<Bytes> {
        if head.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return self.chunked().await;
        }
        let length: usize = match head.header("content-length") {
            None => 0,
            Some(text) => text.trim().parse().map_err(|_| bad("content-length is not a number"))?,
        };
        if length > MAX_BODY_BYTES {
            return Err(bad("request body is too large"));
        }
        self.fill(length).await?;
        Ok(self.buffer.split_to(length).freeze())
    }

    async fn chunked(&mut self) -> io::Result<Bytes> {
        let mut body = BytesMut::new();
        loop {
            let line = loop {
                if let Some(end) = find(&self.buffer, b"\r\n") {
                    break self.buffer.split_to(end + 2);
                }
                let have = self.buffer.len();
                self.fill(have + 1).await?;
            };
            let text = std::str::from_utf8(&line).map_err(|_| bad("chunk size is not text"))?;
            let size = text.trim().split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(|_| bad("chunk size is not a number"))?;
            if body.len() + size > MAX_BODY_BYTES {
                return Err(bad("request body is too large"));
            }
            self.fill(size + 2).await?;
            body.extend_from_slice(&self.buffer[..size]);
            self.buffer.advance(size + 2);
            if size == 0 {
                return Ok(body.freeze());
            }
        }
    }

    async fn fill(&mut self, bytes: usize) -> io::Result<()> {
        while self.buffer.len() < bytes {
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Resolves when the peer has closed or reset the connection. Bytes that come meanwhile are kept.
    pub(crate) async fn gone(&mut self) {
        loop {
            if self.buffer.len() > MAX_AHEAD_BYTES {
                std::future::pending::<()>().await;
            }
            match self.reader.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn bad(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn parse(bytes: &[u8]) -> Option<Head> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split("\r\n");
    let mut start = lines.next()?.split(' ');
    let (method, target, version) = (start.next()?, start.next()?, start.next()?);
    if !version.starts_with("HTTP/1.") || start.next().is_some() {
        return None;
    }
    let path = target.split('?').next().unwrap_or(target);
    let headers = lines
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_once(':').map(|(key, value)| (key.to_owned(), value.trim().to_owned())))
        .collect::<Option<Vec<_>>>()?;
    Some(Head { method: method.into(), path: path.into(), headers })
}
