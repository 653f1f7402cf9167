//! Visits the object keys of a JSON text without parsing it.
//!
//! In valid JSON a quote inside a string is escaped, so an unescaped quote before a colon either ends a key, at
//! whatever depth, or begins a string whose first character is the colon. In the second case what lies between that
//! quote and the one before it is structure (`,` `:` `[` `{`), which equals no name that is looked for. Other colons
//! inside strings are passed over. On a 200-byte delta this costs some twelve short steps.

use super::{ChunkFacts, ChunkKind, Usage};

/// Keys with the rest of the text behind their colon, leading white space removed.
pub(super) struct Keys<'a> {
    data: &'a [u8],
    at: usize,
}

/// Longer keys are not ours, and the search for a key's start must be bounded.
const MAX_KEY_BYTES: usize = 40;

pub(super) fn keys(data: &[u8]) -> Keys<'_> {
    Keys { data, at: 0 }
}

impl<'a> Iterator for Keys<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let colon = self.at + memchr::memchr(b':', &self.data[self.at..])?;
            self.at = colon + 1;
            let before = trim_end(&self.data[..colon]);
            let Some((b'"', before)) = before.split_last() else { continue };
            if before.last() == Some(&b'\\') {
                continue;
            }
            let window = &before[before.len().saturating_sub(MAX_KEY_BYTES)..];
            let Some(start) = window.iter().rposition(|b| *b == b'"') else { continue };
            return Some((&window[start + 1..], trim_start(&self.data[colon + 1..])));
        }
    }
}

#[inline]
pub(super) fn trim_start(mut data: &[u8]) -> &[u8] {
    while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = data {
        data = rest;
    }
    data
}

#[inline]
fn trim_end(mut data: &[u8]) -> &[u8] {
    while let [rest @ .., b' ' | b'\t' | b'\n' | b'\r'] = data {
        data = rest;
    }
    data
}

/// Is the value that starts here `null`?
#[inline]
pub(super) fn is_null(value: &[u8]) -> bool {
    value.starts_with(b"null")
}

/// A string, array or object that starts here and has something in it.
#[inline]
pub(super) fn is_filled(value: &[u8]) -> bool {
    match value.split_first() {
        Some((b'"', rest)) => rest.first() != Some(&b'"'),
        Some((b'[', rest)) => trim_start(rest).first() != Some(&b']'),
        Some((b'{', rest)) => trim_start(rest).first() != Some(&b'}'),
        _ => false,
    }
}

/// The whole number that starts here.
#[inline]
pub(super) fn number(value: &[u8]) -> Option<u64> {
    let mut out: Option<u64> = None;
    for byte in value {
        match byte {
            b'0'..=b'9' => out = Some(out.unwrap_or(0).checked_mul(10)?.checked_add(u64::from(byte - b'0'))?),
            // 12.0 and 1e3 are no token counts that any engine writes.
            b'.' | b'e' | b'E' => return None,
            _ => break,
        }
    }
    out
}

/// Token counts met on the way, in whatever order and depth they come.
#[derive(Default)]
pub(super) struct Counts {
    prompt: Option<u64>,
    completion: Option<u64>,
    total: Option<u64>,
    cached: Option<u64>,
    tiers: Option<[u64; 3]>,
}

impl Counts {
    /// Takes the key if it is one of the counts.
    #[inline]
    pub(super) fn see(&mut self, key: &[u8], value: &[u8]) {
        match key {
            b"prompt_tokens" => self.prompt = number(value),
            b"completion_tokens" => self.completion = number(value),
            b"total_tokens" => self.total = number(value),
            b"cached_tokens" => self.cached = number(value),
            b"cached_tokens_details" => self.tiers = tiers(value),
            _ => {}
        }
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        let prompt_tokens = self.prompt?;
        // Embedding answers have a total and no completion.
        let completion_tokens = self.completion.or_else(|| self.total?.checked_sub(prompt_tokens))?;
        Usage { prompt_tokens, completion_tokens, cached_tokens: self.cached, cached_by_tier: self.tiers }.plausible()
    }
}

/// `{"device": 96, "host": 32, "storage": 0}` that starts here; flat, and with the device at least.
fn tiers(value: &[u8]) -> Option<[u64; 3]> {
    let inside = value.strip_prefix(b"{")?;
    let inside = &inside[..memchr::memchr(b'}', inside)?];
    let (mut device, mut others) = (None, [0; 2]);
    for (key, value) in keys(inside) {
        match key {
            b"device" => device = number(value),
            b"host" => others[0] = number(value).unwrap_or(0),
            b"storage" => others[1] = number(value).unwrap_or(0),
            _ => {}
        }
    }
    device.map(|device| [device, others[0], others[1]])
}

/// `[DONE]`, an object, or garbage.
#[inline]
pub(super) fn kind(data: &[u8]) -> ChunkKind {
    let data = trim_end(trim_start(data));
    match (data.first(), data.last()) {
        (Some(b'{'), Some(b'}')) => ChunkKind::Event,
        _ if data == b"[DONE]" => ChunkKind::Done,
        _ => ChunkKind::Garbage,
    }
}

/// Facts of an event that turned out not to be JSON.
pub(super) fn garbage() -> ChunkFacts {
    ChunkFacts { kind: ChunkKind::Garbage, ..ChunkFacts::default() }
}
