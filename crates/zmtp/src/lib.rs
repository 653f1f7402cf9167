//! ZeroMQ's wire protocol over TCP, as much of it as KV events need: PUB and SUB, ROUTER and DEALER.
//!
//! Both stock engines publish what enters and leaves their KV cache over ZMQ. The socket of a publisher is open to whoever
//! can reach the port, so everything a peer can make us hold is bounded here: a frame before its first byte is stored,
//! the queue of a slow subscriber (in messages and bytes, drops are counted), the number of peers, and every wait. That is
//! why this is not a general library: `docs/decisions/0006-own-zmtp.md`.
//!
//! Protocol: ZMTP 3.0 with the NULL mechanism (RFC 23), which libzmq 4 speaks to every peer that offers no more, and the
//! pipeline of RFC 29 (PUB/SUB) and RFC 28 (ROUTER/DEALER).

mod client;
mod connection;
pub mod endpoint;
pub mod message;
mod publisher;
mod replier;

pub use client::Client;
pub use endpoint::{Endpoint, EndpointError};
pub use message::{Frames, ProtocolError, encode};
pub use publisher::{Publisher, PublisherStats};
pub use replier::{Replier, Replies};

use std::time::Duration;

/// What one socket may hold and how long it waits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Peers served at once; further ones are turned away.
    pub peers: usize,
    /// Largest incoming message, all frames together.
    pub incoming_bytes: usize,
    /// Messages that may wait for one subscriber.
    pub queued_messages: usize,
    /// Bytes that may wait for one subscriber.
    pub queued_bytes: usize,
    /// Topics of one subscriber.
    pub subscriptions: usize,
    /// From the connection to the end of the handshake.
    pub handshake: Duration,
    /// A peer that takes not one byte for this long is cut off.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            peers: 256,
            incoming_bytes: 64 << 10,
            queued_messages: 100_000,
            queued_bytes: 64 << 20,
            subscriptions: 256,
            handshake: Duration::from_secs(10),
            stalled: Duration::from_secs(60),
        }
    }
}

/// What a socket is, as it says in its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Pub,
    Sub,
    Router,
    Dealer,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Pub => "PUB",
            Role::Sub => "SUB",
            Role::Router => "ROUTER",
            Role::Dealer => "DEALER",
        }
    }

    /// Whether a peer of that type may talk to this one.
    pub(crate) fn talks_to(self, peer: &[u8]) -> bool {
        let partners: &[&[u8]] = match self {
            Role::Pub => &[b"SUB", b"XSUB"],
            Role::Sub => &[b"PUB", b"XPUB"],
            Role::Router => &[b"DEALER", b"REQ", b"ROUTER"],
            Role::Dealer => &[b"ROUTER", b"DEALER", b"REP"],
        };
        partners.contains(&peer)
    }
}
