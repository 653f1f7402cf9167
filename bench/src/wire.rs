//! The little of HTTP/1.1 that both ends of the benchmark need, written by hand: a library would cost the load
//! client and the fake engine more CPU than the gateway under test, on the same two cores.

use anyhow::{Context, bail};

/// Largest head accepted, in bytes.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;

/// How the end of a body is found (RFC 9112 section 6).
#[derive(Debug)]
pub enum Body {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

impl Body {
    /// Takes what belongs to this body from the front of `input` and hands its data to `data`. Returns how many
    /// bytes were taken and whether the body is complete.
    pub fn feed(&mut self, input: &[u8], mut data: impl FnMut(&[u8])) -> anyhow::Result<(usize, bool)> {
        match self {
            Body::Length(left) => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                if take > 0 {
                    data(&input[..take]);
                }
                *left -= take as u64;
                Ok((take, *left == 0))
            }
            Body::Chunked(chunked) => chunked.feed(input, data),
            Body::UntilClose => {
                data(input);
                Ok((input.len(), false))
            }
        }
    }
}

/// Length of the head, its blank line included, once it is complete.
pub fn head_end(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    match memchr::memmem::find(bytes, b"\r\n\r\n") {
        Some(at) => Ok(Some(at + 4)),
        None if bytes.len() > MAX_HEAD_BYTES => bail!("head is longer than {MAX_HEAD_BYTES} bytes"),
        None => Ok(None),
    }
}

/// Value of a header in a complete head; the first line is skipped.
pub fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    head.split(|&b| b == b'\n').skip(1).find_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        line[..colon].eq_ignore_ascii_case(name.as_bytes()).then(|| line[colon + 1..].trim_ascii())
    })
}

/// Framing that the head announces, if any.
pub fn framing(head: &[u8]) -> anyhow::Result<Option<Body>> {
    if header(head, "transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case(b"chunked")) {
        return Ok(Some(Body::Chunked(Chunked::default())));
    }
    let Some(value) = header(head, "content-length") else { return Ok(None) };
    let text = std::str::from_utf8(value).context("content-length is not text")?;
    Ok(Some(Body::Length(text.parse().with_context(|| format!("content-length is {text:?}"))?)))
}

/// Decoder of the chunked coding; data comes out as slices of the input, nothing is copied.
#[derive(Debug, Default)]
pub struct Chunked {
    at: At,
    /// Size line so far, then bytes left of the chunk.
    left: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum At {
    #[default]
    Size,
    Extension,
    Data,
    DataEnd,
    /// At the start of a trailer line.
    Trailer,
    /// Inside a trailer line.
    TrailerLine,
}

impl Chunked {
    fn feed(&mut self, input: &[u8], mut data: impl FnMut(&[u8])) -> anyhow::Result<(usize, bool)> {
        let mut pos = 0;
        while pos < input.len() {
            let byte = input[pos];
            if self.at == At::Data {
                let take = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len() - pos);
                data(&input[pos..pos + take]);
                pos += take;
                self.left -= take as u64;
                if self.left == 0 {
                    self.at = At::DataEnd;
                }
                continue;
            }
            pos += 1;
            match (self.at, byte) {
                (At::Size, b';') => self.at = At::Extension,
                (At::Size | At::Extension, b'\n') => self.at = if self.left == 0 { At::Trailer } else { At::Data },
                (At::Size, b'\r' | b' ') | (At::Extension, _) | (At::DataEnd | At::Trailer, b'\r') => {}
                (At::Size, digit) => {
                    let Some(value) = (digit as char).to_digit(16) else { bail!("chunk size has byte {digit:#04x}") };
                    self.left = self.left.checked_mul(16).context("chunk size is too large")? + u64::from(value);
                }
                (At::DataEnd, b'\n') => self.at = At::Size,
                (At::DataEnd, other) => bail!("chunk is followed by byte {other:#04x}"),
                (At::Trailer, b'\n') => return Ok((pos, true)),
                (At::TrailerLine, b'\n') => self.at = At::Trailer,
                (At::Trailer | At::TrailerLine, _) => self.at = At::TrailerLine,
                (At::Data, _) => bail!("chunk data was not taken"),
            }
        }
        Ok((pos, false))
    }
}

#[cfg(test)]
mod tests;
