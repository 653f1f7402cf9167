//! The name of a KV block as vLLM gives it, with `--prefix-caching-hash-algo sha256_cbor`, the one algorithm that does
//! not depend on Python.
//!
//! A block's digest is SHA-256 over the canonical CBOR of `[digest before it, [token ids], extra keys or null]`; before the
//! first block stands the digest of the text `vllm-none-hash` (of `$PYTHONHASHSEED` where that is set). Events carry
//! the last 8 bytes. Rule and golden vectors: vLLM 0.32, `v1/core/kv_cache_utils.py`.

use crate::Digest;
use sha2::{Digest as _, Sha256};

#[cfg(test)]
mod tests;

/// What stands before the first block when no hash seed is set.
pub const NONE_SEED: &str = "vllm-none-hash";

/// What distinguishes blocks of equal tokens. vLLM writes each as a tagged list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// Of the request; vLLM puts it into the first block only, the chain carries it on.
    CacheSalt(&'a str),
    /// Of the adapter, in every block.
    Lora { name: &'a str, path: &'a str },
    /// Not vLLM's: any other text that must not share KV.
    Other { tag: &'a str, value: &'a str },
}

/// Digest of what stands before the first block.
#[must_use]
pub fn none_digest(seed: &str) -> Digest {
    let mut cbor = Vec::with_capacity(seed.len() + 2);
    text(&mut cbor, seed);
    Sha256::digest(&cbor).into()
}

/// Digest of one block, given the one before it ([`none_digest`] for the first).
#[must_use]
pub fn block_digest(previous: &Digest, tokens: &[u32], extra: &[ExtraKey<'_>]) -> Digest {
    let mut cbor = Vec::with_capacity(48 + tokens.len() * 3);
    head(&mut cbor, ARRAY, 3);
    head(&mut cbor, BYTES, previous.len() as u64);
    cbor.extend_from_slice(previous);
    head(&mut cbor, ARRAY, tokens.len() as u64);
    for token in tokens {
        head(&mut cbor, UNSIGNED, u64::from(*token));
    }
    if extra.is_empty() {
        cbor.push(NULL);
    } else {
        head(&mut cbor, ARRAY, extra.len() as u64);
        for key in extra {
            match key {
                ExtraKey::CacheSalt(salt) => list(&mut cbor, &["cache_salt", salt]),
                ExtraKey::Lora { name, path } => list(&mut cbor, &["lora", name, path]),
                ExtraKey::Other { tag, value } => list(&mut cbor, &[tag, value]),
            }
        }
    }
    Sha256::digest(&cbor).into()
}

/// What vLLM's events call a block: the last 8 bytes of its digest, big-endian, unsigned.
#[must_use]
pub fn event_hash(digest: &Digest) -> u64 {
    digest[24..].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

const UNSIGNED: u8 = 0;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const NULL: u8 = 0xf6;

/// A CBOR head: major type and its number in the fewest bytes.
fn head(out: &mut Vec<u8>, major: u8, number: u64) {
    let major = major << 5;
    let bytes = number.to_be_bytes();
    match number {
        0..24 => out.push(major | number as u8),
        24..0x100 => out.extend_from_slice(&[major | 24, bytes[7]]),
        0x100..0x1_0000 => {
            out.push(major | 25);
            out.extend_from_slice(&bytes[6..]);
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(major | 26);
            out.extend_from_slice(&bytes[4..]);
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&bytes);
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    head(out, TEXT, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn list(out: &mut Vec<u8>, texts: &[&str]) {
    head(out, ARRAY, texts.len() as u64);
    for one in texts {
        text(out, one);
    }
}
