//! An engine's address, credentials and connection pool.

use super::conn::Conn;
use super::exchange::{Exchange, SendError};
use super::out_body::OutBody;
use super::stream::Stream;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How to reach an engine.
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    pub connect_timeout: Duration,
    /// Idle connections older than this are not used again.
    pub idle_timeout: Duration,
    pub max_idle: usize,
    /// Bound on a response head in bytes.
    pub header_bytes: usize,
    pub api_key: Option<String>,
    /// For control endpoints; `api_key` where absent.
    pub admin_api_key: Option<String>,
    /// PEM file of the authority that signed the engine's certificate.
    pub ca_file: Option<PathBuf>,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        EndpointOptions {
            connect_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(3),
            max_idle: 256,
            header_bytes: 64 << 10,
            api_key: None,
            admin_api_key: None,
            ca_file: None,
        }
    }
}

/// Why an engine URL cannot be used.
#[derive(Debug, Error)]
pub enum EndpointError {
    #[error("`{0}` is not an engine url: use http://HOST:PORT or https://HOST:PORT")]
    Url(String),
    #[error("the key for `{0}` has characters that a header cannot carry")]
    Key(String),
    #[error("cannot read certificates from `{0}`: {1}")]
    Ca(PathBuf, String),
}

/// Which credential a call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Inference,
    Admin,
}

/// A whole answer of a control-plane call.
#[derive(Clone, Debug)]
pub struct CallAnswer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Why a control-plane call has no answer.
#[derive(Debug, Error)]
pub enum CallError {
    #[error("cannot connect: {0}")]
    Connect(String),
    /// Out of file descriptors or ports here: nothing is said about the engine.
    #[error("this process cannot open another connection: {0}")]
    Exhausted(String),
    #[error("no answer in time")]
    Timeout,
    #[error("broken answer: {0}")]
    Io(String),
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

/// An engine as seen from here. Clones share the pool.
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
}

struct Inner {
    url: String,
    host: String,
    port: u16,
    authority: HeaderValue,
    base_path: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    inference_key: Option<HeaderValue>,
    admin_key: Option<HeaderValue>,
    options: EndpointOptions,
    idle: Mutex<Vec<(Conn, Instant)>>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Endpoint").field(&self.inner.url).finish()
    }
}

