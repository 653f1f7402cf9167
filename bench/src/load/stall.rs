//! Readers that stop reading: they take the first of the stream and then nothing, and keep the connection. What a
//! router buffers for them is seen in its memory.

use super::Args;
use super::ask::Ask;
use anyhow::ensure;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(super) async fn run(args: &Args) -> anyhow::Result<()> {
    let mut held = Vec::new();
    for index in 0..args.concurrency {
        let to = args.to[index as usize % args.to.len()];
        let mut ask = Ask::new(to, args.body_bytes, true, args.tokens);
        let mut stream = TcpStream::connect(to).await?;
        stream.write_all(ask.numbered(u64::from(index))).await?;
        let mut first = [0u8; 4096];
        let n = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut first)).await??;
        ensure!(first[..n].starts_with(b"HTTP/1.1 200 "), "{:.200}", String::from_utf8_lossy(&first[..n]));
        held.push(stream);
    }
    println!("{{\"held\":{}}}", held.len());
    tokio::time::sleep(Duration::from_millis(args.for_ms)).await;
    Ok(())
}
