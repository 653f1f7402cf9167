//! KV pages from one engine process to another, over TCP.
//!
//! Prefill hands a prompt's pages to decode, and a migration hands a running request's pages to its next engine; both move
//! the same thing between two processes that must not trust each other's bytes. So every frame carries its length and a
//! checksum, every page the digest of its chain ([`plimsoll_cache::block_hash`]), and both sides say who they are
//! (model, page size, and that they know the shared secret) before the first page.
//!
//! The step loop never waits for a socket: at a step boundary it copies pages into or out of the buffers of a [`Pool`],
//! and tasks on the runtime move those. A buffer holds whole frames one after another, so that a megabyte of pages is one
//! write, and what one read brought goes to the step loop as it is. The pool bounds the memory; every wait on the peer
//! ends at a deadline.
//!
//! What a [`Link`] carries besides pages (which request, which room, how far) is a *note*, bytes that mean something to the
//! two ends only.

mod error;
mod expected;
mod frame;
mod identity;
mod link;
mod pages;
mod receiver;
mod sender;

#[cfg(test)]
mod tests;

pub use error::TransferError;
pub use expected::{Expected, with_tail};
pub use frame::{MAX_NOTE_BYTES, MAX_REASON_BYTES, VERSION};
pub use identity::{Identity, Secret};
pub use link::{Link, Terms};
pub use pages::{Page, Pages, Pool};
pub use receiver::{Incoming, Receiver};
pub use sender::Sender;
