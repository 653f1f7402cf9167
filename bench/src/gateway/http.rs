//! Blocking HTTP for the runner's own few calls (readiness, settings of the fake engines).

use crate::wire;
use anyhow::{Context, ensure};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Status and body of one request on a connection of its own.
pub fn call(to: SocketAddr, method: &str, target: &str, body: &str) -> anyhow::Result<(u16, Vec<u8>)> {
    let patience = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&to, patience)?;
    stream.set_read_timeout(Some(patience))?;
    let length = body.len();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes())?;
    let (mut all, mut buffer) = (Vec::new(), [0u8; 16 * 1024]);
    let head_end = loop {
        if let Some(end) = wire::head_end(&all)? {
            break end;
        }
        let n = stream.read(&mut buffer)?;
        ensure!(n > 0, "closed before an answer");
        all.extend_from_slice(&buffer[..n]);
    };
    let status = std::str::from_utf8(all.get(9..12).context("status line is short")?)?.parse()?;
    let mut framing = wire::framing(&all[..head_end])?.unwrap_or(wire::Body::UntilClose);
    let mut answer = Vec::new();
    let (_, mut done) = framing.feed(&all[head_end..], |data| answer.extend_from_slice(data))?;
    while !done {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            ensure!(matches!(framing, wire::Body::UntilClose), "closed within an answer");
            break;
        }
        (_, done) = framing.feed(&buffer[..n], |data| answer.extend_from_slice(data))?;
    }
    Ok((status, answer))
}
