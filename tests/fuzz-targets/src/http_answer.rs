//! Engines that answer with anything: the HTTP client ends in time, holds no more than it may, and never takes bytes of
//! one answer for the next.
//!
//! Input: a byte of flags (see [`Mode`]), then what the engine writes as soon as it has a request.

use bytes::Bytes;
use http::{HeaderMap, Method};
use plimsoll_pools::http::{Endpoint, EndpointOptions, Key, OutBody};
use std::cell::RefCell;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// The client's own limit of time; a hang would be one that outlasts [`HANG`].
const DEADLINE: Duration = Duration::from_millis(60);
const HANG: Duration = Duration::from_secs(20);
const MOST_BODY_BYTES: usize = 4 << 10;
/// An engine that never stops writing is let go after this much.
const ENDLESS_BYTES: usize = 8 << 20;
const KNOWN: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nknown";

struct Mode {
    /// Write the bytes again and again, until the client is gone.
    endless: bool,
    /// Keep the connection after writing, as an engine that hangs.
    keep: bool,
    /// Read the answer as a stream instead of as a whole.
    stream: bool,
}

thread_local! {
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

pub fn run(data: &[u8]) {
    let Some((&flags, answer)) = data.split_first() else { return };
    let mode = Mode { endless: flags & 1 != 0, keep: flags & 2 != 0, stream: flags & 4 != 0 };
    RUNTIME.with_borrow_mut(|runtime| {
        let runtime =
            runtime.get_or_insert_with(|| match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => panic!("no runtime: {error}"),
            });
        match runtime.block_on(async { tokio::time::timeout(HANG, exchange(&mode, answer)).await }) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("passed over: no socket: {error}"),
            Err(_) => panic!("the client hangs"),
        }
    });
}

async fn exchange(mode: &Mode, answer: &[u8]) -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let endpoint = match Endpoint::new(&url, EndpointOptions::default()) {
        Ok(endpoint) => endpoint,
        Err(error) => panic!("{error}"),
    };
    let client = async {
        if mode.stream {
            read_stream(&endpoint).await;
        } else {
            read_whole(&endpoint).await;
        }
        // Whatever is left of the first answer must not become the second one.
        let second = endpoint.call(Method::GET, "/second", None, Key::Admin, HANG, MOST_BODY_BYTES).await;
        match second {
            // Nothing in HTTP/1.1 tells an answer from one that is written in the very moment of asking.
            _ if mode.endless => {}
            Ok(answer) => assert_eq!(answer.body, "known", "the first answer's bytes were taken for the second"),
            Err(error) => panic!("a good engine is not reached: {error}"),
        }
    };
    tokio::select! {
        () = client => Ok(()),
        done = serve(&listener, mode, answer) => done,
    }
}

async fn read_whole(endpoint: &Endpoint) {
    let body = Some(Bytes::from_static(b"{}"));
    let got = endpoint.call(Method::POST, "/first", body, Key::Inference, DEADLINE, MOST_BODY_BYTES).await;
    if let Ok(answer) = got {
        assert!(answer.body.len() <= MOST_BODY_BYTES);
    }
}

async fn read_stream(endpoint: &Endpoint) {
    let body = OutBody::whole(Bytes::from_static(b"{}"));
    let request = endpoint.request(Method::POST, "/first", HeaderMap::new(), Key::Inference, body);
    let reading = async {
        let Ok(mut exchange) = endpoint.send(request).await else { return };
        let mut seen = 0;
        while let Some(Ok(piece)) = exchange.frame().await {
            assert!(!piece.is_empty(), "an empty frame");
            seen += piece.len();
            if seen > ENDLESS_BYTES / 8 {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DEADLINE, reading).await;
}

/// The first request gets the input, every other one the known answer.
async fn serve(listener: &TcpListener, mode: &Mode, answer: &[u8]) -> std::io::Result<()> {
    let mut open: Vec<TcpStream> = Vec::new();
    let mut first = true;
    loop {
        let mut socket = accept(listener, &mut open).await?;
        if !read_head(&mut socket).await {
            continue;
        }
        if !std::mem::take(&mut first) {
            let _ = socket.write_all(KNOWN).await;
            open.push(socket);
            continue;
        }
        let mut written = 0;
        while written == 0 || mode.endless {
            if answer.is_empty() || socket.write_all(answer).await.is_err() {
                break;
            }
            written += answer.len();
            if written >= ENDLESS_BYTES {
                break;
            }
            tokio::task::yield_now().await;
        }
        if mode.keep {
            open.push(socket);
        }
    }
}

/// A new connection, or a kept one that has something to say.
async fn accept(listener: &TcpListener, open: &mut Vec<TcpStream>) -> std::io::Result<TcpStream> {
    tokio::select! {
        accepted = listener.accept() => Ok(accepted?.0),
        index = readable(open) => Ok(open.swap_remove(index)),
    }
}

async fn readable(open: &[TcpStream]) -> usize {
    std::future::poll_fn(|cx| match open.iter().position(|socket| socket.poll_read_ready(cx).is_ready()) {
        Some(index) => std::task::Poll::Ready(index),
        None => std::task::Poll::Pending,
    })
    .await
}

/// Reads a request with its small body; false where the client went away.
async fn read_head(socket: &mut TcpStream) -> bool {
    let mut text = Vec::new();
    let mut piece = [0; 2048];
    loop {
        let done = if text.starts_with(b"POST") { text.ends_with(b"\r\n\r\n{}") } else { text.ends_with(b"\r\n\r\n") };
        if done && !text.is_empty() {
            return true;
        }
        match socket.read(&mut piece).await {
            Ok(0) | Err(_) => return false,
            Ok(n) => text.extend_from_slice(&piece[..n]),
        }
    }
}
