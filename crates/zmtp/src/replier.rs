//! ROUTER, for questions that are answered with a row of messages.
//!
//! Every peer is answered by its own task at its own pace, so that one who reads slowly keeps nobody waiting.

use crate::connection::shake_hands;
use crate::message::encode;
use crate::{Frames, Limits, ProtocolError, Role};
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

const PAUSE: Duration = Duration::from_millis(100);

/// The answers to one question, made as they are sent.
pub type Replies = Box<dyn Iterator<Item = Frames> + Send>;

/// What answers: gets the frames of a question (an empty delimiter first, as DEALER and REQ send it), gives the frames of
/// every answer, the delimiter included. An empty row leaves the question unanswered.
type Answer = dyn Fn(&[bytes::Bytes]) -> Replies + Send + Sync;

/// A ROUTER socket. Dropping it closes all connections.
#[derive(Debug)]
pub struct Replier {
    task: JoinHandle<()>,
}

impl Replier {
    /// Serves peers that connect. To be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the runtime refuses the listener.
    pub fn bind(
        listener: StdListener,
        limits: Limits,
        answer: impl Fn(&[bytes::Bytes]) -> Replies + Send + Sync + 'static,
    ) -> std::io::Result<Replier> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        Ok(Replier { task: tokio::spawn(accept(listener, limits, Arc::new(answer))) })
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, limits: Limits, answer: Arc<Answer>) {
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = sessions.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if sessions.len() < limits.peers => {
                    let answer = Arc::clone(&answer);
                    sessions.spawn(async move {
                        if let Err(error) = session(stream, &limits, &*answer).await {
                            tracing::debug!(%error, "a peer that asks for a replay left");
                        }
                    });
                }
                Ok(_) => tracing::warn!(peers = limits.peers, "a peer was turned away: too many"),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a peer");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

async fn session(stream: TcpStream, limits: &Limits, answer: &Answer) -> Result<(), ProtocolError> {
    let (mut reader, mut writer) = shake_hands(stream, Role::Router, limits).await?;
    loop {
        let question = reader.message().await?;
        for frames in answer(&question) {
            writer.send(encode(&frames)).await?;
        }
    }
}
