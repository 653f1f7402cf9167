//! What one end sends is what the other takes; anything else is refused and harms nothing.

use super::frame::{self, Frame, Hello, Parsed};
use super::*;
use plimsoll_cache::{Chain, Digest};
use proptest::prelude::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

mod decoder;
mod links;

const PAGE_BYTES: usize = 96;

fn terms() -> Terms {
    Terms {
        identity: Identity { model: [7; 32], page_tokens: 16, page_bytes: PAGE_BYTES as u32 },
        secret: None,
        deadline: Duration::from_secs(20),
        pool: Pool::new(PAGE_BYTES, 4),
    }
}

fn digest(index: u32) -> Digest {
    let mut digest = [0; 32];
    digest[..4].copy_from_slice(&index.to_le_bytes());
    digest
}
