//! Listeners and connections: limits on heads, time and number, TLS, and an orderly end.

use crate::accept;
use crate::clock::millis;
use crate::open_requests::OpenRequests;
use crate::stall_guard::StallGuard;
use crate::state::Shared;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use plimsoll_settings::Settings;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Requests a client may have open at once on one h2 connection.
const H2_STREAMS: u32 = 1_024;

/// The connection itself refuses heads past this multiple of the limits, with a bare status; up to it the answer is an
/// error object.
const HARD_LIMIT_FACTOR: usize = 2;

/// Headers hyper reads without being told otherwise, and without an allocation for them.
const HYPER_HEADERS: usize = 100;

/// A connection without a request is given this long to end by itself when the process stops.
const HALF_A_HEAD: Duration = Duration::from_millis(300);

/// Streams that are cut at the end have this long to tell their clients.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(300);

/// Bytes hyper may hold per connection for reading heads and writing answers, at least.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// Runs the clients' listener until `stop`; then lets connections end for at most the grace time.
pub async fn run(
    shared: Arc<Shared>,
    listener: TcpListener,
    tls: watch::Receiver<Option<TlsAcceptor>>,
    mut stop: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(shared.settings.load().gateway.max_connections.min(Semaphore::MAX_PERMITS)));
    let connections = tokio_util_tasks::Tasks::default();
    loop {
        let place = tokio::select! {
            place = places.clone().acquire_owned() => match place { Ok(place) => place, Err(_) => break },
            () = stopped(&mut stop) => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors and the like: the listener stays, this moment passes.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let settings = shared.settings.load_full();
        let shared = shared.clone();
        let acceptor = tls.borrow().clone();
        let watcher = graceful.watcher();
        let stop = stop.clone();
        connections.spawn(async move {
            shared.metrics.client_connections.inc();
            connection(&shared, &settings, stream, acceptor, watcher, stop).await;
            shared.metrics.client_connections.dec();
            drop(place);
        });
    }
    drop(listener);
    let grace = millis(shared.settings.load().gateway.shutdown_grace_ms);
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
        let streams = shared.streams.shut_down();
        tracing::warn!(grace_ms = grace.as_millis(), streams, "requests still running after the grace time are cut");
        tokio::time::sleep(LAST_WORDS).await;
    }
    connections.abort_all();
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the one who could say so has gone: that is a stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Tasks that are ended together.
mod tokio_util_tasks {
    use parking_lot::Mutex;
    use std::future::Future;
    use tokio::task::JoinSet;

    #[derive(Default)]
    pub(super) struct Tasks(Mutex<JoinSet<()>>);

    impl Tasks {
        pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
            let mut set = self.0.lock();
            // Reap what has ended, so that the set holds running connections only.
            while set.try_join_next().is_some() {}
            set.spawn(task);
        }

        pub(super) fn abort_all(&self) {
            self.0.lock().abort_all();
        }
    }
}

async fn connection(
    shared: &Arc<Shared>,
    settings: &Settings,
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    watcher: Watcher,
    mut stop: watch::Receiver<bool>,
) {
    // Without this, a token that follows another waits for the client's delayed ACK: 40 ms.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection gone at once");
        return;
    }
    let stall = millis(settings.streams.client_stall_timeout_ms);
    let opening = tokio::time::timeout(millis(settings.limits.header_timeout_ms), open(stream, acceptor));
    let opened = tokio::select! {
        opened = opening => opened,
        // Nothing has been asked yet: nothing is lost by closing.
        () = stopped(&mut stop) => return,
    };
    match opened {
        Ok(Ok(Opened::Plain { stream, h2 })) => {
            http(shared, settings, StallGuard::new(stream, stall), h2, watcher, stop).await;
        }
        Ok(Ok(Opened::Tls { stream, h2 })) => {
            http(shared, settings, StallGuard::new(stream, stall), h2, watcher, stop).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "connection gone before its first request"),
        Err(_) => tracing::debug!("connection without a request is closed"),
    }
}

/// A connection whose protocol is known.
enum Opened {
    Plain { stream: TcpStream, h2: bool },
    Tls { stream: Box<TlsStream<TcpStream>>, h2: bool },
}

async fn open(stream: TcpStream, acceptor: Option<TlsAcceptor>) -> std::io::Result<Opened> {
    match acceptor {
        None => {
            let h2 = speaks_h2(&stream).await?;
            Ok(Opened::Plain { stream, h2 })
        }
        Some(acceptor) => {
            let stream = Box::new(acceptor.accept(stream).await?);
            let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Ok(Opened::Tls { stream, h2 })
        }
    }
}

/// First bytes of an h2 connection with prior knowledge (RFC 9113, 3.4).
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether the client opens with HTTP/2's preface. Looks without taking, so that hyper sees every byte. A ready-made
/// detector waits for these bytes without a limit; here the caller's time-out closes a silent connection.
async fn speaks_h2(stream: &TcpStream) -> std::io::Result<bool> {
    let mut seen = [0u8; H2_PREFACE.len()];
    loop {
        let n = stream.peek(&mut seen).await?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if seen[..n] != H2_PREFACE[..n] {
            return Ok(false);
        }
        if n == H2_PREFACE.len() {
            return Ok(true);
        }
        // Part of the preface: `peek` would return it at once again.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn http<S>(
    shared: &Arc<Shared>,
    settings: &Settings,
    stream: S,
    h2: bool,
    watcher: Watcher,
    stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &settings.limits;
    let open = OpenRequests::default();
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let (shared, place) = (shared.clone(), open.begin());
        async move { Ok::<_, Infallible>(accept::serve(shared, request).await.map(|body| place.keep_with(body))) }
    });
    let patience = millis(limits.header_timeout_ms);
    let io = TokioIo::new(stream);
    let served = if h2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(HARD_LIMIT_FACTOR * limits.header_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(H2_STREAMS)
            .max_send_buf_size(CONNECTION_BUFFER_BYTES)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20));
        let serving = watcher.watch(builder.serve_connection(io, service));
        tokio::select! {
            served = serving => served,
            // An answered PING keeps an h2 connection for ever; without a request it keeps its place no longer than others.
            () = open.idle_for(patience) => return,
            () = idle_while_stopping(&open, stop) => return,
        }
    } else {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(patience)
            .max_buf_size((HARD_LIMIT_FACTOR * limits.header_bytes).max(CONNECTION_BUFFER_BYTES));
        if limits.header_count > HYPER_HEADERS {
            builder.max_headers(limits.header_count);
        }
        let serving = watcher.watch(builder.serve_connection(io, service));
        tokio::select! {
            served = serving => served,
            () = idle_while_stopping(&open, stop) => return,
        }
    };
    if let Err(error) = served {
        tracing::debug!(error = %error, "connection ended badly");
    }
}

/// Half a head is no request: it does not hold up the end of the process.
async fn idle_while_stopping(open: &OpenRequests, mut stop: watch::Receiver<bool>) {
    stopped(&mut stop).await;
    open.idle_for(HALF_A_HEAD).await;
}
