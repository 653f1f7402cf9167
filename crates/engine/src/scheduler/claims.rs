//! What of a waiting prompt will really have to be computed.
//!
//! Agents send the same long prefix many times at once. Each of these requests alone would compute it, together they
//! compute it once; an estimate that counts it for each would refuse most of them for nothing. So the pages that a waiting
//! request will compute are written down, and a later one counts only what is neither cached nor written down before it.

use parking_lot::Mutex;
use plimsoll_cache::Digest;
use std::collections::HashMap;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Pages that requests in the scheduler are going to compute, and for how many of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims(Arc<Mutex<HashMap<Digest, u32>>>);

/// The pages of one request; taken back when it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    all: Claims,
    pages: Box<[Digest]>,
}

impl Claims {
    /// How many pages at the start of `chain` are cached or claimed; the others are claimed by the caller, until it drops
    /// the claim.
    pub(crate) fn claim(&self, chain: &[Digest], is_cached: impl Fn(&Digest) -> bool) -> (usize, Claim) {
        let mut claimed = self.0.lock();
        let known = chain.iter().take_while(|digest| is_cached(digest) || claimed.contains_key(*digest)).count();
        let pages: Box<[Digest]> = chain[known..].into();
        for digest in &pages {
            *claimed.entry(*digest).or_default() += 1;
        }
        drop(claimed);
        (known, Claim { all: self.clone(), pages })
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self.all.0.lock();
        for digest in &self.pages {
            if let Some(count) = claimed.get_mut(digest) {
                *count -= 1;
                if *count == 0 {
                    claimed.remove(digest);
                }
            }
        }
    }
}
