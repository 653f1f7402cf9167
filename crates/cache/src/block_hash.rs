//! The name of a KV block: SGLang's chained page digest.
//!
//! A block's KV depends on every token before it, so its name must too: the digest of page *i* covers the digest of page
//! *i - 1* and the token ids of page *i*. A router that computes the same chain can tell what an engine holds from the
//! engine's events alone. Rule and golden vectors: SGLang 0.5.23, `mem_cache/utils.py`, `disaggregation/kv_events.py`.
//!
//! Tenants that must not share KV get a chain of their own by seeding it ([`salt_seed`], [`namespace_seed`]).

use sha2::{Digest as _, Sha256};

#[cfg(test)]
mod tests;

/// SHA-256 of a page and everything before it. Also the key of the page in SGLang's L3 storage (64 hex digits).
pub type Digest = [u8; 32];

/// What KV events call a page: the first 8 bytes of its digest, big-endian, signed.
pub type EventHash = i64;

const SALT_TAG: &[u8] = b"sglang-cache-salt-v1\0";
const STORAGE_TAG: &[u8] = b"sglang-cache-namespace-v1";
const EVENT_TAG: &[u8] = b"sglang-kv-event-namespace-v1";

/// Digest of one page, given that of the page before it (or the chain's seed, or nothing at the root).
#[must_use]
pub fn page_digest(previous: Option<&Digest>, tokens: &[u32]) -> Digest {
    let mut hash = Sha256::new();
    if let Some(previous) = previous {
        hash.update(previous);
    }
    // Four bytes at a time would cost as much as the hashing.
    let mut bytes = [0; 64];
    for tokens in tokens.chunks(bytes.len() / 4) {
        for (bytes, token) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(tokens) {
            *bytes = token.to_le_bytes();
        }
        hash.update(&bytes[..tokens.len() * 4]);
    }
    hash.finalize().into()
}

/// The event hash of a page in SGLang's default format.
#[must_use]
pub fn event_hash(digest: &Digest) -> EventHash {
    let [a, b, c, d, e, f, g, h, ..] = *digest;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Seed of a chain whose request carried `cache_salt` (default event format).
#[must_use]
pub fn salt_seed(cache_salt: &str) -> Digest {
    let mut hash = Sha256::new();
    hash.update(SALT_TAG);
    hash.update(cache_salt.as_bytes());
    hash.finalize().into()
}

/// Seed of the chain of L3 storage keys. `None` when neither key is set: such a chain starts with nothing.
#[must_use]
pub fn namespace_seed(extra_key: Option<&str>, cache_salt: Option<&str>) -> Option<Digest> {
    if extra_key.is_none() && cache_salt.is_none() {
        return None;
    }
    Some(tagged(STORAGE_TAG, extra_key, cache_salt))
}

/// Event hash in the `dynamo` format, where the namespace is folded into every hash again.
#[must_use]
pub fn dynamo_event_hash(hash: EventHash, extra_key: Option<&str>, cache_salt: Option<&str>) -> EventHash {
    if extra_key.is_none() && cache_salt.is_none() {
        return hash;
    }
    let mut again = Sha256::new();
    again.update(tagged(EVENT_TAG, extra_key, cache_salt));
    again.update(hash.to_be_bytes());
    event_hash(&again.finalize().into())
}

/// `tag ‖ part(extra_key) ‖ part(cache_salt)`, each part 00 when absent, else 01 ‖ length as u64 LE ‖ UTF-8.
fn tagged(tag: &[u8], extra_key: Option<&str>, cache_salt: Option<&str>) -> Digest {
    let mut hash = Sha256::new();
    hash.update(tag);
    for part in [extra_key, cache_salt] {
        match part {
            None => hash.update([0]),
            Some(text) => {
                hash.update([1]);
                hash.update((text.len() as u64).to_le_bytes());
                hash.update(text.as_bytes());
            }
        }
    }
    hash.finalize().into()
}

/// Digests of the full pages of a growing token sequence. Extending it hashes each token once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    page_tokens: usize,
    seed: Option<Digest>,
    digests: Vec<Digest>,
}

impl Chain {
    /// `page_tokens` below 1 is taken as 1.
    #[must_use]
    pub fn new(page_tokens: usize, seed: Option<Digest>) -> Self {
        Chain { page_tokens: page_tokens.max(1), seed, digests: Vec::new() }
    }

    /// Hashes the full pages of `tokens` that are not hashed yet. `tokens` must extend what was given before.
    pub fn extend(&mut self, tokens: &[u32]) {
        for page in tokens.chunks_exact(self.page_tokens).skip(self.digests.len()) {
            let digest = page_digest(self.digests.last().or(self.seed.as_ref()), page);
            self.digests.push(digest);
        }
    }

    /// One digest per full page seen so far.
    #[must_use]
    pub fn digests(&self) -> &[Digest] {
        &self.digests
    }

    #[must_use]
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// What the first page's digest continues, if not nothing.
    #[must_use]
    pub fn seed(&self) -> Option<&Digest> {
        self.seed.as_ref()
    }
}
