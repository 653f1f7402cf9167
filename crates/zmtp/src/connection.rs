//! One peer: greeting, handshake, then messages both ways.

use crate::message::{Decoder, Incoming, encode_command};
use crate::{Frames, Limits, ProtocolError, Role};
use bytes::{Buf, Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

const GREETING_BYTES: usize = 64;
/// Where the version stands in a greeting, and the mechanism behind it.
const VERSION: usize = 10;
const MECHANISM: std::ops::Range<usize> = 12..32;

/// Shakes hands, within the limit's time.
pub(crate) async fn shake_hands(
    stream: TcpStream,
    role: Role,
    limits: &Limits,
) -> Result<(Reader, Writer), ProtocolError> {
    timeout(limits.handshake, shake(stream, role, limits)).await.unwrap_or(Err(ProtocolError::Slow))
}

async fn shake(stream: TcpStream, role: Role, limits: &Limits) -> Result<(Reader, Writer), ProtocolError> {
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&keepalive())?;
    let (read, write) = stream.into_split();
    let decoder = Decoder::new(limits.incoming_bytes);
    let mut reader = Reader { half: read, input: BytesMut::with_capacity(256), decoder };
    let mut writer = Writer { half: write, stalled: limits.stalled };
    writer.send(greeting()).await?;
    while reader.input.len() < GREETING_BYTES {
        reader.fill().await?;
        check_greeting(&reader.input)?;
    }
    reader.input.advance(GREETING_BYTES);
    writer.send(encode_command("READY", &properties(role))).await?;
    match reader.next().await? {
        Incoming::Command { name, body } if &name[..] == b"READY" => {
            let partner = socket_type(&body).ok_or(ProtocolError::Handshake)?;
            if !role.talks_to(&partner) {
                return Err(ProtocolError::Partner(String::from_utf8_lossy(&partner).into_owned()));
            }
        }
        _ => return Err(ProtocolError::Handshake),
    }
    Ok((reader, writer))
}

/// A subscriber says nothing: only this finds out that its publisher's machine has gone without a word, and keeps the way open
/// through whatever forgets silent connections. Noticed within half a minute.
fn keepalive() -> TcpKeepalive {
    let time = TcpKeepalive::new().with_time(Duration::from_secs(15));
    time.with_interval(Duration::from_secs(5)).with_retries(3)
}

fn greeting() -> Bytes {
    let mut greeting = [0; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[VERSION] = 3;
    greeting[MECHANISM.start..MECHANISM.start + 4].copy_from_slice(b"NULL");
    Bytes::copy_from_slice(&greeting)
}

/// Judges as much of a greeting as is there, so that what is no ZMTP at all is cut off at once.
fn check_greeting(input: &[u8]) -> Result<(), ProtocolError> {
    let at = |index: usize, right: fn(u8) -> bool| input.get(index).is_none_or(|byte| right(*byte));
    let signed = at(0, |byte| byte == 0xff) && at(9, |byte| byte & 1 == 1);
    let version = at(VERSION, |byte| byte >= 3);
    let mut null = [0; 20];
    null[..4].copy_from_slice(b"NULL");
    let mechanism = input.get(MECHANISM).is_none_or(|mechanism| mechanism == null);
    if signed && version && mechanism { Ok(()) } else { Err(ProtocolError::Greeting) }
}

fn properties(role: Role) -> Vec<u8> {
    let mut body = Vec::new();
    let mut put = |name: &str, value: &str| {
        body.push(name.len() as u8);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value.as_bytes());
    };
    put("Socket-Type", role.name());
    if matches!(role, Role::Router | Role::Dealer) {
        put("Identity", "");
    }
    body
}

/// The `Socket-Type` among a READY's properties, whose names differ in case between peers.
fn socket_type(mut body: &[u8]) -> Option<Vec<u8>> {
    loop {
        let (length, rest) = body.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value.to_vec());
        }
        body = rest;
    }
}

pub(crate) struct Reader {
    half: OwnedReadHalf,
    input: BytesMut,
    decoder: Decoder,
}

impl Reader {
    /// Can be dropped while it waits: what has arrived stays.
    pub(crate) async fn next(&mut self) -> Result<Incoming, ProtocolError> {
        loop {
            if let Some(incoming) = self.decoder.next(&mut self.input)? {
                return Ok(incoming);
            }
            self.fill().await?;
        }
    }

    /// The next message; commands other than messages are passed over.
    pub(crate) async fn message(&mut self) -> Result<Frames, ProtocolError> {
        loop {
            if let Incoming::Message(frames) = self.next().await? {
                return Ok(frames);
            }
        }
    }

    async fn fill(&mut self) -> Result<(), ProtocolError> {
        // Memory follows what has arrived, not what a head promises.
        self.input.reserve(4096);
        match self.half.read_buf(&mut self.input).await? {
            0 => Err(ProtocolError::Closed),
            _ => Ok(()),
        }
    }
}

pub(crate) struct Writer {
    half: OwnedWriteHalf,
    stalled: Duration,
}

impl Writer {
    /// Writes all of it, as long as the peer goes on taking some.
    pub(crate) async fn send(&mut self, mut wire: Bytes) -> Result<(), ProtocolError> {
        while wire.has_remaining() {
            let written = timeout(self.stalled, self.half.write_buf(&mut wire)).await;
            if written.map_err(|_| ProtocolError::Slow)?? == 0 {
                return Err(ProtocolError::Closed);
            }
        }
        Ok(())
    }
}

/// The answer to a PING: its context comes back.
pub(crate) fn pong(ping_body: &[u8]) -> Bytes {
    // Two bytes of time to live, then at most 16 of context.
    let context = ping_body.get(2..).unwrap_or_default();
    encode_command("PONG", &context[..context.len().min(16)])
}
