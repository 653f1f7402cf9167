//! An HTTP/1.1 client on a bare socket: it can stop in the middle of a head, of a body, of reading, and it sees exactly
//! what was sent, down to a missing last chunk.

use crate::sse::{self, Event};
use crate::wait::patient;
use bytes::{Buf as _, BytesMut};
use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// Status line and headers of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// First header of this name, whatever its case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub head: Head,
    pub body: Vec<u8>,
    /// The body ended as its framing says.
    pub complete: bool,
}

impl Answer {
    #[must_use]
    pub fn status(&self) -> u16 {
        self.head.status
    }

    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; `null` when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// `error.code`, or nothing.
    #[must_use]
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        sse::all(&self.body)
    }
}

enum Framing {
    Chunked,
    Length(usize),
    UntilClose,
}

/// One connection.
pub struct Connection {
    socket: Box<dyn Socket>,
    buffer: BytesMut,
    /// Decoded body bytes that no event has used yet.
    decoded: BytesMut,
    framing: Framing,
    over: bool,
}

impl Connection {
    /// # Panics
    /// When the peer does not accept.
    pub async fn open(addr: SocketAddr) -> Connection {
        let stream = patient("connect", TcpStream::connect(addr)).await;
        let stream = stream.unwrap_or_else(|error| panic!("connect to {addr}: {error}"));
        let _ = stream.set_nodelay(true);
        Connection::over(stream)
    }

    /// A connection whose kernel takes few bytes ahead, for slow readers.
    ///
    /// # Panics
    /// When the peer does not accept.
    pub async fn open_small(addr: SocketAddr, receive_bytes: u32) -> Connection {
        let open = async {
            let socket = TcpSocket::new_v4()?;
            socket.set_recv_buffer_size(receive_bytes)?;
            socket.connect(addr).await
        };
        let stream: io::Result<TcpStream> = patient("connect", open).await;
        Connection::over(stream.unwrap_or_else(|error| panic!("connect to {addr}: {error}")))
    }

    /// On top of any stream, such as TLS.
    pub fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Connection {
        Connection {
            socket: Box::new(stream),
            buffer: BytesMut::new(),
            decoded: BytesMut::new(),
            framing: Framing::UntilClose,
            over: false,
        }
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When the peer has closed.
    pub async fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        patient("send", async {
            self.socket.write_all(bytes).await?;
            self.socket.flush().await
        })
        .await
    }

