//! The wire: frames of known length.
//!
//! `length u32 | kind u8 | payload | crc u32`, integers little-endian. The length counts what follows it; the checksum is
//! CRC-32C over everything before it, so that a flipped bit is found wherever it is. Kinds and payloads:
//!
//! | kind | payload |
//! |---|---|
//! | 1 hello | `PLKV`, version u16, secret in use u8, 0 u8, nonce 16, model 32, page tokens u32, page bytes u32 |
//! | 2 proof | 32 bytes, see [`super::Secret`] |
//! | 3 note | up to [`MAX_NOTE_BYTES`] |
//! | 4 page | index u32, chain digest 32, bytes |
//! | 5 end | pages sent u32 |
//! | 6 abort | why, UTF-8, up to [`MAX_REASON_BYTES`] |
//! | 7 beat | nothing: the sender is alive and has no news |

use super::error::TransferError;
use super::identity::Identity;
use plimsoll_cache::Digest;

/// Changes with every change of the frames or of what the notes of this crate mean.
pub const VERSION: u16 = 1;
pub const MAX_NOTE_BYTES: usize = 1 << 20;
pub const MAX_REASON_BYTES: usize = 1024;

const MAGIC: [u8; 4] = *b"PLKV";
const HELLO: u8 = 1;
const PROOF: u8 = 2;
const NOTE: u8 = 3;
const PAGE: u8 = 4;
const END: u8 = 5;
const ABORT: u8 = 6;
const BEAT: u8 = 7;

/// Length and kind.
const HEAD: usize = 5;
const CRC: usize = 4;
/// Index and digest of a page.
const PAGE_HEAD: usize = 4 + 32;
pub(crate) const HELLO_BYTES: usize = 64;
/// Greetings of later versions may be longer; their version is to be read, not their rest.
const MAX_HELLO_BYTES: usize = 256;
/// What a frame has around its payload.
pub(crate) const AROUND: usize = HEAD + CRC;
/// What a page frame has around the page.
pub(crate) const AROUND_PAGE: usize = AROUND + PAGE_HEAD;
/// Where the page begins in its frame.
const PAGE_AT: usize = HEAD + PAGE_HEAD;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) identity: Identity,
    pub(crate) secret: bool,
    pub(crate) nonce: [u8; 16],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Hello(Hello),
    Proof(Digest),
    Note(&'a [u8]),
    /// At `index` pages from the start of the sequence.
    Page {
        index: u32,
        digest: Digest,
        bytes: &'a [u8],
    },
    End {
        pages: u32,
    },
    Abort(&'a str),
    Beat,
}

/// What the bytes so far hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// A whole frame, and its length on the wire.
    Frame(Frame<'a>, usize),
    /// The frame that begins here has this many bytes in all; more than there are.
    Needs(usize),
}

/// Reads the frame at the start of `bytes`.
///
/// # Errors
/// When no bytes that could follow make it a frame.
pub(crate) fn parse(bytes: &[u8], page_bytes: usize) -> Result<Parsed<'_>, TransferError> {
    let Some((head, _)) = bytes.split_first_chunk::<HEAD>() else { return Ok(Parsed::Needs(HEAD)) };
    let [a, b, c, d, kind] = *head;
    let total = 4 + u32::from_le_bytes([a, b, c, d]) as usize;
    let limit = AROUND
        + match kind {
            HELLO => MAX_HELLO_BYTES,
            PROOF => 32,
            NOTE => MAX_NOTE_BYTES,
            PAGE => PAGE_HEAD + page_bytes,
            END => 4,
            ABORT => MAX_REASON_BYTES,
            BEAT => 0,
            other => return Err(TransferError::Kind(other)),
        };
    if total > limit {
        return Err(TransferError::Oversized { bytes: total, limit });
    }
    if total < limit && !matches!(kind, HELLO | NOTE | ABORT) || total < AROUND {
        return Err(TransferError::Malformed("too short for its kind"));
    }
    if bytes.len() < total {
        return Ok(Parsed::Needs(total));
    }
    let (covered, crc) = bytes[..total].split_at(total - CRC);
    if crc != crc32c::crc32c(covered).to_le_bytes() {
        return Err(TransferError::Checksum);
    }
    Ok(Parsed::Frame(meaning(kind, &covered[HEAD..])?, total))
}

