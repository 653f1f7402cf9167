//! Accepting connections, HTTP/1.1 as both stock engines speak it, and stopping in order.
//!
//! Own loop instead of `axum::serve` for three bounds: the number of connections, the time for request headers, and the
//! time that a client may refuse to take bytes ([`WriteDeadline`]). Beyond the number a few more are served that may ask
//! for health only, so that those who hold the others cannot make the engine look dead.

use super::State;
use crate::config::EngineError;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

/// For request headers; also how long an idle keep-alive connection lives.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections beyond those that are served which are told so, and the time they have for their headers.
const SPARE_PLACES: usize = 64;
const SPARE_HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// For the last bytes after everything in flight was aborted.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Serves until `shutdown`, then lets running requests finish for `drain`, then aborts them.
pub(crate) async fn run(
    listener: TcpListener,
    [router, when_full]: [Router; 2],
    state: &Arc<State>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), EngineError> {
    let (stop, stopping) = watch::channel(false);
    let places = Places {
        all: Arc::new(Semaphore::new(state.config.max_connections)),
        spare: Arc::new(Semaphore::new(SPARE_PLACES)),
    };
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let io = WriteDeadline::new(stream, state.config.stalled_reader);
                let (builder, router, place) = match place {
                    Place::Served(place) => (http(HEADER_TIMEOUT, true), router.clone(), place),
                    Place::Spare(place) => (http(SPARE_HEADER_TIMEOUT, false), when_full.clone(), place),
                };
                let serving = connection(builder, io, router, stopping.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(EngineError::Accept(error)),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    state.begin_drain();
    stop.send_replace(true);
    let everyone = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(state.config.drain, everyone).await.is_err() {
        state.engine.stop();
        let everyone = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_WORDS, everyone).await;
    }
    state.engine.stop();
    connections.shutdown().await;
    Ok(())
}

struct Places {
    all: Arc<Semaphore>,
    spare: Arc<Semaphore>,
}

/// How a connection is served, as long as it holds this.
enum Place {
    Served(OwnedSemaphorePermit),
    Spare(OwnedSemaphorePermit),
}

async fn accept(listener: &TcpListener, places: &Places) -> io::Result<(TcpStream, Place)> {
    // Nobody else takes places: one that is free now is so after the accept.
    tokio::select! {
        place = places.all.acquire() => drop(place.map_err(io::Error::other)?),
        place = places.spare.acquire() => drop(place.map_err(io::Error::other)?),
    }
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let place = match Arc::clone(&places.all).try_acquire_owned() {
        Ok(place) => Place::Served(place),
        Err(_) => Place::Spare(Arc::clone(&places.spare).try_acquire_owned().map_err(io::Error::other)?),
    };
    Ok((stream, place))
}

fn http(header_timeout: Duration, keep_alive: bool) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(header_timeout).keep_alive(keep_alive).max_buf_size(64 * 1024);
    builder
}

async fn connection(builder: http1::Builder, io: WriteDeadline, router: Router, mut stopping: watch::Receiver<bool>) {
    let serving = builder.serve_connection(TokioIo::new(io), TowerToHyperService::new(router));
    tokio::pin!(serving);
    let result = tokio::select! {
        result = &mut serving => result,
        () = async { drop(stopping.wait_for(|stop| *stop).await) } => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// A stream that fails when its peer takes nothing for too long: hyper then drops the answer and with it the request.
struct WriteDeadline {
    stream: TcpStream,
    limit: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl WriteDeadline {
    fn new(stream: TcpStream, limit: Duration) -> Self {
        WriteDeadline { stream, limit, waiting: None }
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let limit = self.limit;
        let timer = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no data")))
    }
}

impl AsyncRead for WriteDeadline {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for WriteDeadline {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
