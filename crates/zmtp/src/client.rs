//! SUB and DEALER: one connection to one publisher or replier.

use crate::connection::{Reader, Writer, pong, shake_hands};
use crate::message::{Incoming, encode};
use crate::{Endpoint, Frames, Limits, ProtocolError, Role};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connected SUB or DEALER socket. It does not connect again: whoever loses a subscription has missed messages and must
/// know.
pub struct Client {
    reader: Reader,
    writer: Writer,
}

impl Client {
    /// Connects and shakes hands.
    ///
    /// # Errors
    /// When nobody listens there, or not a partner of this role.
    pub async fn connect(endpoint: &Endpoint, role: Role, limits: &Limits) -> Result<Client, ProtocolError> {
        let connecting = timeout(limits.handshake, TcpStream::connect(endpoint.authority()));
        let stream = connecting.await.map_err(|_| ProtocolError::Slow)??;
        let (reader, writer) = shake_hands(stream, role, limits).await?;
        Ok(Client { reader, writer })
    }

    /// Asks a publisher for everything whose topic starts with `prefix`.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn subscribe(&mut self, prefix: &[u8]) -> Result<(), ProtocolError> {
        self.send(&[[&[1], prefix].concat()]).await
    }

    /// # Errors
    /// When the connection is lost.
    pub async fn send(&mut self, frames: &[impl AsRef<[u8]>]) -> Result<(), ProtocolError> {
        self.writer.send(encode(frames)).await
    }

    /// The next message. Can be dropped while it waits.
    ///
    /// # Errors
    /// When the connection is lost or the peer breaks the protocol or a limit.
    pub async fn recv(&mut self) -> Result<Frames, ProtocolError> {
        loop {
            match self.reader.next().await? {
                Incoming::Message(frames) => return Ok(frames),
                Incoming::Command { name, body } if &name[..] == b"PING" => self.writer.send(pong(&body)).await?,
                Incoming::Command { .. } => {}
            }
        }
    }
}
