//! What a receiver is due: which pages, in which order, of which chain.

use super::error::TransferError;
use super::pages::Page;
use plimsoll_cache::block_hash::page_digest;
use plimsoll_cache::{Chain, Digest};

/// Digests of all pages of `tokens`: those of its chain, and for a last page that is not full the digest of the same rule
/// over the tokens it has. `seed` is the chain's.
#[must_use]
pub fn with_tail(chain: &Chain, tokens: &[u32], seed: Option<&Digest>) -> Vec<Digest> {
    let full = tokens.len() / chain.page_tokens();
    let mut digests = chain.digests()[..full.min(chain.digests().len())].to_vec();
    let tail = &tokens[digests.len() * chain.page_tokens()..];
    if !tail.is_empty() {
        digests.push(page_digest(digests.last().or(seed), tail));
    }
    digests
}

/// Pages `first ..` of a sequence, in order, each with the digest that its tokens have.
#[derive(Clone, Debug)]
pub struct Expected {
    digests: Vec<Digest>,
    next: usize,
    taken: u32,
}

impl Expected {
    /// `digests` are those of all pages of the sequence, of which the receiver already has the first `first`.
    #[must_use]
    pub fn new(digests: Vec<Digest>, first: usize) -> Self {
        Expected { next: first.min(digests.len()), digests, taken: 0 }
    }

    /// Pages still due.
    #[must_use]
    pub fn due(&self) -> usize {
        self.digests.len() - self.next
    }

    /// Takes one page.
    ///
    /// # Errors
    /// When it is not the next one or belongs to another chain.
    pub fn take(&mut self, page: &Page<'_>) -> Result<(), TransferError> {
        let expected = self.next as u32;
        if page.index != expected || self.due() == 0 {
            return Err(TransferError::Order { index: page.index, expected });
        }
        if page.digest != self.digests[self.next] {
            return Err(TransferError::Chain { index: page.index });
        }
        self.next += 1;
        self.taken += 1;
        Ok(())
    }

    /// Ends the transfer.
    ///
    /// # Errors
    /// When the sender's count differs from what arrived, or pages are missing.
    pub fn finish(&self, sent: u32) -> Result<(), TransferError> {
        let expected = self.taken + self.due() as u32;
        if sent != expected || self.due() > 0 {
            return Err(TransferError::Count { got: sent.min(self.taken), expected });
        }
        Ok(())
    }
}
