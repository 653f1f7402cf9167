//! PUB: everything to everybody who asked for it, and no waiting for anybody.
//!
//! A subscriber has a queue of its own. When it is full, what comes next is dropped for this subscriber and counted; the
//! subscriber sees a hole in the numbers of the messages. Sending is a push into queues and never blocks.

use crate::connection::{pong, shake_hands};
use crate::message::Incoming;
use crate::{Endpoint, Limits, ProtocolError, Role};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

/// Pause after a failed accept or connect.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A PUB socket. Dropping it closes all connections.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    peers: Mutex<Vec<Arc<Peer>>>,
    limits: Limits,
    dropped: AtomicU64,
}

/// What a publisher counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublisherStats {
    /// Connected now.
    pub subscribers: usize,
    /// Messages dropped since the start because one subscriber's queue was full: one for each subscriber that missed one.
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct Peer {
    topics: Mutex<Vec<Bytes>>,
    queue: Mutex<Queue>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Bytes>,
    bytes: usize,
}

impl Publisher {
    /// Serves subscribers that connect. To be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the runtime refuses the listener.
    pub fn bind(listener: StdListener, limits: Limits) -> std::io::Result<Publisher> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        Ok(Publisher::start(limits, |shared| accept(listener, shared)))
    }

    /// Connects to a subscriber that listens, again and again. To be called inside a tokio runtime.
    #[must_use]
    pub fn connect(endpoint: Endpoint, limits: Limits) -> Publisher {
        Publisher::start(limits, |shared| connect(endpoint, shared))
    }

    fn start<F>(limits: Limits, serve: impl FnOnce(Arc<Shared>) -> F) -> Publisher
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let shared = Arc::new(Shared { peers: Mutex::default(), limits, dropped: AtomicU64::new(0) });
        let task = tokio::spawn(serve(Arc::clone(&shared)));
        Publisher { shared, task }
    }

    /// Hands a message ([`crate::encode`]d) to everybody who subscribed to a start of `topic`. Never waits.
    pub fn send(&self, topic: &[u8], wire: &Bytes) {
        for peer in self.shared.peers.lock().iter() {
            if peer.topics.lock().iter().any(|prefix| topic.starts_with(prefix))
                && !peer.offer(wire.clone(), &self.shared.limits)
            {
                self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Waits until everything sent so far was taken by the sockets of all subscribers, or the time is over.
    pub async fn drain(&self, most: Duration) {
        let until = tokio::time::Instant::now() + most;
        while tokio::time::Instant::now() < until
            && self.shared.peers.lock().iter().any(|peer| peer.queue.lock().bytes > 0)
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    #[must_use]
    pub fn stats(&self) -> PublisherStats {
        PublisherStats {
            subscribers: self.shared.peers.lock().len(),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // The sessions are in a set that the task owns.
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = sessions.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if sessions.len() < shared.limits.peers => {
                    let shared = Arc::clone(&shared);
                    sessions.spawn(async move { log_end(session(stream, &shared).await) });
                }
                Ok(_) => tracing::warn!(peers = shared.limits.peers, "a subscriber was turned away: too many"),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a subscriber");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

async fn connect(endpoint: Endpoint, shared: Arc<Shared>) {
    let mut pause = PAUSE;
    loop {
        match TcpStream::connect(endpoint.authority()).await {
            Ok(stream) => {
                pause = PAUSE;
                log_end(session(stream, &shared).await);
            }
            Err(error) => tracing::debug!(%endpoint, %error, "cannot connect to the subscriber"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn log_end(ended: Result<(), ProtocolError>) {
    match ended {
        Ok(()) | Err(ProtocolError::Closed) => tracing::debug!("a subscriber left"),
        Err(error) => tracing::info!(%error, "a subscriber was cut off"),
    }
}

async fn session(stream: TcpStream, shared: &Shared) -> Result<(), ProtocolError> {
    let (mut reader, mut writer) = shake_hands(stream, Role::Pub, &shared.limits).await?;
    let place = Place::take(shared);
    let peer = &*place.peer;
    let listen = async {
        loop {
            let incoming = reader.next().await?;
            peer.obey(incoming, &shared.limits)?;
        }
    };
    let speak = async {
        loop {
            let next = peer.next();
            match next {
                Some(wire) => {
                    let bytes = wire.len();
                    writer.send(wire).await?;
                    peer.written(bytes);
                }
                None => peer.bell.notified().await,
            }
        }
    };
    tokio::select! {
        ended = listen => ended,
        ended = speak => ended,
    }
}

/// A subscriber's place in the list; leaving it is certain.
struct Place<'a> {
    shared: &'a Shared,
    peer: Arc<Peer>,
}

impl<'a> Place<'a> {
    fn take(shared: &'a Shared) -> Self {
        let peer = Arc::new(Peer::default());
        shared.peers.lock().push(Arc::clone(&peer));
        Place { shared, peer }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.peers.lock().retain(|peer| !Arc::ptr_eq(peer, &self.peer));
    }
}

impl Peer {
    /// Subscriptions come as messages (ZMTP 3.0) or commands (3.1).
    fn obey(&self, incoming: Incoming, limits: &Limits) -> Result<(), ProtocolError> {
        match incoming {
            Incoming::Message(frames) => match frames.first().and_then(|frame| frame.split_first()) {
                Some((1, _)) => self.subscribe(frames[0].slice(1..), limits),
                Some((0, topic)) => self.cancel(topic),
                // Other messages mean nothing to a publisher.
                _ => {}
            },
            Incoming::Command { name, body } => match &name[..] {
                b"SUBSCRIBE" => self.subscribe(body, limits),
                b"CANCEL" => self.cancel(&body),
                b"PING" => {
                    self.offer(pong(&body), limits);
                }
                b"ERROR" => return Err(ProtocolError::Closed),
                _ => {}
            },
        }
        Ok(())
    }

    fn subscribe(&self, topic: Bytes, limits: &Limits) {
        let mut topics = self.topics.lock();
        if topics.len() < limits.subscriptions {
            topics.push(topic);
        } else {
            tracing::warn!(most = limits.subscriptions, "a subscription was ignored: the subscriber has too many");
        }
    }

    fn cancel(&self, topic: &[u8]) {
        let mut topics = self.topics.lock();
        if let Some(at) = topics.iter().position(|known| known == topic) {
            topics.swap_remove(at);
        }
    }

    /// False when there is no room: nothing was queued then.
    fn offer(&self, wire: Bytes, limits: &Limits) -> bool {
        let mut queue = self.queue.lock();
        let bytes = queue.bytes + wire.len();
        if queue.waiting.len() >= limits.queued_messages || bytes > limits.queued_bytes {
            return false;
        }
        queue.bytes = bytes;
        queue.waiting.push_back(wire);
        drop(queue);
        self.bell.notify_one();
        true
    }

    /// Its bytes count until they are [`Self::written`].
    fn next(&self) -> Option<Bytes> {
        self.queue.lock().waiting.pop_front()
    }

    fn written(&self, bytes: usize) {
        self.queue.lock().bytes -= bytes;
    }
}