impl Endpoint {
    /// # Errors
    /// A URL that is not `http(s)://host[:port][/base]`, a key that is no header value, an unreadable `ca_file`.
    pub fn new(url: &str, options: EndpointOptions) -> Result<Endpoint, EndpointError> {
        let bad = || EndpointError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        let authority = uri.authority().ok_or_else(bad)?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(bad());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if https { 443 } else { 80 });
        let tls = if https {
            let name = ServerName::try_from(host.clone()).map_err(|_| bad())?;
            Some((tls_connector(options.ca_file.as_ref())?, name))
        } else {
            None
        };
        let bearer = |key: &Option<String>| -> Result<Option<HeaderValue>, EndpointError> {
            key.as_ref()
                .map(|key| {
                    let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                        .map_err(|_| EndpointError::Key(url.to_owned()))?;
                    value.set_sensitive(true);
                    Ok(value)
                })
                .transpose()
        };
        let inference_key = bearer(&options.api_key)?;
        let admin_key = bearer(&options.admin_api_key)?.or_else(|| inference_key.clone());
        Ok(Endpoint {
            inner: Arc::new(Inner {
                url: url.trim_end_matches('/').to_owned(),
                authority: HeaderValue::from_str(authority.as_str()).map_err(|_| bad())?,
                base_path: uri.path().trim_end_matches('/').to_owned(),
                host,
                port,
                tls,
                inference_key,
                admin_key,
                options,
                idle: Mutex::new(Vec::new()),
            }),
        })
    }

    /// The URL it was made from, without a trailing slash.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    #[must_use]
    pub fn authority(&self) -> &str {
        self.inner.authority.to_str().unwrap_or("")
    }

    /// A request for `path` with the headers every request to this engine needs. Overwrites `host`, and
    /// `authorization` where the engine has a key of its own.
    #[must_use]
    pub fn request(
        &self,
        method: Method,
        path: &str,
        mut headers: HeaderMap,
        key: Key,
        body: OutBody,
    ) -> Request<OutBody> {
        headers.insert(HOST, self.inner.authority.clone());
        let credential = match key {
            Key::Inference => &self.inner.inference_key,
            Key::Admin => &self.inner.admin_key,
        };
        if let Some(credential) = credential {
            headers.insert(AUTHORIZATION, credential.clone());
        }
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = self.uri(path);
        *request.headers_mut() = headers;
        request
    }

    fn uri(&self, path: &str) -> Uri {
        let joined;
        let path = if self.inner.base_path.is_empty() {
            path
        } else {
            joined = format!("{}{path}", self.inner.base_path);
            &joined
        };
        // Paths come from this program's own route table or were parsed from a request line already.
        path.parse().unwrap_or_else(|_| Uri::from_static("/"))
    }

    /// Sends on a pooled or new connection and waits for the answer's head. No time limit of its own except for
    /// connecting; drop the future to cancel.
    ///
    /// # Errors
    /// See [`SendError`]. Nothing is retried here, except that a pooled connection found closed *before* the send is
    /// passed over.
    pub async fn send(&self, request: Request<OutBody>) -> Result<Exchange, SendError> {
        let conn = match self.checkout().await {
            Some(conn) => conn,
            None => self.connect().await?,
        };
        Exchange::start(conn, self.clone(), request).await
    }

    /// Like [`Endpoint::send`] on a new connection only.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send_fresh(&self, request: Request<OutBody>) -> Result<Exchange, SendError> {
        let conn = self.connect().await?;
        Exchange::start(conn, self.clone(), request).await
    }

    async fn checkout(&self) -> Option<Conn> {
        loop {
            let (mut conn, since) = self.inner.idle.lock().pop()?;
            if since.elapsed() >= self.inner.options.idle_timeout {
                // The stack is ordered by time: all below are older.
                self.inner.idle.lock().retain(|(_, since)| since.elapsed() < self.inner.options.idle_timeout);
                continue;
            }
            if conn.is_usable().await {
                conn.reused = true;
                return Some(conn);
            }
        }
    }

    pub(super) fn park(&self, conn: Conn) {
        let mut idle = self.inner.idle.lock();
        if idle.len() < self.inner.options.max_idle {
            idle.push((conn, Instant::now()));
        }
    }

    /// Closes idle connections past their time. Called by whoever polls the engine.
    pub fn reap_idle(&self) {
        let limit = self.inner.options.idle_timeout;
        self.inner.idle.lock().retain(|(_, since)| since.elapsed() < limit);
    }

    #[must_use]
    pub fn idle_connections(&self) -> usize {
        self.inner.idle.lock().len()
    }

    async fn connect(&self) -> Result<Conn, SendError> {
        let limit = self.inner.options.connect_timeout;
        match tokio::time::timeout(limit, self.connect_unbounded()).await {
            Ok(done) => done,
            Err(_) => Err(SendError::Connect(format!("no connection within {} ms", limit.as_millis()))),
        }
    }

    async fn connect_unbounded(&self) -> Result<Conn, SendError> {
        // EMFILE, ENFILE, EADDRNOTAVAIL, ENOBUFS, ENOMEM: ours, not the engine's.
        let failed = |e: std::io::Error| match e.raw_os_error() {
            Some(24 | 23 | 99 | 105 | 12) => SendError::Exhausted(e.to_string()),
            _ => SendError::Connect(e.to_string()),
        };
        let tcp = TcpStream::connect((self.inner.host.as_str(), self.inner.port)).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let stream = match &self.inner.tls {
            None => Stream::Plain(tcp),
            Some((connector, name)) => {
                Stream::Tls(Box::new(connector.connect(name.clone(), tcp).await.map_err(failed)?))
            }
        };
        Conn::handshake(stream, self.inner.options.header_bytes).await.map_err(|e| SendError::Connect(e.to_string()))
    }

    /// A small control-plane request: whole answer, bounded in time and size. A pooled connection that turns out to
    /// be closed is replaced once.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        key: Key,
        deadline: Duration,
        max_bytes: usize,
    ) -> Result<CallAnswer, CallError> {
        let work = async {
            let mut headers = HeaderMap::new();
            if body.is_some() {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
            let body = body.map_or_else(OutBody::empty, OutBody::whole);
            let first = self.request(method.clone(), path, headers.clone(), key, body.clone());
            let sent = match self.send(first).await {
                Err(SendError::Stale { .. }) => self.send_fresh(self.request(method, path, headers, key, body)).await,
                other => other,
            };
            let mut exchange = sent.map_err(|e| match e {
                SendError::Connect(why) => CallError::Connect(why),
                SendError::Exhausted(why) => CallError::Exhausted(why),
                other => CallError::Io(other.to_string()),
            })?;
            let bytes = exchange.collect(max_bytes).await.map_err(|e| match e {
                Some(e) => CallError::Io(e.to_string()),
                None => CallError::TooLarge(max_bytes),
            })?;
            Ok(CallAnswer { status: exchange.status, headers: exchange.headers.clone(), body: bytes })
        };
        match tokio::time::timeout(deadline, work).await {
            Ok(done) => done,
            Err(_) => Err(CallError::Timeout),
        }
    }
}

fn tls_connector(ca_file: Option<&PathBuf>) -> Result<TlsConnector, EndpointError> {
    let mut roots = rustls::RootCertStore::empty();
    match ca_file {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(file) => {
            let bad = |e: String| EndpointError::Ca(file.clone(), e);
            for cert in CertificateDer::pem_file_iter(file).map_err(|e| bad(e.to_string()))? {
                roots.add(cert.map_err(|e| bad(e.to_string()))?).map_err(|e| bad(e.to_string()))?;
            }
            if roots.is_empty() {
                return Err(bad("no certificate in it".into()));
            }
        }
    }
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| EndpointError::Url(e.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
