//! A connection between two engines after both have said who they are.

use super::error::TransferError;
use super::frame::{Frame, Hello};
use super::identity::{Identity, Secret};
use super::pages::Pool;
use super::receiver::{Arrived, Receiver};
use super::sender::Sender;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What an engine asks of every link.
#[derive(Clone, Debug)]
pub struct Terms {
    pub identity: Identity,
    pub secret: Option<Secret>,
    /// For connecting, for each write, and between two frames of the peer.
    pub deadline: Duration,
    /// Of the engine's own page size.
    pub pool: Pool,
}

/// Both halves of a connection. The peer has the same model and page size and knows the secret, unless it came from
/// [`Link::accept_any`] or [`Link::connect_any`].
pub struct Link {
    pub sender: Sender,
    pub receiver: Receiver,
    /// Who the peer says it is.
    pub peer: Identity,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Caller,
    Called,
}

impl Link {
    /// Calls an engine.
    ///
    /// # Errors
    /// When it cannot be reached, does not answer in time, or must not be talked to.
    pub async fn connect(host: &str, port: u16, terms: &Terms) -> Result<Self, TransferError> {
        Link::connect_any(host, port, terms).await?.checked(terms).await
    }

    /// As [`Self::connect`], but an engine of another model or page size is not refused: it can be told what it was
    /// called for. Pages cannot be exchanged with it.
    ///
    /// # Errors
    /// When it cannot be reached, does not answer in time, speaks another version, or does not know the secret.
    pub async fn connect_any(host: &str, port: u16, terms: &Terms) -> Result<Self, TransferError> {
        let connecting = timeout(terms.deadline, TcpStream::connect((host, port)));
        let stream = match connecting.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(TransferError::Io { what: "cannot connect", error: error.to_string() }),
            Err(_) => return Err(TransferError::Deadline { what: "connection", after: terms.deadline }),
        };
        Link::greet(stream, terms, Side::Caller).await
    }

    /// Answers an engine that called.
    ///
    /// # Errors
    /// When it does not greet in time or must not be talked to; it is told why.
    pub async fn accept(stream: TcpStream, terms: &Terms) -> Result<Self, TransferError> {
        Link::accept_any(stream, terms).await?.checked(terms).await
    }

    /// As [`Self::accept`], but with peers of another model or page size too: they know the secret, and can be asked
    /// what they want before they are refused. Pages cannot be exchanged with them.
    ///
    /// # Errors
    /// When it does not greet in time, speaks another version, or does not know the secret.
    pub async fn accept_any(stream: TcpStream, terms: &Terms) -> Result<Self, TransferError> {
        Link::greet(stream, terms, Side::Called).await
    }

    async fn checked(mut self, terms: &Terms) -> Result<Self, TransferError> {
        if let Err(error) = terms.identity.check(&self.peer) {
            // It may have gone already.
            let _ = self.sender.abort(&error.to_string()).await;
            return Err(error);
        }
        Ok(self)
    }

    async fn greet(stream: TcpStream, terms: &Terms, side: Side) -> Result<Self, TransferError> {
        stream.set_nodelay(true).map_err(|error| TransferError::io("cannot set up the connection", &error))?;
        let (read, write) = stream.into_split();
        let mut sender = Sender::new(write, terms.deadline);
        let mut receiver = Receiver::new(read, terms.deadline, terms.pool.clone());
        let own = Hello { identity: terms.identity, secret: terms.secret.is_some(), nonce: rand::random() };
        if side == Side::Caller {
            sender.frame(&Frame::Hello(own)).await?;
        }
        let peer = match exchange(&mut sender, &mut receiver, terms, &own, side).await {
            Ok(peer) => peer,
            Err(error) => {
                if error.is_mismatch() {
                    // It may have gone already.
                    let _ = sender.abort(&error.to_string()).await;
                }
                return Err(error);
            }
        };
        Ok(Link { sender, receiver, peer })
    }
}

async fn exchange(
    sender: &mut Sender,
    receiver: &mut Receiver,
    terms: &Terms,
    own: &Hello,
    side: Side,
) -> Result<Identity, TransferError> {
    let peer = match receiver.greeting().await.map_err(stranger)? {
        Arrived::Hello(peer) => peer,
        _ => return Err(TransferError::Unexpected("frame before the greeting")),
    };
    if peer.secret != own.secret {
        return Err(TransferError::Secret);
    }
    if side == Side::Called {
        sender.frame(&Frame::Hello(*own)).await?;
    }
    let Some(secret) = &terms.secret else { return Ok(peer.identity) };
    let (ours, theirs) = (own.payload(), peer.payload());
    if side == Side::Caller {
        sender.frame(&Frame::Proof(secret.proof(&ours, &theirs))).await?;
    }
    match receiver.greeting().await? {
        // A reflected greeting would make a reflected proof fit.
        Arrived::Proof(proof) if peer.nonce != own.nonce && secret.verify(&proof, &theirs, &ours) => {}
        Arrived::Proof(_) => return Err(TransferError::Secret),
        _ => return Err(TransferError::Unexpected("frame before the proof")),
    }
    if side == Side::Called {
        sender.frame(&Frame::Proof(secret.proof(&ours, &theirs))).await?;
    }
    Ok(peer.identity)
}

/// Bytes that are no frame at all, where a greeting should be, are another protocol.
fn stranger(error: TransferError) -> TransferError {
    match error {
        TransferError::Kind(_)
        | TransferError::Oversized { .. }
        | TransferError::Malformed(_)
        | TransferError::Checksum => TransferError::Stranger,
        other => other,
    }
}
