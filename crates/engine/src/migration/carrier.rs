//! The connections of migrations: from this engine's requests to their targets, and from other engines' to here.
//!
//! One task per migration and side moves parcels between the desk, on the step thread, and the other engine. The desk
//! never waits for it; it waits for the desk: only so many parcels that were received lie in the step loop's inbox.

use super::desk::{Heard, Post, Send};
use super::notes::Note;
use super::report::Endpoint;
use crate::driver::EngineHandle;
use crate::faults::FaultSwitch;
use crate::transfer::{Incoming, Link, Receiver, Sender, Terms, TransferError};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Connections at once, from the accept on.
const MAX_LINKS: usize = 256;
/// Parcels of one connection that the step loop has not taken yet: what one step may find of a migration.
const INBOX: usize = 8;
/// Pause after a failed accept (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// After the last parcel, how long to wait for the other side to hang up, so that nothing is cut off.
const GOODBYE: Duration = Duration::from_secs(1);

/// Which side of which migration a connection serves: its id, and whether this engine is the source.
type Line = (String, bool);
/// Bounded by what the desk ships: pages by its pool, notes by its steps.
type Lines = Arc<Mutex<HashMap<Line, UnboundedSender<Send>>>>;

/// Dropping it hangs up everywhere.
pub(crate) struct Carrier {
    address: SocketAddr,
    tasks: [AbortHandle; 2],
}

struct Shared {
    terms: Terms,
    engine: EngineHandle,
    /// One that is frozen on purpose is so here too.
    faults: FaultSwitch,
    lines: Lines,
}

impl Carrier {
    /// Waits for sources at `listen` and carries what the desk posts.
    ///
    /// # Errors
    /// When the address is taken.
    pub(crate) async fn start(
        listen: SocketAddr,
        terms: Terms,
        engine: EngineHandle,
        faults: FaultSwitch,
        posts: UnboundedReceiver<Post>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { terms, engine, faults, lines: Lines::default() });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        let posting = tokio::spawn(post(posts, shared)).abort_handle();
        Ok(Carrier { address, tasks: [accepting, posting] })
    }

    /// Where sources find this engine.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Sorts what the desk posts by connection, and opens those that begin here.
async fn post(mut posts: UnboundedReceiver<Post>, shared: Arc<Shared>) {
    // The tasks end with this one.
    let mut calls = JoinSet::new();
    while let Some(Post { id, at_source, send }) = posts.recv().await {
        while calls.try_join_next().is_some() {}
        let line = (id, at_source);
        match send {
            Send::Open(to) => {
                let (parcels, inlet) = unbounded_channel();
                shared.lines.lock().insert(line.clone(), parcels);
                calls.spawn(call(line, to, inlet, Arc::clone(&shared)));
            }
            Send::Close => drop(shared.lines.lock().remove(&line)),
            // One that has hung up takes nothing more.
            parcel => drop(shared.lines.lock().get(&line).map(|parcels| parcels.send(parcel))),
        }
    }
}

/// The source's end of a connection.
async fn call(line: Line, to: Endpoint, inlet: UnboundedReceiver<Send>, shared: Arc<Shared>) {
    let ended = match Link::connect(&to.host, to.port, &shared.terms).await {
        Ok(mut link) => converse(&line, &mut link, inlet, &shared).await,
        Err(error) => Err(error),
    };
    finish(line, ended, &shared).await;
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(MAX_LINKS));
    let mut answers = JoinSet::new();
    loop {
        // Never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        while answers.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                answers.spawn(async move {
                    answer(stream, &shared).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a migration");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The target's end of a connection.
async fn answer(stream: TcpStream, shared: &Arc<Shared>) {
    shared.faults.responsive().await;
    let (mut link, head) = match greet(stream, &shared.terms).await {
        Ok(greeted) => greeted,
        Err(error) => return tracing::info!(%error, "a call at the migration port came to nothing"),
    };
    let line = (head.migration.clone(), false);
    if !shared.engine.link_migration(head).await {
        let _ = link.sender.abort("no such migration is waited for here").await;
        return tracing::info!(id = line.0, "a source called for a migration that is not waited for");
    }
    let (parcels, inlet) = unbounded_channel();
    shared.lines.lock().insert(line.clone(), parcels);
    let ended = converse(&line, &mut link, inlet, shared).await;
    finish(line, ended, shared).await;
}

async fn greet(stream: TcpStream, terms: &Terms) -> Result<(Link, super::notes::Head), TransferError> {
    let mut link = Link::accept(stream, terms).await?;
    match link.receiver.next().await? {
        Incoming::Note(bytes) => match Note::decode(&bytes) {
            Some(Note::Head(head)) => Ok((link, *head)),
            _ => Err(TransferError::Unexpected("note before the migration was named")),
        },
        _ => Err(TransferError::Unexpected("frame before the migration was named")),
    }
}

/// Carries parcels both ways until this side closes the line.
async fn converse(
    line: &Line,
    link: &mut Link,
    inlet: UnboundedReceiver<Send>,
    shared: &Shared,
) -> Result<(), TransferError> {
    // Each on its own, so that a silence is measured from the last frame and not from the last thing that was sent.
    tokio::select! {
        sent = send_all(&mut link.sender, inlet, shared) => sent?,
        ended = hear_all(line, &mut link.receiver, shared) => return ended,
    }
    // Hanging up with something unread would cut off what was sent last.
    let _ = timeout(GOODBYE, async { while link.receiver.next().await.is_ok() {} }).await;
    Ok(())
}

/// Until the desk closes the line.
async fn send_all(
    sender: &mut Sender,
    mut inlet: UnboundedReceiver<Send>,
    shared: &Shared,
) -> Result<(), TransferError> {
    let mut beat = interval((shared.terms.deadline / 5).max(Duration::from_millis(1)));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let parcel = tokio::select! {
            parcel = inlet.recv() => parcel,
            _ = beat.tick() => {
                shared.faults.responsive().await;
                sender.beat().await?;
                continue;
            }
        };
        shared.faults.responsive().await;
        match parcel {
            Some(Send::Note(note)) => sender.note(&note.encode()).await?,
            Some(Send::Pages(mut pages)) => sender.pages(&mut pages).await?,
            Some(Send::Open(_)) => {}
            Some(Send::Close) | None => return Ok(()),
        }
    }
}

/// Until the connection ends.
async fn hear_all(line: &Line, receiver: &mut Receiver, shared: &Shared) -> Result<(), TransferError> {
    let inbox = Arc::new(Semaphore::new(INBOX));
    loop {
        let heard = match receiver.next().await? {
            Incoming::Note(bytes) => Heard::Note(Note::decode(&bytes).ok_or(TransferError::Unexpected("note"))?),
            Incoming::Pages(pages) => Heard::Pages(pages),
            Incoming::End { .. } | Incoming::Beat => continue,
        };
        // Never closed.
        let Ok(place) = Arc::clone(&inbox).acquire_owned().await else { return Ok(()) };
        shared.engine.hear_migration(line.0.clone(), line.1, heard, Some(place));
    }
}

async fn finish(line: Line, ended: Result<(), TransferError>, shared: &Shared) {
    shared.lines.lock().remove(&line);
    if let Err(error) = ended {
        tracing::info!(id = line.0, source = line.1, %error, "the connection of a migration has ended");
        shared.engine.hear_migration(line.0, line.1, Heard::Lost, None);
    }
}
