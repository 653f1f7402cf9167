//! ZMTP frames: a byte stream cut up in whatever way gives the same messages, those that a slow reading of all of it gives, and no peer makes us
//! wait for more than the limit.

use bytes::{Bytes, BytesMut};
use plimsoll_zmtp::message::{Decoder, Incoming, MOST_FRAMES, encode};

/// Small, so that inputs reach it.
const LIMIT_BYTES: usize = 300;

/// The first byte says how the rest arrives.
pub fn run(data: &[u8]) {
    let Some((cut, stream)) = data.split_first() else { return };
    let whole = decode([stream]);
    assert_eq!(whole, slow(stream));
    let pieces = stream.chunks(usize::from(*cut).max(1));
    assert_eq!(decode(pieces), whole);
    round_trip(stream);
}

/// What came of a stream: its messages, and whether it can go on.
#[derive(Debug, PartialEq)]
struct Read {
    messages: Vec<Incoming>,
    broken: bool,
}

fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Read {
    let (mut decoder, mut input) = (Decoder::new(LIMIT_BYTES), BytesMut::new());
    let mut messages = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            match decoder.next(&mut input) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => return Read { messages, broken: true },
            }
        }
        // A frame that can still come to its end is all that is waited for.
        assert!(input.len() < 9 + LIMIT_BYTES, "{} bytes wait", input.len());
    }
    Read { messages, broken: false }
}

/// All of it at once, frame by frame, as RFC 23 says.
fn slow(mut rest: &[u8]) -> Read {
    let (mut messages, mut frames) = (Vec::new(), Vec::<Bytes>::new());
    let broken = |messages| Read { messages, broken: true };
    while let Some(flags) = rest.first().copied() {
        let (more, long, command) = (flags & 1 == 1, flags & 2 == 2, flags & 4 == 4);
        if flags > 7 {
            return broken(messages);
        }
        let head = if long { 9 } else { 2 };
        if rest.len() < head {
            break;
        }
        let length = if long { u64::from_be_bytes(rest[1..9].try_into().unwrap_or_default()) } else { rest[1].into() };
        let before: usize = frames.iter().map(Bytes::len).sum();
        if u128::from(length) + before as u128 > LIMIT_BYTES as u128 || frames.len() == MOST_FRAMES {
            return broken(messages);
        }
        let end = head + length as usize;
        if rest.len() < end {
            break;
        }
        let body = Bytes::copy_from_slice(&rest[head..end]);
        rest = &rest[end..];
        if command {
            let name = body.first().map_or(0, |length| usize::from(*length));
            if more || !frames.is_empty() || name == 0 || body.len() <= name {
                return broken(messages);
            }
            messages.push(Incoming::Command { name: body.slice(1..=name), body: body.slice(1 + name..) });
            continue;
        }
        frames.push(body);
        if !more {
            messages.push(Incoming::Message(std::mem::take(&mut frames)));
        }
    }
    Read { messages, broken: false }
}

/// What is written can be read, whatever is in it.
fn round_trip(data: &[u8]) {
    let frames: Vec<&[u8]> = data[..data.len().min(LIMIT_BYTES)].chunks(40).collect();
    if frames.is_empty() {
        return;
    }
    let wire = encode(&frames);
    let expected = frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
    assert_eq!(decode([&wire[..]]), Read { messages: vec![Incoming::Message(expected)], broken: false });
}
