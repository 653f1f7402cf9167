//! From a 64-bit fingerprint to a 32-bit number: open addressing, 12 bytes a place.
//!
//! The index and the funnel look up nothing else, millions of times a second, and neither may depend on an order that
//! changes from run to run. Keys are chained block hashes, so one multiplication spreads them well enough; small keys (block
//! ids of traces) are spread by it too. Linear probing with backward shift: no tombstones, so that a map that empties is
//! as fast as a new one, and it gives memory back when it is a quarter full.

/// The map. Iteration is not offered.
#[derive(Clone, Debug)]
pub struct FingerprintMap {
    keys: Vec<u64>,
    /// [`EMPTY`] marks a free place.
    values: Vec<u32>,
    len: usize,
}

/// Not a value.
const EMPTY: u32 = u32::MAX;
const SMALLEST: usize = 16;

impl Default for FingerprintMap {
    fn default() -> Self {
        FingerprintMap { keys: vec![0; SMALLEST], values: vec![EMPTY; SMALLEST], len: 0 }
    }
}

impl FingerprintMap {
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.keys.capacity() * 8 + self.values.capacity() * 4
    }

    fn home(&self, key: u64) -> usize {
        // Fibonacci hashing: the high bits are the mixed ones.
        let bits = self.keys.len().trailing_zeros();
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }

    fn find(&self, key: u64) -> Result<usize, usize> {
        let mask = self.keys.len() - 1;
        let mut at = self.home(key);
        loop {
            if self.values[at] == EMPTY {
                return Err(at);
            }
            if self.keys[at] == key {
                return Ok(at);
            }
            at = (at + 1) & mask;
        }
    }

    #[must_use]
    pub fn get(&self, key: u64) -> Option<u32> {
        self.find(key).ok().map(|at| self.values[at])
    }

    /// Sets the value of a key and returns the one before. `value` must be less than `u32::MAX`.
    pub fn insert(&mut self, key: u64, value: u32) -> Option<u32> {
        debug_assert_ne!(value, EMPTY);
        match self.find(key) {
            Ok(at) => Some(std::mem::replace(&mut self.values[at], value)),
            Err(at) => {
                (self.keys[at], self.values[at]) = (key, value);
                self.len += 1;
                if self.len * 8 > self.keys.len() * 7 {
                    self.resize(self.keys.len() * 2);
                }
                None
            }
        }
    }

    pub fn remove(&mut self, key: u64) -> Option<u32> {
        let at = self.find(key).ok()?;
        let value = self.values[at];
        self.len -= 1;
        let mask = self.keys.len() - 1;
        let (mut hole, mut next) = (at, (at + 1) & mask);
        while self.values[next] != EMPTY {
            // An entry may fill the hole unless its home lies behind the hole.
            let home = self.home(self.keys[next]);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                (self.keys[hole], self.values[hole]) = (self.keys[next], self.values[next]);
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.values[hole] = EMPTY;
        if self.keys.len() > SMALLEST && self.len * 4 < self.keys.len() {
            self.resize(self.keys.len() / 2);
        }
        Some(value)
    }

    fn resize(&mut self, places: usize) {
        let keys = std::mem::replace(&mut self.keys, vec![0; places]);
        let values = std::mem::replace(&mut self.values, vec![EMPTY; places]);
        for (key, value) in keys.into_iter().zip(values) {
            if value != EMPTY
                && let Err(at) = self.find(key)
            {
                (self.keys[at], self.values[at]) = (key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests;
