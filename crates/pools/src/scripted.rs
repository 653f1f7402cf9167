//! Tiny servers for tests, on real loopback sockets: what they answer is written byte for byte in the test.

use crate::http::{Endpoint, EndpointOptions};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with one path.
#[derive(Clone)]
pub(crate) enum Reply {
    /// A proper answer with this status and body.
    Is(u16, String),
    /// These bytes, then the connection closes.
    Raw(Vec<u8>),
    /// These bytes, then others without end.
    Endless(Vec<u8>, Vec<u8>),
    /// Nothing, for ever.
    Silence,
}

#[expect(clippy::needless_pass_by_value, reason = "tests hand over literals")]
pub(crate) fn json(body: impl ToString) -> Reply {
    Reply::Is(200, body.to_string())
}

/// One request as it came: `METHOD path` and the body.
pub(crate) type Seen = Vec<(String, String)>;

pub(crate) struct Scripted {
    pub(crate) endpoint: Endpoint,
    replies: Arc<Mutex<BTreeMap<String, Reply>>>,
    seen: Arc<Mutex<Seen>>,
    task: tokio::task::JoinHandle<()>,
}

impl Scripted {
    /// Serves `replies` by path; every other path is a 404 in FastAPI's form.
    pub(crate) async fn start(replies: impl IntoIterator<Item = (&'static str, Reply)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let replies: BTreeMap<String, Reply> = replies.into_iter().map(|(p, r)| (p.to_owned(), r)).collect();
        let replies = Arc::new(Mutex::new(replies));
        let seen = Arc::new(Mutex::new(Seen::new()));
        let (script, log) = (Arc::clone(&replies), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, Arc::clone(&script), Arc::clone(&log)));
            }
        });
        let endpoint = Endpoint::new(&url, EndpointOptions::default()).unwrap();
        Scripted { endpoint, replies, seen, task }
    }

    pub(crate) fn set(&self, path: &str, reply: Reply) {
        self.replies.lock().unwrap().insert(path.to_owned(), reply);
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut socket: TcpStream, script: Arc<Mutex<BTreeMap<String, Reply>>>, log: Arc<Mutex<Seen>>) {
    let mut buffer = Vec::new();
    while let Some((line, body)) = read_request(&mut socket, &mut buffer).await {
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let reply = script.lock().unwrap().get(&path).cloned();
        log.lock().unwrap().push((line, body));
        let reply = reply.unwrap_or_else(|| Reply::Is(404, r#"{"detail":"Not Found"}"#.to_owned()));
        let done = match reply {
            Reply::Is(status, body) => {
                let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
                socket.write_all((head + &body).as_bytes()).await
            }
            Reply::Raw(bytes) => {
                let _ = socket.write_all(&bytes).await;
                return;
            }
            Reply::Endless(head, more) => {
                let _ = socket.write_all(&head).await;
                while socket.write_all(&more).await.is_ok() {}
                return;
            }
            Reply::Silence => {
                tokio::time::sleep(Duration::from_secs(3600)).await;
                return;
            }
        };
        if done.is_err() {
            return;
        }
    }
}

/// Start line without the version, and body. `None` at the end of the connection.
async fn read_request(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<(String, String)> {
    let head = loop {
        if let Some(end) = memchr::memmem::find(buffer, b"\r\n\r\n") {
            break end;
        }
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(buffer[..head].to_vec()).ok()?;
    let length = text
        .lines()
        .find_map(|l| l.to_ascii_lowercase().strip_prefix("content-length:").map(|n| n.trim().parse::<usize>().ok()))
        .flatten()
        .unwrap_or(0);
    while buffer.len() < head + 4 + length {
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = String::from_utf8(buffer[head + 4..head + 4 + length].to_vec()).ok()?;
    buffer.drain(..head + 4 + length);
    let line = text.lines().next()?.rsplit_once(' ')?.0.to_owned();
    Some((line, body))
}
