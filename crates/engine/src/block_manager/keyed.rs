//! Hashing of digests for a table of them.
//!
//! A digest is as good as random, but not to whoever chooses the tokens behind it: tables that take its bits as they are can be
//! filled from outside with digests that all want the same place. So two words of it are mixed with a secret of this table,
//! in one multiplication.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The secret of one table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keyed([u64; 2]);

impl Default for Keyed {
    fn default() -> Self {
        let random = RandomState::new();
        Keyed([0, 1].map(|nth: u8| random.hash_one(nth)))
    }
}

impl BuildHasher for Keyed {
    type Hasher = Mixing;

    fn build_hasher(&self) -> Mixing {
        Mixing { secret: self.0, mixed: 0 }
    }
}

/// For values whose bytes come at once, and 16 of them at least.
#[derive(Debug)]
pub(super) struct Mixing {
    secret: [u64; 2],
    mixed: u64,
}

impl Hasher for Mixing {
    fn write(&mut self, bytes: &[u8]) {
        let Some(words) = bytes.as_chunks::<8>().0.first_chunk::<2>() else {
            debug_assert!(false, "not a digest");
            return;
        };
        let [a, b] = [0, 1].map(|at| u128::from(u64::from_le_bytes(words[at]) ^ self.secret[at]));
        let product = a * b;
        self.mixed = product as u64 ^ (product >> 64) as u64;
    }

    /// All digests are of one length.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.mixed
    }
}
