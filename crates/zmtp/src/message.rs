//! Frames: how a message is cut up, and how it is read back from bytes that nobody vouches for.

use bytes::{Buf, BufMut, Bytes, BytesMut};

#[cfg(test)]
mod tests;

/// The parts of a message.
pub type Frames = Vec<Bytes>;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Most frames of one incoming message: an empty one costs no bytes, but a place.
pub const MOST_FRAMES: usize = 64;

/// Why a peer was cut off.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    #[error("the peer does not speak ZMTP 3 with the NULL mechanism")]
    Greeting,
    #[error("the peer's handshake is broken")]
    Handshake,
    #[error("a {0} socket does not talk to this one")]
    Partner(String),
    #[error("a message of {bytes} bytes, at most {limit} are taken")]
    TooLong { bytes: u64, limit: usize },
    #[error("a message of more than {MOST_FRAMES} frames")]
    TooManyFrames,
    #[error("a frame with flags {0:#04x}")]
    Flags(u8),
    #[error("a command inside a message, or one of several frames")]
    Command,
    #[error("the peer took too long")]
    Slow,
    #[error("the peer closed the connection")]
    Closed,
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The bytes of one message.
#[must_use]
pub fn encode(frames: &[impl AsRef<[u8]>]) -> Bytes {
    let bytes: usize = frames.iter().map(|frame| frame.as_ref().len() + 9).sum();
    let mut out = BytesMut::with_capacity(bytes);
    for (index, frame) in frames.iter().enumerate() {
        let more = if index + 1 < frames.len() { MORE } else { 0 };
        put_frame(&mut out, more, frame.as_ref());
    }
    out.freeze()
}

/// The bytes of a command: its name and what belongs to it.
pub(crate) fn encode_command(name: &str, body: &[u8]) -> Bytes {
    let mut inner = BytesMut::with_capacity(1 + name.len() + body.len());
    inner.put_u8(name.len() as u8);
    inner.put_slice(name.as_bytes());
    inner.put_slice(body);
    let mut out = BytesMut::with_capacity(inner.len() + 9);
    put_frame(&mut out, COMMAND, &inner);
    out.freeze()
}

fn put_frame(out: &mut BytesMut, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => {
            out.put_u8(flags);
            out.put_u8(length);
        }
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(body.len() as u64);
        }
    }
    out.put_slice(body);
}

/// What a peer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    Message(Frames),
    Command { name: Bytes, body: Bytes },
}

/// Cuts a byte stream into messages. Holds no more than the limit beyond what it was given.
#[derive(Debug)]
pub struct Decoder {
    limit_bytes: usize,
    frames: Frames,
    bytes: usize,
}

impl Decoder {
    /// `limit_bytes`: largest message, all frames together.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Decoder { limit_bytes, frames: Vec::new(), bytes: 0 }
    }

    /// The next whole message at the front of `input`; `None` when more bytes are needed.
    ///
    /// # Errors
    /// When the stream breaks the protocol or a limit; it cannot be read on then. A frame's length is judged before any of
    /// its bytes are waited for.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Incoming>, ProtocolError> {
        loop {
            let Some(flags) = input.first().copied() else { return Ok(None) };
            if flags & !(MORE | LONG | COMMAND) != 0 {
                return Err(ProtocolError::Flags(flags));
            }
            let head = if flags & LONG != 0 { 9 } else { 2 };
            if input.len() < head {
                return Ok(None);
            }
            let length = match input[1..head] {
                [short] => u64::from(short),
                ref long => long.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)),
            };
            let total = length.saturating_add(self.bytes as u64);
            let Some(body) = usize::try_from(length).ok().filter(|_| total <= self.limit_bytes as u64) else {
                return Err(ProtocolError::TooLong { bytes: total, limit: self.limit_bytes });
            };
            if self.frames.len() >= MOST_FRAMES {
                return Err(ProtocolError::TooManyFrames);
            }
            if input.len() < head + body {
                return Ok(None);
            }
            input.advance(head);
            let body = input.split_to(body).freeze();
            if flags & COMMAND != 0 {
                if flags & MORE != 0 || !self.frames.is_empty() {
                    return Err(ProtocolError::Command);
                }
                return command(&body).map(Some);
            }
            self.bytes += body.len();
            self.frames.push(body);
            if flags & MORE == 0 {
                self.bytes = 0;
                return Ok(Some(Incoming::Message(std::mem::take(&mut self.frames))));
            }
        }
    }
}

fn command(body: &Bytes) -> Result<Incoming, ProtocolError> {
    let length = body.first().map(|length| usize::from(*length)).ok_or(ProtocolError::Command)?;
    if length == 0 || body.len() < 1 + length {
        return Err(ProtocolError::Command);
    }
    Ok(Incoming::Command { name: body.slice(1..1 + length), body: body.slice(1 + length..) })
}