fn meaning(kind: u8, payload: &[u8]) -> Result<Frame<'_>, TransferError> {
    let mut rest = Cut(payload);
    Ok(match kind {
        HELLO => Frame::Hello(hello(rest)?),
        PROOF => Frame::Proof(rest.array()?),
        NOTE => Frame::Note(payload),
        PAGE => Frame::Page { index: rest.u32()?, digest: rest.array()?, bytes: rest.0 },
        END => Frame::End { pages: rest.u32()? },
        ABORT => {
            Frame::Abort(str::from_utf8(payload).map_err(|_| TransferError::Malformed("a reason that is no text"))?)
        }
        _ => Frame::Beat,
    })
}

fn hello(mut rest: Cut<'_>) -> Result<Hello, TransferError> {
    if rest.array()? != MAGIC {
        return Err(TransferError::Stranger);
    }
    let theirs = u16::from_le_bytes(rest.array()?);
    if theirs != VERSION {
        return Err(TransferError::Version { theirs });
    }
    let [secret, _] = rest.array()?;
    let nonce = rest.array()?;
    let identity = Identity { model: rest.array()?, page_tokens: rest.u32()?, page_bytes: rest.u32()? };
    if !rest.0.is_empty() {
        return Err(TransferError::Malformed("too long for its kind"));
    }
    Ok(Hello { secret: secret != 0, nonce, identity })
}

struct Cut<'a>(&'a [u8]);

impl Cut<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], TransferError> {
        let (array, rest) =
            self.0.split_first_chunk::<N>().ok_or(TransferError::Malformed("too short for its kind"))?;
        self.0 = rest;
        Ok(*array)
    }

    fn u32(&mut self) -> Result<u32, TransferError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
}

impl Hello {
    pub(crate) fn payload(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[6] = u8::from(self.secret);
        out[8..24].copy_from_slice(&self.nonce);
        out[24..56].copy_from_slice(&self.identity.model);
        out[56..60].copy_from_slice(&self.identity.page_tokens.to_le_bytes());
        out[60..].copy_from_slice(&self.identity.page_bytes.to_le_bytes());
        out
    }
}

/// Appends a frame. Pages are written in place instead, by [`open_page`].
pub(crate) fn write(out: &mut Vec<u8>, frame: &Frame<'_>) {
    let start = out.len();
    out.extend([0; 4]);
    match frame {
        Frame::Hello(hello) => {
            out.push(HELLO);
            out.extend(hello.payload());
        }
        Frame::Proof(proof) => {
            out.push(PROOF);
            out.extend(proof);
        }
        Frame::Note(note) => {
            out.push(NOTE);
            out.extend(*note);
        }
        Frame::Page { index, digest, bytes } => {
            out.push(PAGE);
            out.extend(index.to_le_bytes());
            out.extend(digest);
            out.extend(*bytes);
        }
        Frame::End { pages } => {
            out.push(END);
            out.extend(pages.to_le_bytes());
        }
        Frame::Abort(reason) => {
            out.push(ABORT);
            out.extend(&reason.as_bytes()[..reason.floor_char_boundary(MAX_REASON_BYTES)]);
        }
        Frame::Beat => out.push(BEAT),
    }
    let length = (out.len() - start - 4 + CRC) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c(&out[start..]);
    out.extend(crc.to_le_bytes());
}

/// Writes the head of a page frame into a slot of exactly its size and returns where the page's bytes go.
pub(crate) fn open_page<'a>(slot: &'a mut [u8], index: u32, digest: &Digest) -> &'a mut [u8] {
    let length = (slot.len() - 4) as u32;
    slot[..4].copy_from_slice(&length.to_le_bytes());
    slot[4] = PAGE;
    slot[HEAD..HEAD + 4].copy_from_slice(&index.to_le_bytes());
    slot[HEAD + 4..PAGE_AT].copy_from_slice(digest);
    let end = slot.len() - CRC;
    &mut slot[PAGE_AT..end]
}

/// Writes the checksum of a page frame whose bytes are in place.
pub(crate) fn close_page(slot: &mut [u8]) {
    let (covered, crc) = slot.split_at_mut(slot.len() - CRC);
    crc.copy_from_slice(&crc32c::crc32c(covered).to_le_bytes());
}

/// Index, digest and bytes of a slot that holds a page frame.
pub(crate) fn read_page(slot: &[u8]) -> (u32, &[u8], &[u8]) {
    let index = slot[HEAD..HEAD + 4].try_into().map_or(0, u32::from_le_bytes);
    (index, &slot[HEAD + 4..PAGE_AT], &slot[PAGE_AT..slot.len() - CRC])
}
