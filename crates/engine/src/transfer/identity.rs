//! Who may exchange pages: engines with the same weights and page shape that know the same secret.

use super::error::TransferError;
use plimsoll_cache::Digest;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// What must be equal on both ends for a page's bytes to mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Digest of the weights and of every dimension that shapes KV.
    pub model: Digest,
    pub page_tokens: u32,
    pub page_bytes: u32,
}

impl Identity {
    /// All of it in one.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hash = Sha256::new_with_prefix(b"plimsoll-kv-page-v1");
        hash.update(self.model);
        hash.update(self.page_tokens.to_le_bytes());
        hash.update(self.page_bytes.to_le_bytes());
        hash.finalize().into()
    }

    /// # Errors
    /// Names the first difference.
    pub fn check(&self, theirs: &Identity) -> Result<(), TransferError> {
        if theirs.model != self.model {
            return Err(TransferError::Model);
        }
        if theirs.page_tokens != self.page_tokens {
            return Err(TransferError::PageTokens { theirs: theirs.page_tokens, ours: self.page_tokens });
        }
        if theirs.page_bytes != self.page_bytes {
            return Err(TransferError::PageBytes { theirs: theirs.page_bytes, ours: self.page_bytes });
        }
        Ok(())
    }
}

/// A secret that all engines of a fleet share. It is never sent: each side proves that it knows it with an HMAC-SHA256
/// over both greetings, which hold a fresh random number each. The pages themselves are neither encrypted nor signed.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    #[must_use]
    pub fn new(secret: &str) -> Self {
        Secret(secret.as_bytes().into())
    }

    /// The proof of the side that sent `own` to the side that sent `other`.
    pub(crate) fn proof(&self, own: &[u8], other: &[u8]) -> Digest {
        hmac(&self.0, &[b"plimsoll-kv-transfer", own, other])
    }

    pub(crate) fn verify(&self, proof: &Digest, own: &[u8], other: &[u8]) -> bool {
        proof.ct_eq(&self.proof(own, other)).into()
    }
}

/// HMAC-SHA256 (RFC 2104).
fn hmac(key: &[u8], parts: &[&[u8]]) -> Digest {
    const BLOCK: usize = 64;
    let mut padded = [0; BLOCK];
    if key.len() > BLOCK {
        padded[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        padded[..key.len()].copy_from_slice(key);
    }
    let mut inner = Sha256::new_with_prefix(padded.map(|byte| byte ^ 0x36));
    for part in parts {
        inner.update(part);
    }
    let mut outer = Sha256::new_with_prefix(padded.map(|byte| byte ^ 0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

#[cfg(test)]
mod tests {
    /// RFC 4231, test cases 1, 2 and 6.
    #[test]
    fn hmac_golden_vectors() {
        let hex = |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(super::hmac(&[0x0b; 20], &[b"Hi There"])),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            hex(super::hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(super::hmac(&[0xaa; 131], &[b"Test Using Larger Than Block-Size Key - Hash Key First"])),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }
}