    /// # Panics
    /// When the peer has closed.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        if let Err(error) = self.try_send(bytes.as_ref()).await {
            panic!("send: {error}");
        }
    }

    /// Sends a POST with a JSON body.
    pub async fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &str) {
        self.send([post_head(path, headers, body.len()).as_bytes(), body.as_bytes()].concat()).await;
    }

    /// The head of the next answer; `None` when the peer closed instead. 1xx answers are skipped.
    pub async fn try_head(&mut self) -> Option<Head> {
        loop {
            let head = patient("answer head", self.any_head()).await?;
            if head.status >= 200 {
                self.framing = if head.header("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
                    Framing::Chunked
                } else if let Some(length) = head.header("content-length") {
                    Framing::Length(length.parse().unwrap_or(0))
                } else {
                    Framing::UntilClose
                };
                self.over = matches!(self.framing, Framing::Length(0));
                self.decoded.clear();
                return Some(head);
            }
        }
    }

    /// # Panics
    /// When the peer closed instead.
    pub async fn head(&mut self) -> Head {
        match self.try_head().await {
            Some(head) => head,
            None => panic!("the connection was closed where an answer was due"),
        }
    }

    async fn any_head(&mut self) -> Option<Head> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let bytes = self.buffer.split_to(end + 4);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let mut lines = text.split("\r\n");
                let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
                let headers = lines
                    .filter_map(|line| line.split_once(':'))
                    .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
                    .collect();
                return Some(Head { status, headers });
            }
            if !self.read_more().await {
                return None;
            }
        }
    }

    async fn read_more(&mut self) -> bool {
        matches!(self.socket.read_buf(&mut self.buffer).await, Ok(size) if size > 0)
    }

    /// Decodes a bit more of the body. False: it is over, or the peer closed.
    async fn decode(&mut self) -> bool {
        loop {
            if self.over {
                return false;
            }
            match self.framing {
                Framing::UntilClose => {
                    if self.buffer.is_empty() && !self.read_more().await {
                        self.over = true;
                        return false;
                    }
                    let bytes = self.buffer.split();
                    self.decoded.extend_from_slice(&bytes);
                    return true;
                }
                Framing::Length(left) => {
                    if self.buffer.is_empty() && !self.read_more().await {
                        return false;
                    }
                    let size = left.min(self.buffer.len());
                    let bytes = self.buffer.split_to(size);
                    self.decoded.extend_from_slice(&bytes);
                    self.framing = Framing::Length(left - size);
                    self.over = left == size;
                    return true;
                }
                Framing::Chunked => {
                    if let Some((size, skip)) = chunk_size(&self.buffer)
                        && self.buffer.len() >= skip + size + 2
                    {
                        self.buffer.advance(skip);
                        let bytes = self.buffer.split_to(size);
                        self.buffer.advance(2);
                        self.decoded.extend_from_slice(&bytes);
                        self.over = size == 0;
                        return !self.over;
                    }
                    if !self.read_more().await {
                        return false;
                    }
                }
            }
        }
    }

    /// The next event of a stream; `None` at its end, proper or not ([`Self::is_over`] tells).
    pub async fn event(&mut self) -> Option<Event> {
        patient("next event", async {
            loop {
                if let Some((event, used)) = sse::first(&self.decoded) {
                    self.decoded.advance(used);
                    return Some(event);
                }
                if !self.decode().await {
                    return None;
                }
            }
        })
        .await
    }

    /// The next event that is data.
    pub async fn data(&mut self) -> Option<Event> {
        loop {
            match self.event().await? {
                Event::Comment(_) => {}
                data => return Some(data),
            }
        }
    }

    /// The body of the answer whose head was read came to its proper end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The rest of the body.
    pub async fn rest(&mut self) -> Vec<u8> {
        patient("rest of the body", async { while self.decode().await {} }).await;
        self.decoded.split().to_vec()
    }

    /// Head and body; `None` when the peer closed without an answer.
    pub async fn try_answer(&mut self) -> Option<Answer> {
        let head = self.try_head().await?;
        let body = self.rest().await;
        Some(Answer { head, body, complete: self.over })
    }

    /// Head and body.
    ///
    /// # Panics
    /// When the peer closed without an answer.
    pub async fn answer(&mut self) -> Answer {
        let head = self.head().await;
        let body = self.rest().await;
        Answer { head, body, complete: self.over }
    }

    /// Waits until the peer closes; bytes that come meanwhile are thrown away.
    pub async fn closed(&mut self) {
        patient("close by the peer", async {
            loop {
                self.buffer.clear();
                if !self.read_more().await {
                    return;
                }
            }
        })
        .await;
    }
}

/// Request head of a POST whose body has `length` bytes.
#[must_use]
pub fn post_head(path: &str, headers: &[(&str, &str)], length: usize) -> String {
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {length}\r\n\r\n"));
    head
}

/// (size, bytes of the size line)
fn chunk_size(buffer: &[u8]) -> Option<(usize, usize)> {
    let end = buffer.windows(2).position(|two| two == b"\r\n")?;
    let text = std::str::from_utf8(&buffer[..end]).ok()?;
    Some((usize::from_str_radix(text.split(';').next()?.trim(), 16).ok()?, end + 2))
}

/// One request on a connection of its own.
pub async fn ask(addr: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut connection = Connection::open(addr).await;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if method != "GET" {
        head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    connection.send([head.as_bytes(), body].concat()).await;
    connection.answer().await
}
