//! A small HTTP/1.1 client: kept-alive connections to one address, no more of them than requests in flight.
//!
//! The demo measures the gateway, so its own client must not add waits: TCP_NODELAY, one connection per request in
//! flight, a stale one noticed before anything was sent on it.

use crate::Failure;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;

type Sender = SendRequest<Full<Bytes>>;

/// For everything but streamed answers.
const CALL_LIMIT: Duration = Duration::from_secs(10);
const SMALL_BODY_BYTES: usize = 1 << 20;

pub(crate) struct Client {
    authority: String,
    idle: Mutex<Vec<Sender>>,
}

/// Why no answer came.
#[derive(Debug)]
pub(crate) struct NoAnswer {
    /// Short name for the count by code.
    pub(crate) code: &'static str,
    pub(crate) detail: String,
}

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

/// A connection in use; give it back after the body was read to its end.
pub(crate) struct Lease(Sender);

impl Client {
    /// `url` without path, such as `http://127.0.0.1:8080`.
    pub(crate) fn new(url: &str) -> Result<Self, Failure> {
        let authority = url
            .strip_prefix("http://")
            .map(|rest| rest.trim_end_matches('/').to_owned())
            .filter(|authority| !authority.is_empty())
            .ok_or_else(|| Failure::failed(format!("`{url}` is not an address such as http://127.0.0.1:8080")))?;
        Ok(Client { authority, idle: Mutex::new(Vec::new()) })
    }

    /// Posts JSON and returns as soon as the head of the answer is there.
    pub(crate) async fn post(&self, path: &str, body: Bytes) -> Result<(Response<Incoming>, Lease), NoAnswer> {
        self.post_with(path, &[], body).await
    }

    /// The same with further headers.
    pub(crate) async fn post_with(
        &self,
        path: &str,
        headers: &[(&str, String)],
        body: Bytes,
    ) -> Result<(Response<Incoming>, Lease), NoAnswer> {
        let mut request =
            Request::post(path).header("host", &self.authority).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(body));
        self.send(request.map_err(|error| no_answer("bad_request", error))?).await
    }

    /// Status and body of a small GET.
    pub(crate) async fn get(&self, path: &str, token: Option<&str>) -> Result<(u16, Bytes), NoAnswer> {
        let mut request = Request::get(path).header("host", &self.authority);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::new())).map_err(|error| no_answer("bad_request", error))?;
        let call = async {
            let (response, lease) = self.send(request).await?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), SMALL_BODY_BYTES).collect().await;
            let body = body.map_err(|error| no_answer("broken_body", error))?.to_bytes();
            self.give_back(lease);
            Ok((status, body))
        };
        tokio::time::timeout(CALL_LIMIT, call).await.map_err(|error| no_answer("timeout", error))?
    }

    async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<(Response<Incoming>, Lease), NoAnswer> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let reused = idle.is_some();
            let mut sender = match idle {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            if sender.ready().await.is_err() {
                if reused {
                    continue;
                }
                return Err(no_answer("connection_lost", "the connection was closed before a request was sent"));
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, Lease(sender))),
                Err(mut error) => match error.take_message() {
                    // Closed by the other side while idle: nothing was sent.
                    Some(unsent) if reused => request = unsent,
                    _ => return Err(no_answer("connection_lost", error.error())),
                },
            }
        }
    }

    async fn connect(&self) -> Result<Sender, NoAnswer> {
        let stream = tokio::time::timeout(CALL_LIMIT, TcpStream::connect(&self.authority))
            .await
            .map_err(|error| no_answer("connect_failed", error))?
            .map_err(|error| no_answer("connect_failed", error))?;
        let _ = stream.set_nodelay(true);
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| no_answer("connect_failed", error))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    pub(crate) fn give_back(&self, lease: Lease) {
        if !lease.0.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(lease.0);
        }
    }
}

pub(crate) fn no_answer(code: &'static str, detail: impl std::fmt::Display) -> NoAnswer {
    NoAnswer { code, detail: detail.to_string() }
}
